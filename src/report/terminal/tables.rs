//! Tables for stdout: plain text, aligned, no colour.

use crate::report::text;
use farmgate_engine::protocol::{Fingerprint, Sensor};

/// Widest cell of a table that is not the last of its row, characters.
const CELL_CHARS_MAX: usize = 40;

/// Rows under a header, columns as wide as they need; text is cleaned, and cut where a column would become too wide.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let last = header.len().saturating_sub(1);
    let shown = |row: &[String]| -> Vec<String> {
        let cell = |(position, text): (usize, &String)| match position == last {
            true => text::clean_sentence(text),
            false => text::shortened(&text::clean(text), CELL_CHARS_MAX),
        };
        row.iter().enumerate().map(cell).collect()
    };
    let head: Vec<String> = header.iter().map(|h| h.to_uppercase()).collect();
    let mut lines = vec![head];
    lines.extend(rows.iter().map(|row| shown(row)));
    let width =
        |column: usize| lines.iter().filter_map(|l| l.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// What a probe found, one fact a line.
pub fn fingerprint(device: &str, print: &Fingerprint) -> String {
    let mut rows: Vec<(&str, String)> = vec![("device", device.to_owned()), ("soc", print.soc.clone())];
    rows.extend(print.product.iter().map(|p| ("product", p.clone())));
    rows.push(("os", print.os_build.clone()));
    rows.push(("kernel", print.kernel.clone()));
    rows.push(("target", print.target.clone()));
    rows.push(("memory", format!("{}, pages of {} B", text::bytes(print.memory_bytes), print.page_size_bytes)));
    rows.push(("isa", print.isa.join(", ")));
    rows.extend(print.clusters.iter().map(|c| ("cores", text::cluster(c))));
    rows.extend(print.caches.iter().map(|c| ("cache", c.clone())));
    rows.extend(print.power_modes.iter().map(|(name, value)| ("mode", format!("{name} = {value}"))));
    rows.extend(print.battery_percent.map(|p| ("battery", format!("{p} %"))));
    rows.extend(print.virtualisation.iter().map(|v| ("virtual", v.clone())));
    match print.sensors.as_slice() {
        [] => rows.push(("sensors", "no temperature sensor on this device".to_owned())),
        sensors => rows.extend(sensors.iter().map(|s| ("sensor", sensor(s)))),
    }
    let line =
        |(name, value): &(&str, String)| format!("{name:<9} {}", text::clean_sentence(value)).trim_end().to_owned();
    rows.iter().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

/// What is wrong with a device, what that does, and what mends it.
pub fn advice(device: &str, findings: &[[&str; 3]]) -> String {
    let count = text::counted(findings.len(), "thing");
    let mut out = format!("{}: {count} found that will spoil measurements\n", text::clean(device));
    for [what, why, mend] in findings {
        let [what, why, mend] = [what, why, mend].map(|words| text::clean_sentence(words));
        out.push_str(&format!("\n{what}\n  why   {why}\n  mend  {mend}\n"));
    }
    out
}

fn sensor(sensor: &Sensor) -> String {
    let now = sensor.celsius.map_or("cannot be read".to_owned(), |c| text::quantity(c.get(), "°C"));
    match &sensor.distrust {
        Some(why) => format!("{}, {now}, not trusted: {why}", sensor.sensor),
        None => format!("{}, {now}", sensor.sensor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmgate_engine::protocol::CoreCluster;

    #[test]
    fn columns_line_up_and_device_text_cannot_break_out() {
        let rows = [vec!["a\u{1b}[2J".to_owned(), "x".to_owned()], vec!["long-name".to_owned(), "y\nz".to_owned()]];
        assert_eq!(table(&["device", "soc"], &rows), "DEVICE      SOC\na\\u{1b}[2J  x\nlong-name   y\\u{a}z\n");
    }

    #[test]
    fn a_device_without_sensors_says_so_and_an_untrusted_one_says_why() {
        let mut print = Fingerprint { soc: "Example".into(), ..Fingerprint::default() };
        assert!(fingerprint("here", &print).contains("no temperature sensor on this device"));
        print.clusters.push(CoreCluster {
            cores: vec![0, 1],
            clock_max_khz: Some(1_800_000),
            ..CoreCluster::default()
        });
        print.sensors.push(Sensor {
            sensor: "battery".into(),
            path: String::new(),
            celsius: None,
            distrust: Some("stuck".into()),
        });
        let text = fingerprint("here", &print);
        assert!(text.contains("sensor    battery, cannot be read, not trusted: stuck"), "{text}");
        assert!(text.contains("cores     0, 1 at 1.80 GHz"), "{text}");
    }
}
