//! Any bytes as a journal, a journal line or a device plan: what is read does not depend on how the bytes were cut, what
//! was accepted can be written and read again, and nothing panics.
#![no_main]

use farmgate_engine::journal::{Entry, JournalReader};
use farmgate_engine::protocol::{DevicePlan, frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut whole = JournalReader::new();
    let at_once = whole.feed(bytes);
    let mut piecewise = JournalReader::new();
    let step = usize::from(bytes.first().copied().unwrap_or(1)).max(1);
    let in_pieces: Vec<Entry> = bytes.chunks(step).flat_map(|piece| piecewise.feed(piece)).collect();
    assert_eq!(at_once, in_pieces);
    assert_eq!((whole.fed_bytes(), whole.seq_next()), (piecewise.fed_bytes(), piecewise.seq_next()));
    for entry in at_once {
        match entry {
            Entry::Record(framed) => {
                let line = frame::encode(&framed).expect("what was read can be written");
                assert_eq!(frame::decode(line.as_bytes()).expect("what was written can be read"), framed);
            }
            Entry::Trouble(trouble) => assert!(!trouble.to_string().is_empty()),
        }
    }
    // a fuzzer does not guess checksums: any bytes are also tried with the right one around them
    if let Ok(body) = std::str::from_utf8(bytes) {
        let line = format!("{{\"crc\":\"{:08x}\",\"body\":{body}}}", frame::crc32(body.as_bytes()));
        if let Ok(framed) = frame::decode(line.as_bytes()) {
            let line = frame::encode(&framed).expect("what was read can be written");
            assert_eq!(frame::decode(line.as_bytes()).expect("what was written can be read"), framed);
        }
    }
    if let Ok(plan) = serde_json::from_slice::<DevicePlan>(bytes) {
        let text = serde_json::to_string(&plan).expect("what was read can be written");
        let again: DevicePlan = serde_json::from_str(&text).expect("what was written can be read");
        assert_eq!(again, plan);
    }
});
