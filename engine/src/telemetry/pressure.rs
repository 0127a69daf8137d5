//! Pressure stall information, where the kernel keeps it.

use crate::protocol::{Finite, Pressure};
use crate::tree::Tree;

/// `None` where there is none, or this process may not read it.
pub(super) fn read(tree: &Tree) -> Option<Pressure> {
    let of = |resource: &str| some_avg10(&tree.lines(&format!("proc/pressure/{resource}"))?);
    // where the first is missing, the kernel has none of them, which is asked at each reading
    let memory_some_percent = Some(of("memory")?);
    Some(Pressure { memory_some_percent, cpu_some_percent: of("cpu"), io_some_percent: of("io") })
}

/// Of `some avg10=0.12 avg60=…`, the first figure.
fn some_avg10(text: &str) -> Option<Finite> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let figure = line.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    Finite::new(figure.parse().ok()?).filter(|percent| (0.0..=100.0).contains(&percent.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_second_share_of_some_is_read() {
        let text = "some avg10=12.50 avg60=3.00 avg300=1.00 total=123456\nfull avg10=1.00 avg60=0.00\n";
        assert_eq!(some_avg10(text), Finite::new(12.5));
        for bad in ["", "full avg10=1.0", "some avg10=", "some avg10=nan", "some avg10=101.0", "some avg60=1.0"] {
            assert_eq!(some_avg10(bad), None, "{bad}");
        }
    }
}
