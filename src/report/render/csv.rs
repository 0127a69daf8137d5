//! Every raw sample as a table (RFC 4180), one row a sample, with the unit in a column of its own.

use crate::error::{Error, Result};
use crate::report::text;
use crate::run::{CellData, DeviceData, RunData, Sample};
use farmgate_engine::protocol::Validity;

/// The columns; quoted by a test, since people's scripts depend on them.
pub const COLUMNS: [&str; 16] = [
    "run",
    "device",
    "scenario",
    "arm",
    "pair",
    "slot",
    "cell",
    "attempt",
    "step",
    "repetition",
    "metric",
    "unit",
    "value",
    "validity",
    "reason",
    "counts",
];

/// Renders all samples of all attempts. `counts` says whether a sample takes part in judgements.
pub fn csv(run: &RunData) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS).map_err(bug)?;
    for device in &run.devices {
        for cell in &device.cells {
            for sample in &cell.samples {
                writer.write_record(row(run, device, cell, sample)).map_err(bug)?;
            }
        }
    }
    let bytes = writer.into_inner().map_err(bug)?;
    String::from_utf8(bytes).map_err(bug)
}

fn row(run: &RunData, device: &DeviceData, cell: &CellData, sample: &Sample) -> [String; 16] {
    let (validity, reason) = match sample.validity {
        Validity::Valid => ("valid", ""),
        Validity::Invalid(reason) => ("invalid", reason.as_str()),
    };
    let counts = crate::report::build::counts(cell, sample) && sample.value.is_some();
    [
        guarded(run.manifest.run.as_str()),
        guarded(&device.facts.device),
        guarded(&cell.scenario),
        cell.arm.as_str().to_owned(),
        cell.pair.to_string(),
        cell.slot.to_string(),
        cell.cell.to_string(),
        sample.attempt.to_string(),
        sample.step.to_string(),
        sample.repetition.to_string(),
        guarded(&sample.metric),
        text::unit_of(&sample.metric).to_owned(),
        sample.value.map(|v| v.get().to_string()).unwrap_or_default(),
        validity.to_owned(),
        reason.to_owned(),
        if counts { "yes" } else { "no" }.to_owned(),
    ]
}

/// Text that a spreadsheet would take for a formula gets a quotation mark in front.
fn guarded(text: &str) -> String {
    let clean = text::clean(text);
    if clean.starts_with(['=', '+', '-', '@']) { format!("'{clean}") } else { clean }
}

fn bug(error: impl std::fmt::Display) -> Error {
    Error::bug(format!("writing samples as CSV: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_named_like_a_formula_is_not_one() {
        assert_eq!(guarded("=cmd()"), "'=cmd()");
        assert_eq!(guarded("pixel-7"), "pixel-7");
    }
}
