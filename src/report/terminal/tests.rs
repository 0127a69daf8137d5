use super::*;
use crate::event::Phase;
use farmgate_engine::protocol::frame::Framed;
use farmgate_engine::protocol::{ExitCause, ReasonCode, Record};
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<u8>>>);

impl Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Heard {
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

fn plain() -> (Terminal, Heard) {
    let heard = Heard::default();
    (Terminal::plain(&["pixel-7".into(), "rpi-5".into()], Box::new(heard.clone())), heard)
}

fn at(device: &str, phase: Phase) -> Event {
    Event::Progress { device: device.into(), phase }
}

fn pushing(done_mb: u64) -> Phase {
    Phase::Pushing { what: "model.gguf".into(), done_bytes: done_mb * 1_000_000, total_bytes: 100_000_000 }
}

#[test]
fn a_push_shows_its_speed_and_the_time_left() {
    let (mut terminal, heard) = plain();
    terminal.show_at(&at("pixel-7", pushing(0)), Duration::from_secs(10));
    terminal.show_at(&at("pixel-7", pushing(40)), Duration::from_secs(18));
    assert_eq!(
        heard.lines(),
        [
            "pixel-7: pushing model.gguf, 0 B of 100.0 MB",
            "pixel-7: pushing model.gguf, 40.0 MB of 100.0 MB, 5.0 MB/s, 12.0 s left"
        ]
    );
}

#[test]
fn without_a_terminal_a_device_speaks_at_changes_and_seldom_in_between() {
    let (mut terminal, heard) = plain();
    for ms in (0..20_000).step_by(10) {
        let phase = Phase::Measuring {
            done_cells: ms / 500,
            total_cells: 48,
            what: "latency candidate".into(),
            left_ms: 90_000,
        };
        terminal.show_at(&at("rpi-5", phase), Duration::from_millis(ms.into()));
    }
    terminal.show_at(&Event::DeviceFinished { device: "rpi-5".into() }, Duration::from_secs(20));
    let lines = heard.lines();
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert_eq!(lines[0], "rpi-5: measuring latency candidate, 0 of 48 cells, 1 min 30 s left");
    assert_eq!(lines[4], "rpi-5: done, 39 of 48 cells");
}

#[test]
fn a_failure_and_an_invalid_cell_are_said_at_once_and_cannot_move_the_cursor() {
    let (mut terminal, heard) = plain();
    let end = Record::CellEnd {
        cell: 7,
        attempt: 0,
        exit: ExitCause::Done,
        duration_ms: 1,
        invalid: vec![ReasonCode::NotCool],
        stderr_tail: String::new(),
    };
    let framed = Box::new(Framed { seq: 0, time_us: 0, record: end });
    terminal.show(&Event::DeviceRecord { device: "pixel-7".into(), framed });
    terminal.show(&Event::DeviceFailed { device: "rpi-5".into(), reason: "gone\u{1b}[2J".into() });
    assert_eq!(heard.lines(), ["pixel-7: cell 7, attempt 1: INVALID, not-cool", "rpi-5: INFRA: gone\\u{1b}[2J"]);
}

#[test]
fn devices_beyond_the_lines_are_counted_together() {
    let names: Vec<String> = (0..100).map(|i| format!("d{i}")).collect();
    let mut progress = Progress::new(&names);
    for name in &names[90..] {
        progress.apply(&at(name, Phase::Connecting), Duration::ZERO);
    }
    assert_eq!(progress.rest_in_words(16), "84 more devices: 74 waiting, 10 connecting");
}

#[test]
fn events_of_unknown_devices_are_ignored() {
    let (mut terminal, heard) = plain();
    terminal.show(&at("nobody", Phase::Connecting));
    terminal.show(&Event::DeviceFinished { device: "nobody".into() });
    terminal.finish();
    assert!(heard.lines().is_empty());
}
