use super::*;
use proptest::prelude::*;

fn end(interrupted: bool) -> Record {
    Record::JournalEnd { interrupted }
}

fn telemetry(cell: u32) -> Record {
    Record::CellStart {
        cell,
        attempt: 0,
        scenario: "smoke".into(),
        arm: crate::protocol::Arm::Candidate,
        pair: 0,
        slot: 0,
    }
}

fn line(seq: u64, time_us: u64) -> String {
    frame::encode(&Framed { seq, time_us, record: end(false) }).unwrap()
}

fn seqs(entries: &[Entry]) -> Vec<u64> {
    entries.iter().filter_map(|e| if let Entry::Record(f) = e { Some(f.seq) } else { None }).collect()
}

#[test]
fn what_was_appended_is_read_back_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let (mut journal, found) = Journal::open(&path).unwrap();
    assert!(found.records.is_empty());
    for cell in 0..5 {
        journal.append(telemetry(cell)).unwrap();
    }
    let entries = JournalReader::new().feed(&std::fs::read(&path).unwrap());
    assert_eq!(seqs(&entries), [0, 1, 2, 3, 4]);
    assert_eq!(entries.len(), 5);
}

#[test]
fn a_torn_last_line_is_cut_and_numbering_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let (mut journal, _) = Journal::open(&path).unwrap();
    journal.append(telemetry(0)).unwrap();
    journal.append(telemetry(1)).unwrap();
    drop(journal);
    let whole = std::fs::read(&path).unwrap();
    let second_at = whole.iter().position(|&b| b == b'\n').unwrap() + 1;
    for cut in second_at + 1..whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let (mut journal, found) = Journal::open(&path).unwrap();
        assert_eq!(found.records.len(), 1, "cut at {cut}");
        assert_eq!(found.torn_bytes, (cut - second_at) as u64);
        journal.append(telemetry(7)).unwrap();
        let entries = JournalReader::new().feed(&std::fs::read(&path).unwrap());
        assert_eq!(seqs(&entries), [0, 1], "cut at {cut}");
        assert_eq!(entries.len(), 2, "no gap, no clock that went back, no bad line");
    }
}

#[test]
fn damage_in_the_middle_is_refused_and_the_file_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let mut bytes = (line(0, 1) + &line(1, 2) + &line(2, 3)).into_bytes();
    let at = line(0, 1).len() + 40;
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = Journal::open(&path).unwrap_err();
    assert!(error.what().contains("wrong crc") || error.what().contains("not a frame"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn two_writers_cannot_have_the_same_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j");
    let first = Journal::open(&path).unwrap();
    let error = Journal::open(&path).unwrap_err();
    assert_eq!(error.kind(), crate::error::ErrorKind::Lease);
    drop(first);
    Journal::open(&path).unwrap();
}

#[test]
fn a_missing_record_shows_as_a_gap() {
    let entries = JournalReader::new().feed((line(0, 1) + &line(3, 2)).as_bytes());
    assert_eq!(entries[1], Entry::Trouble(Trouble::Gap { expected: 1, found: 3 }));
    assert_eq!(seqs(&entries), [0, 3]);
}

#[test]
fn a_record_that_comes_twice_is_dropped_and_said() {
    let entries = JournalReader::new().feed((line(0, 1) + &line(0, 1) + &line(1, 1)).as_bytes());
    assert_eq!(entries[1], Entry::Trouble(Trouble::Repeated { seq: 0 }));
    assert_eq!(seqs(&entries), [0, 1]);
}

#[test]
fn a_clock_that_goes_back_is_said() {
    let entries = JournalReader::new().feed((line(0, 9) + &line(1, 4)).as_bytes());
    assert_eq!(entries[1], Entry::Trouble(Trouble::ClockBackwards { seq: 1, by_us: 5 }));
}

#[test]
fn a_line_without_end_takes_no_more_than_its_bound_and_reading_goes_on_behind_it() {
    let mut reader = JournalReader::new();
    let mut entries = reader.feed(line(0, 1).as_bytes());
    let junk = vec![b'x'; 1 << 16];
    for _ in 0..64 {
        entries.extend(reader.feed(&junk));
    }
    entries.extend(reader.feed(b"\n"));
    entries.extend(reader.feed(line(1, 2).as_bytes()));
    let start = line(0, 1).len() as u64;
    assert_eq!(entries[1], Entry::Trouble(Trouble::BadLine { offset_bytes: start, why: frame::FrameError::TooLong }));
    assert_eq!(seqs(&entries), [0, 1]);
    assert_eq!(entries.len(), 3);
}

proptest! {
    #[test]
    fn pieces_of_any_size_give_what_the_whole_gives(cuts in prop::collection::vec(1usize..200, 1..40), garbage in prop::collection::vec(any::<u8>(), 0..80)) {
        let mut bytes = line(0, 1).into_bytes();
        bytes.extend(&garbage);
        bytes.push(b'\n');
        bytes.extend(line(1, 5).into_bytes());
        bytes.extend(line(4, 3).into_bytes());
        let whole = JournalReader::new().feed(&bytes);
        let mut reader = JournalReader::new();
        let mut pieces = Vec::new();
        let mut rest = &bytes[..];
        for cut in cuts {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            pieces.extend(reader.feed(piece));
            rest = after;
        }
        pieces.extend(reader.feed(rest));
        prop_assert_eq!(pieces, whole);
        prop_assert_eq!(reader.fed_bytes(), bytes.len() as u64);
        prop_assert_eq!(reader.pending_bytes(), 0);
    }
}
