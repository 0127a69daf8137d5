//! Whatever is wrong with a file, the reader says what and where, and never panics.

use super::*;
use proptest::prelude::*;
use std::fs;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/tiny-llama-Q4_K.gguf");

fn two_tensors() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", Value::String("llama".into()));
    metadata.set("a.number", Value::Unsigned(7));
    metadata.set("a.negative", Value::Negative(-7));
    metadata.set("a.list", Value::Strings(vec!["x".into(), "yy".into()]));
    metadata.set("a.floats", Value::Floats(vec![0.5, -1.0]));
    metadata.set("a.integers", Value::Integers(vec![1, -2, 3]));
    let mut writer = Writer::new(metadata);
    writer.tensor_bytes("one", &[4, 2], TensorType::F32, vec![1; 32]).unwrap();
    writer.tensor_bytes("two", &[32], TensorType::Q8_0, vec![2; 34]).unwrap();
    writer.write(&path).unwrap();
    fs::read(path).unwrap()
}

fn open_bytes(bytes: &[u8]) -> Result<Gguf> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, bytes).unwrap();
    Gguf::open(&path, LoadMode::Read)
}

fn error_of(bytes: &[u8]) -> String {
    open_bytes(bytes).err().expect("the file must be refused").to_string()
}

#[test]
fn what_was_written_is_what_is_read() {
    let gguf = open_bytes(&two_tensors()).unwrap();
    let metadata = gguf.metadata();
    assert_eq!(metadata.u64("a.number").unwrap(), Some(7));
    assert_eq!(metadata.get("a.negative"), Some(&Value::Negative(-7)));
    assert_eq!(metadata.strings("a.list").unwrap().unwrap(), ["x", "yy"]);
    assert_eq!(metadata.f32s("a.floats").unwrap().unwrap(), [0.5, -1.0]);
    assert_eq!(metadata.i64s("a.integers").unwrap().unwrap(), [1, -2, 3]);
    let one = gguf.tensor("one").unwrap();
    assert_eq!((one.cols(), one.rows(), gguf.data(one)), (4, 2, &[1u8; 32][..]));
    assert_eq!(gguf.data(gguf.tensor("two").unwrap()), [2u8; 34]);
    assert_eq!(gguf.weight_bytes(), 66);
}

#[test]
fn a_real_file_reads_the_same_mapped_and_copied() {
    let path = Path::new(MODEL);
    let (mapped, copied) = (Gguf::open(path, LoadMode::Map).unwrap(), Gguf::open(path, LoadMode::Read).unwrap());
    assert_eq!(mapped.metadata(), copied.metadata());
    assert_eq!(mapped.tensors(), copied.tensors());
    assert!(mapped.tensors().len() > 10);
    for tensor in mapped.tensors() {
        assert_eq!(mapped.data(tensor), copied.data(tensor));
    }
}

#[test]
fn a_value_of_another_type_names_its_key() {
    let gguf = open_bytes(&two_tensors()).unwrap();
    let error = gguf.metadata().str("a.number").unwrap_err().to_string();
    assert!(error.contains("`a.number` is an unsigned integer, expected a string"), "{error}");
    assert_eq!(gguf.metadata().str("absent").unwrap(), None);
}

#[test]
fn files_that_are_no_gguf_say_what_they_are() {
    for (bytes, word) in [
        (&b""[..], "empty"),
        (b"GG", "first four bytes"),
        (b"\n <!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1", "git-lfs pointer"),
        (b"PK\x03\x04....", "zip archive"),
        (b"ggjt\x03\0\0\0....", "older than GGUF"),
        (b"\x10\0\0\0\0\0\0\0{\"a\":1}", "safetensors"),
        (b"hello world, this is text", "not GGUF"),
        (b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0", "big-endian"),
        (b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0", "version 1"),
    ] {
        let error = error_of(bytes);
        assert!(error.contains(word) && error.contains("hint: "), "{word}: {error}");
    }
}

#[test]
fn every_truncation_is_refused_with_field_and_byte() {
    let whole = two_tensors();
    for cut in 0..whole.len() - 30 {
        let error = error_of(&whole[..cut]);
        assert!(error.contains("field ") || error.contains("offset of"), "cut at {cut}: {error}");
    }
}

#[test]
fn a_huge_length_or_count_is_refused_without_allocating_it() {
    let whole = two_tensors();
    // byte 8: tensor count; byte 16: entry count; byte 24: length of the first key
    for (at, field) in [(8, "tensor_count"), (16, "metadata_kv_count"), (24, "metadata key 0")] {
        for huge in [u64::MAX, 1 << 62, 1 << 40] {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&huge.to_le_bytes());
            let error = error_of(&bytes);
            assert!(error.contains(field) && error.contains(&format!("byte {at}")), "{error}");
        }
    }
    let mut empty_key = whole;
    empty_key[24..32].copy_from_slice(&0u64.to_le_bytes());
    assert!(error_of(&empty_key).contains("the name is empty"));
}

#[test]
fn an_unsupported_weight_type_lists_the_supported_ones() {
    let whole = two_tensors();
    // the type of `two` stands 12 bytes before the end of its header entry: name, dimension count, shape, type, offset
    let name_at = whole.windows(3).position(|w| w == b"two").unwrap();
    let type_at = name_at + 3 + 4 + 8;
    let mut bytes = whole;
    bytes[type_at..type_at + 4].copy_from_slice(&39u32.to_le_bytes());
    let error = error_of(&bytes);
    assert!(error.contains("weight type 39") && error.contains("Q4_K"), "{error}");
}

fn shard(folder: &Path, name: &str, number: u64, count: u64, total: u64, tensor: &str) {
    let mut metadata = Metadata::new();
    metadata.set("split.no", Value::Unsigned(number));
    metadata.set("split.count", Value::Unsigned(count));
    metadata.set("split.tensors.count", Value::Unsigned(total));
    let mut writer = Writer::new(metadata);
    writer.tensor_bytes(tensor, &[2], TensorType::F32, vec![number as u8; 8]).unwrap();
    writer.write(&folder.join(name)).unwrap();
}

#[test]
fn a_split_set_is_one_model_whichever_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    shard(folder.path(), "m-00001-of-00002.gguf", 0, 2, 2, "a");
    shard(folder.path(), "m-00002-of-00002.gguf", 1, 2, 2, "b");
    for name in ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"] {
        let gguf = Gguf::open(&folder.path().join(name), LoadMode::Map).unwrap();
        assert_eq!(gguf.files().len(), 2);
        assert_eq!(gguf.data(gguf.tensor("b").unwrap()), [1u8; 8]);
    }
}

#[test]
fn a_broken_set_names_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| Gguf::open(&folder.path().join(name), LoadMode::Map).err().expect("refused").to_string();
    shard(folder.path(), "m-00001-of-00002.gguf", 0, 2, 2, "a");
    assert!(open("m-00001-of-00002.gguf").contains("lacks m-00002-of-00002.gguf"));
    shard(folder.path(), "m-00002-of-00002.gguf", 1, 2, 2, "a");
    assert!(open("m-00001-of-00002.gguf").contains("stands in two files"));
    shard(folder.path(), "m-00002-of-00002.gguf", 1, 3, 2, "b");
    assert!(open("m-00001-of-00002.gguf").contains("set of 3 files"));
    shard(folder.path(), "m-00002-of-00002.gguf", 0, 2, 2, "b");
    assert!(open("m-00001-of-00002.gguf").contains("part 0"));
    shard(folder.path(), "m-00002-of-00002.gguf", 1, 2, 9, "b");
    shard(folder.path(), "m-00001-of-00002.gguf", 0, 2, 9, "a");
    assert!(open("m-00001-of-00002.gguf").contains("should have 9 tensors"));
    shard(folder.path(), "alone.gguf", 0, 2, 2, "a");
    assert!(open("alone.gguf").contains("set of 2 files"), "a first shard under another name, or joined with cat");
}

#[test]
fn a_missing_file_and_a_folder_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Gguf::open(&folder.path().join("no.gguf"), LoadMode::Map).err().unwrap().to_string();
    assert!(missing.contains("no.gguf") && missing.contains("hint: check the path"), "{missing}");
    let directory = Gguf::open(folder.path(), LoadMode::Map).err().unwrap().to_string();
    assert!(directory.contains("not a regular file"), "{directory}");
}

#[test]
fn files_of_a_set_joined_with_cat_are_told_from_a_model() {
    let folder = tempfile::tempdir().unwrap();
    shard(folder.path(), "m-00001-of-00002.gguf", 0, 2, 2, "a");
    shard(folder.path(), "m-00002-of-00002.gguf", 1, 2, 2, "b");
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    let first = read("m-00001-of-00002.gguf");
    let joined = [first.clone(), read("m-00002-of-00002.gguf")].concat();
    let error = error_of(&joined);
    assert!(error.contains("joined with cat") && error.contains(&format!("byte {}", first.len())), "{error}");
}

#[test]
fn names_that_are_not_utf8_and_names_that_stand_twice_are_refused() {
    let change = |from: &[u8], to: &[u8]| {
        let mut bytes = two_tensors();
        let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        (error_of(&bytes), at)
    };
    let (error, at) = change(b"two", b"t\xffo");
    assert!(error.contains("not UTF-8") && error.contains(&format!("byte {}", at + 1)), "{error}");
    assert!(change(b"two", b"one").0.contains("`one` stands twice"));
    assert!(change(b"a.number", b"a.floats").0.contains("`a.floats` stands twice"));
}

/// Where the shape of tensor `name` (three letters) begins in a file's bytes.
fn shape_at(bytes: &[u8], name: &[u8]) -> usize {
    bytes.windows(3).position(|w| w == name).unwrap() + 3 + 4
}

#[test]
fn shapes_and_offsets_that_cannot_be_are_refused() {
    let whole = two_tensors();
    let with = |at: usize, value: u64| {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        error_of(&bytes)
    };
    let (one, two) = (shape_at(&whole, b"one"), shape_at(&whole, b"two"));
    let two_offset = two + 8 + 4;
    assert!(with(one, 0).contains("is zero"));
    assert!(with(one + 8, 0).contains("is zero"));
    assert!(with(one + 8, u64::MAX).contains("too large"));
    assert!(with(one, 1 << 62).contains("too large"));
    assert!(with(two, 33).contains("no whole number of Q8_0 blocks of 32"));
    assert!(with(two_offset, 33).contains("not aligned to 32"));
    assert!(with(two_offset, 1 << 40).contains("needs 34 bytes"));
    assert!(with(two_offset, u64::MAX - 31).contains("needs 34 bytes"));
    let overlap = with(two_offset, 0);
    assert!(overlap.contains("`one` and `two` overlap") && overlap.contains("hint: "), "{overlap}");
    for dimensions in [0u32, 5, u32::MAX] {
        let mut bytes = whole.clone();
        bytes[one - 4..one].copy_from_slice(&dimensions.to_le_bytes());
        assert!(error_of(&bytes).contains("DIMENSIONS_MAX"));
    }
}

/// A file with one metadata entry: key `k`, then `value` as it stands.
fn one_entry(value: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, b'k']);
    bytes.extend(value);
    bytes
}

#[test]
fn value_types_that_do_not_exist_and_nested_arrays_are_refused() {
    assert!(error_of(&one_entry(&[13, 0, 0, 0, 0])).contains("value type 13 does not exist"));
    let nested = [9u32.to_le_bytes(), 9u32.to_le_bytes(), 1u32.to_le_bytes(), [0; 4]].concat();
    assert!(error_of(&one_entry(&nested)).contains("arrays within arrays"));
    let array = |kind: u32, count: u64| {
        let mut value = [9u32.to_le_bytes(), kind.to_le_bytes()].concat();
        value.extend(count.to_le_bytes());
        error_of(&one_entry(&value))
    };
    assert!(array(99, 1).contains("value type 99 does not exist"));
    assert!(array(4, 1 << 60).contains("ARRAY_ELEMENTS_MAX"));
    assert!(array(8, u64::MAX).contains("ARRAY_ELEMENTS_MAX"));
}

#[test]
fn version_2_reads_like_version_3() {
    let mut bytes = two_tensors();
    bytes[4] = 2;
    assert_eq!(open_bytes(&bytes).unwrap().tensors().len(), 2);
}

#[test]
fn another_alignment_is_written_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let make = |alignment: u64| {
        let mut metadata = Metadata::new();
        metadata.set("general.alignment", Value::Unsigned(alignment));
        let mut writer = Writer::new(metadata);
        writer.tensor_bytes("a", &[1], TensorType::F32, vec![7; 4]).unwrap();
        writer.tensor_bytes("b", &[1], TensorType::F32, vec![8; 4]).unwrap();
        writer.write(&path)
    };
    for alignment in [1, 8, 64, 4096] {
        make(alignment).unwrap();
        let gguf = Gguf::open(&path, LoadMode::Map).unwrap();
        assert_eq!((gguf.data(&gguf.tensors()[0]), gguf.data(&gguf.tensors()[1])), (&[7; 4][..], &[8; 4][..]));
    }
    assert!(make(48).is_err() && make(0).is_err());
}

#[test]
fn a_write_that_fails_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, "old").unwrap();
    let mut writer = Writer::new(Metadata::new());
    writer.tensor("a", &[2], TensorType::F32, Box::new(|out| out.write_all(&[0; 4]))).unwrap();
    let error = writer.write(&path).unwrap_err().to_string();
    assert!(error.contains("wrote 4 bytes instead of 8"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

proptest! {
    #[test]
    fn a_real_model_with_changed_bytes_or_cut_short_never_panics(
        changes in proptest::collection::vec((0usize..24_000, any::<u8>()), 0..6), cut in 0usize..800_000,
    ) {
        let mut bytes = fs::read(MODEL).unwrap();
        bytes.truncate(cut);
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        match parse::header(&bytes) {
            Ok(header) => header.tensors.iter().for_each(|t| assert!(t.offset + t.bytes <= bytes.len())),
            Err(error) => assert!(error.place().is_some() && error.hint_text().is_some(), "{error}"),
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..400), version in 2u32..4) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(tail);
        let _ = parse::header(&bytes);
    }

    #[test]
    fn a_file_with_changed_bytes_never_panics(changes in proptest::collection::vec((0usize..700, any::<u8>()), 1..8)) {
        let mut bytes = two_tensors();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if let Ok(header) = parse::header(&bytes) {
            for tensor in header.tensors {
                prop_assert!(tensor.offset + tensor.bytes <= bytes.len());
            }
        }
    }
}
