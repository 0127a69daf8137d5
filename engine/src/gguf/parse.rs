//! The header of one GGUF file: every length, count and offset is checked before it is used.

use super::metadata::{Metadata, Value};
use super::tensor_type::TensorType;
use crate::error::{EngineError, Result};
use std::collections::HashSet;

/// Longest key or tensor name, bytes.
pub const NAME_BYTES_MAX: u64 = 1024;
/// Longest string value, bytes.
pub const STRING_BYTES_MAX: u64 = 64 << 20;
/// Most metadata entries.
pub const ENTRIES_MAX: u64 = 65_536;
/// Most tensors in one file.
pub const TENSORS_MAX: u64 = 1 << 20;
/// Most elements in a metadata array.
pub const ARRAY_ELEMENTS_MAX: u64 = 1 << 24;
/// Most dimensions of a tensor.
pub const DIMENSIONS_MAX: u32 = 4;
/// Largest alignment of tensor data, bytes.
pub const ALIGNMENT_BYTES_MAX: u64 = 1 << 20;

/// What to do about a file whose inside makes no sense.
const FETCH_AGAIN: &str = "the file is damaged or was not wholly copied; fetch or copy it again and compare its size";

/// One tensor as its file describes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TensorHeader {
    pub name: String,
    pub shape: Vec<u64>,
    pub tensor_type: TensorType,
    /// From the beginning of the file.
    pub offset: usize,
    pub bytes: usize,
}

/// Everything before the tensor data.
#[derive(Debug)]
pub(super) struct Header {
    pub metadata: Metadata,
    pub tensors: Vec<TensorHeader>,
}

/// Reads the header of a whole file's `bytes`.
pub(super) fn header(bytes: &[u8]) -> Result<Header> {
    let mut reader = Reader { bytes, at: 0 };
    check_magic(bytes)?;
    reader.at = 4;
    let version = reader.u32("version")?;
    if version.swap_bytes() == 2 || version.swap_bytes() == 3 {
        return Err(reader
            .fault("version", "the file is big-endian")
            .hint("only little-endian GGUF is supported; convert the model again on a little-endian machine"));
    }
    if version != 2 && version != 3 {
        return Err(reader
            .fault("version", format!("GGUF version {version} is not supported"))
            .hint("versions 2 and 3 are; convert the model again with a newer converter"));
    }
    let tensor_count = reader.count("tensor_count", TENSORS_MAX, "TENSORS_MAX")?;
    let entry_count = reader.count("metadata_kv_count", ENTRIES_MAX, "ENTRIES_MAX")?;
    let metadata = read_metadata(&mut reader, entry_count)?;
    let alignment = alignment(&metadata)?;
    let tensors = read_tensors(&mut reader, tensor_count, alignment)?;
    let data_end = check_overlap(&tensors)?.unwrap_or(reader.at);
    check_joined(bytes, data_end)?;
    Ok(Header { metadata, tensors })
}

/// Says what the file is when it is not GGUF, as far as that shows.
fn check_magic(bytes: &[u8]) -> Result<()> {
    if bytes.starts_with(b"GGUF") {
        return Ok(());
    }
    let (what, hint) = if bytes.is_empty() {
        ("the file is empty", "the download or copy failed; fetch the model again")
    } else if b"GGUF".starts_with(bytes) {
        ("the file ends within its first four bytes", "the download or copy failed; fetch the model again")
    } else if bytes.starts_with(b"version https://git-lfs") {
        ("the file is a git-lfs pointer, not a model", "`git lfs pull` fetches the model itself")
    } else if bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'<') {
        ("the file is a web page, not a model", "the download link led to a page; fetch the file behind it")
    } else if bytes.starts_with(b"PK\x03\x04") {
        ("the file is a zip archive (or a PyTorch checkpoint), not GGUF", "convert the model to GGUF first")
    } else if [&b"ggml"[..], b"lmgg", b"tjgg", b"ggjt", b"fmgg", b"algg"].iter().any(|m| bytes.starts_with(m)) {
        ("the file is in a format older than GGUF", "convert the model again with a current converter")
    } else if bytes.get(8) == Some(&b'{') {
        ("the file looks like safetensors, not GGUF", "convert the model to GGUF first")
    } else {
        ("the file is not GGUF", "a GGUF file begins with the four bytes `GGUF`")
    };
    Err(EngineError::model(what).at("byte 0, field magic").hint(hint))
}

fn read_metadata(reader: &mut Reader<'_>, entry_count: u64) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    for i in 0..entry_count {
        let key = reader.name(&format!("metadata key {i}"))?;
        if metadata.get(&key).is_some() {
            return Err(reader.fault(&format!("metadata key {i}"), format!("`{}` stands twice", key.escape_debug())));
        }
        let kind = reader.u32(&format!("type of `{}`", key.escape_debug()))?;
        let value = reader.value(&key, kind)?;
        metadata.set(key, value);
    }
    Ok(metadata)
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    let alignment = metadata.u64("general.alignment")?.unwrap_or(32);
    if alignment.is_power_of_two() && alignment <= ALIGNMENT_BYTES_MAX {
        return Ok(alignment);
    }
    Err(EngineError::model(format!(
        "alignment {alignment} is not a power of two up to {ALIGNMENT_BYTES_MAX} (ALIGNMENT_BYTES_MAX)"
    ))
    .at("field general.alignment")
    .hint(FETCH_AGAIN))
}

/// No two tensors share bytes. Returns where the last one ends, when there is any.
fn check_overlap(tensors: &[TensorHeader]) -> Result<Option<usize>> {
    let mut in_order: Vec<&TensorHeader> = tensors.iter().collect();
    in_order.sort_unstable_by_key(|t| t.offset);
    for pair in in_order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let (first, second) = (pair[0].name.escape_debug(), pair[1].name.escape_debug());
            return Err(EngineError::model(format!("the data of tensors `{first}` and `{second}` overlap"))
                .at(format!("byte {}, field offset of tensor `{second}`", pair[1].offset))
                .hint(FETCH_AGAIN));
        }
    }
    Ok(in_order.last().map(|t| t.offset + t.bytes))
}

/// Files of a set that were joined with `cat`: another header begins where this file's padding ends.
fn check_joined(bytes: &[u8], data_end: usize) -> Result<()> {
    let rest = &bytes[data_end.min(bytes.len())..];
    let padding = rest.iter().take(ALIGNMENT_BYTES_MAX as usize).take_while(|b| **b == 0).count();
    if !rest[padding..].starts_with(b"GGUF") {
        return Ok(());
    }
    Err(EngineError::model("another GGUF file begins after the last tensor: files of a set were joined with cat")
        .at(format!("byte {}", data_end + padding))
        .hint("keep the files of the set apart (NAME-00001-of-000NN.gguf), or merge them with a tool for GGUF"))
}

fn read_tensors(reader: &mut Reader<'_>, tensor_count: u64, alignment: u64) -> Result<Vec<TensorHeader>> {
    let mut pending = Vec::new();
    let mut names = HashSet::new();
    for i in 0..tensor_count {
        let (name, shape, tensor_type, bytes) = read_tensor(reader, i)?;
        let offset = reader.u64(&format!("offset of tensor `{}`", name.escape_debug()))?;
        if !names.insert(name.clone()) {
            return Err(reader.fault(&format!("tensor {i}"), format!("`{}` stands twice", name.escape_debug())));
        }
        if offset % alignment != 0 {
            return Err(reader.fault(
                &format!("offset of tensor `{}`", name.escape_debug()),
                format!("offset {offset} is not aligned to {alignment}"),
            ));
        }
        pending.push((name, shape, tensor_type, offset, bytes));
    }
    let base = (reader.at as u64).next_multiple_of(alignment);
    let size = reader.bytes.len() as u64;
    let place = |(name, shape, tensor_type, offset, bytes): (String, Vec<u64>, TensorType, u64, u64)| {
        let start = base.checked_add(offset);
        let end = start.and_then(|s| s.checked_add(bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= size => {
                Ok(TensorHeader { name, shape, tensor_type, offset: start as usize, bytes: bytes as usize })
            }
            _ => Err(EngineError::model(format!(
                "tensor `{}` needs {bytes} bytes from byte {}, but the file has {size}",
                name.escape_debug(),
                base.saturating_add(offset)
            ))
            .at(format!("field offset of tensor `{}`", name.escape_debug()))
            .hint("the file is cut short; fetch or copy it again and compare its size")),
        }
    };
    pending.into_iter().map(place).collect()
}

fn read_tensor(reader: &mut Reader<'_>, i: u64) -> Result<(String, Vec<u64>, TensorType, u64)> {
    let name = reader.name(&format!("name of tensor {i}"))?;
    let field = format!("tensor `{}`", name.escape_debug());
    let dimensions = reader.u32(&format!("dimension count of {field}"))?;
    if dimensions == 0 || dimensions > DIMENSIONS_MAX {
        let what = format!("{dimensions} dimensions, 1 to {DIMENSIONS_MAX} are possible (DIMENSIONS_MAX)");
        return Err(reader.fault(&field, what));
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        shape.push(reader.u64(&format!("shape of {field}"))?);
    }
    let id = reader.u32(&format!("type of {field}"))?;
    let tensor_type = TensorType::from_id(id).ok_or_else(|| {
        let known: Vec<&str> = TensorType::ALL.iter().map(|t| t.name()).collect();
        reader
            .fault(&format!("type of {field}"), format!("weight type {id} is not supported"))
            .hint(format!("quantise the model to one of {}", known.join(", ")))
    })?;
    if shape.contains(&0) {
        return Err(reader.fault(&format!("shape of {field}"), format!("a dimension of {shape:?} is zero")));
    }
    let rows = shape[1..].iter().try_fold(1u64, |product, n| product.checked_mul(*n));
    let row_bytes = usize::try_from(shape[0]).ok().and_then(|cols| tensor_type.row_bytes(cols));
    let Some(bytes) = rows.zip(row_bytes).and_then(|(rows, row)| rows.checked_mul(row as u64)) else {
        return Err(reader.fault(
            &format!("shape of {field}"),
            format!(
                "{shape:?} is no whole number of {tensor_type} blocks of {}, or too large",
                tensor_type.block_elements()
            ),
        ));
    };
    Ok((name, shape, tensor_type, bytes))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn fault(&self, field: &str, what: impl Into<String>) -> EngineError {
        self.fault_at(self.at, field, what)
    }

    fn fault_at(&self, at: usize, field: &str, what: impl Into<String>) -> EngineError {
        EngineError::model(what).at(format!("byte {at}, field {field}")).hint(FETCH_AGAIN)
    }

    fn take(&mut self, bytes: u64, field: &str) -> Result<&'a [u8]> {
        let left = (self.bytes.len() - self.at) as u64;
        if bytes > left {
            return Err(
                self.fault(field, format!("the file ends here: {bytes} more bytes are needed, {left} are left"))
            );
        }
        let from = self.at;
        self.at += bytes as usize;
        Ok(&self.bytes[from..self.at])
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, field)?);
        Ok(out)
    }

    fn u32(&mut self, field: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    fn u64(&mut self, field: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    fn count(&mut self, field: &str, max: u64, limit: &str) -> Result<u64> {
        let at = self.at;
        let count = self.u64(field)?;
        // every entry takes at least eight bytes, so a count beyond the file's size is damage whatever the limit is
        if count > max || count > self.bytes.len() as u64 / 8 {
            let what = format!("a count of {count} is beyond the limit of {max} ({limit}) or the file's size");
            return Err(self.fault_at(at, field, what));
        }
        Ok(count)
    }

    fn string_bytes(&mut self, field: &str, max: u64, limit: &str) -> Result<&'a [u8]> {
        let at = self.at;
        let length = self.u64(field)?;
        if length > max {
            let what = format!("a length of {length} bytes is beyond the limit of {max} ({limit})");
            return Err(self.fault_at(at, field, what));
        }
        self.take(length, field)
    }

    /// A metadata key or tensor name: not empty, and UTF-8, since replaced characters could make two names one.
    fn name(&mut self, field: &str) -> Result<String> {
        let at = self.at;
        let bytes = self.string_bytes(field, NAME_BYTES_MAX, "NAME_BYTES_MAX")?;
        match std::str::from_utf8(bytes) {
            Ok("") => Err(self.fault_at(at, field, "the name is empty")),
            Ok(name) => Ok(name.to_owned()),
            Err(e) => Err(self.fault_at(at + 8 + e.valid_up_to(), field, "the name is not UTF-8")),
        }
    }

    /// A text. Tokens may hold any bytes; what is not UTF-8 is kept as replacement characters, as other readers do.
    fn text(&mut self, field: &str) -> Result<String> {
        let bytes = self.string_bytes(field, STRING_BYTES_MAX, "STRING_BYTES_MAX")?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<Value> {
        let field = format!("value of `{}`", key.escape_debug());
        match kind {
            6 => Ok(Value::Float(f32::from_le_bytes(self.array(&field)?).into())),
            12 => Ok(Value::Float(f64::from_le_bytes(self.array(&field)?))),
            7 => Ok(Value::Bool(self.take(1, &field)?[0] != 0)),
            8 => Ok(Value::String(self.text(&field)?)),
            9 => self.array_value(&field),
            _ => match self.integer(&field, kind)? {
                Integer::Unsigned(n) => Ok(Value::Unsigned(n)),
                Integer::Signed(n) => Ok(from_signed(n)),
            },
        }
    }

    fn integer(&mut self, field: &str, kind: u32) -> Result<Integer> {
        Ok(match kind {
            0 => Integer::Unsigned(self.take(1, field)?[0].into()),
            1 => Integer::Signed(i8::from_le_bytes(self.array(field)?).into()),
            2 => Integer::Unsigned(u16::from_le_bytes(self.array(field)?).into()),
            3 => Integer::Signed(i16::from_le_bytes(self.array(field)?).into()),
            4 => Integer::Unsigned(self.u32(field)?.into()),
            5 => Integer::Signed(i32::from_le_bytes(self.array(field)?).into()),
            10 => Integer::Unsigned(self.u64(field)?),
            11 => Integer::Signed(i64::from_le_bytes(self.array(field)?)),
            _ => return Err(self.fault(field, format!("value type {kind} does not exist"))),
        })
    }

    fn array_value(&mut self, field: &str) -> Result<Value> {
        let kind = self.u32(field)?;
        let at = self.at;
        let count = self.u64(field)?;
        let smallest: u64 = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => return Err(self.fault(field, "arrays within arrays are not supported")),
            _ => return Err(self.fault(field, format!("value type {kind} does not exist"))),
        };
        let left = (self.bytes.len() - self.at) as u64;
        if count > ARRAY_ELEMENTS_MAX || count.saturating_mul(smallest) > left {
            let what = format!(
                "an array of {count} elements is beyond the limit of {ARRAY_ELEMENTS_MAX} (ARRAY_ELEMENTS_MAX) or the file's end"
            );
            return Err(self.fault_at(at, field, what));
        }
        let n = 0..count;
        Ok(match kind {
            8 => Value::Strings(n.map(|_| self.text(field)).collect::<Result<_>>()?),
            7 => Value::Bools(n.map(|_| Ok(self.take(1, field)?[0] != 0)).collect::<Result<_>>()?),
            6 => Value::Floats(n.map(|_| Ok(f32::from_le_bytes(self.array(field)?))).collect::<Result<_>>()?),
            12 => Value::Floats(n.map(|_| Ok(f64::from_le_bytes(self.array(field)?) as f32)).collect::<Result<_>>()?),
            _ => Value::Integers(n.map(|_| self.element(field, kind)).collect::<Result<_>>()?),
        })
    }

    fn element(&mut self, field: &str, kind: u32) -> Result<i64> {
        match self.integer(field, kind)? {
            Integer::Signed(n) => Ok(n),
            Integer::Unsigned(n) => {
                i64::try_from(n).map_err(|_| self.fault(field, format!("{n} is beyond what an array may hold")))
            }
        }
    }
}

enum Integer {
    Unsigned(u64),
    Signed(i64),
}

fn from_signed(n: i64) -> Value {
    u64::try_from(n).map_or(Value::Negative(n), Value::Unsigned)
}
