//! Writes GGUF version 3. Tensor data may come from a closure, so that a model of many gigabytes takes no memory.

use super::{ALIGNMENT_BYTES_MAX, Metadata, TensorType, Value};
use crate::error::{EngineError, Result};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Alignment of tensor data where the metadata does not ask for another, bytes; the format's default.
const ALIGNMENT_BYTES: u64 = 32;

/// Produces a tensor's bytes: called once, writes exactly the tensor's size.
pub type TensorSource<'a> = Box<dyn FnOnce(&mut dyn Write) -> std::io::Result<()> + 'a>;

struct Pending<'a> {
    name: String,
    shape: Vec<u64>,
    tensor_type: TensorType,
    bytes: u64,
    source: TensorSource<'a>,
}

/// Collects metadata and tensors, then writes them as one file.
pub struct Writer<'a> {
    metadata: Metadata,
    tensors: Vec<Pending<'a>>,
}

impl<'a> Writer<'a> {
    /// A writer with this metadata.
    pub fn new(metadata: Metadata) -> Self {
        Self { metadata, tensors: Vec::new() }
    }

    /// Adds a tensor of shape `shape` (first dimension contiguous) whose bytes come from `source`.
    ///
    /// # Errors
    /// The first dimension is no whole number of blocks of the type, or the size overflows.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        shape: &[u64],
        tensor_type: TensorType,
        source: TensorSource<'a>,
    ) -> Result<()> {
        let name = name.into();
        let row = shape.first().and_then(|&cols| tensor_type.row_bytes(usize::try_from(cols).ok()?));
        let rows = shape.iter().skip(1).try_fold(1u64, |product, n| product.checked_mul(*n));
        let bytes = row.zip(rows).and_then(|(row, rows)| rows.checked_mul(row as u64)).ok_or_else(|| {
            EngineError::usage(format!("tensor `{name}` of shape {shape:?} is no whole number of {tensor_type} blocks"))
        })?;
        self.tensors.push(Pending { name, shape: shape.to_vec(), tensor_type, bytes, source });
        Ok(())
    }

    /// Adds a tensor whose bytes are at hand.
    ///
    /// # Errors
    /// As [`Writer::tensor`], and when the number of bytes is not the one that shape and type ask for.
    pub fn tensor_bytes(
        &mut self,
        name: impl Into<String>,
        shape: &[u64],
        tensor_type: TensorType,
        bytes: Vec<u8>,
    ) -> Result<()> {
        let length = bytes.len() as u64;
        self.tensor(name, shape, tensor_type, Box::new(move |out| out.write_all(&bytes)))?;
        match self.tensors.last() {
            Some(last) if last.bytes != length => {
                Err(EngineError::usage(format!("tensor `{}` needs {} bytes, got {length}", last.name, last.bytes)))
            }
            _ => Ok(()),
        }
    }

    /// Writes the file: whole under a temporary name beside it, then renamed, so that `path` is never half a model.
    ///
    /// # Errors
    /// `general.alignment` is no possible alignment, two tensors have one name, or the file cannot be written.
    pub fn write(self, path: &Path) -> Result<()> {
        let alignment = self.alignment()?;
        let mut names = HashSet::new();
        if let Some(twice) = self.tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
            return Err(EngineError::usage(format!("tensor `{}` was added twice", twice.name)));
        }
        let temporary = temporary_beside(path);
        let fault = |e: &std::io::Error| {
            EngineError::io("cannot write the model", e)
                .at(path.display().to_string())
                .hint("check free space and rights of the folder")
        };
        let written = File::create(&temporary).and_then(|file| {
            let mut out = Counted { inner: BufWriter::with_capacity(1 << 20, file), bytes: 0 };
            self.write_to(&mut out, alignment)?;
            out.inner.flush()?;
            out.inner.get_ref().sync_all()
        });
        if let Err(error) = written.and_then(|()| std::fs::rename(&temporary, path)) {
            let _ = std::fs::remove_file(&temporary);
            return Err(fault(&error));
        }
        Ok(())
    }

    fn alignment(&self) -> Result<u64> {
        let alignment = self.metadata.u64("general.alignment")?.unwrap_or(ALIGNMENT_BYTES);
        if alignment.is_power_of_two() && alignment <= ALIGNMENT_BYTES_MAX {
            return Ok(alignment);
        }
        Err(EngineError::usage(format!("alignment {alignment} is not a power of two up to {ALIGNMENT_BYTES_MAX}")))
    }

    fn write_to(self, out: &mut Counted<impl Write>, alignment: u64) -> std::io::Result<()> {
        out.write_all(b"GGUF")?;
        out.write_all(&3u32.to_le_bytes())?;
        out.write_all(&(self.tensors.len() as u64).to_le_bytes())?;
        out.write_all(&(self.metadata.iter().count() as u64).to_le_bytes())?;
        for (key, value) in self.metadata.iter() {
            write_string(out, key)?;
            write_value(out, value)?;
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            write_string(out, &tensor.name)?;
            out.write_all(&(tensor.shape.len() as u32).to_le_bytes())?;
            for dimension in &tensor.shape {
                out.write_all(&dimension.to_le_bytes())?;
            }
            out.write_all(&tensor.tensor_type.id().to_le_bytes())?;
            out.write_all(&offset.to_le_bytes())?;
            offset += tensor.bytes.next_multiple_of(alignment);
        }
        out.pad(alignment)?;
        for tensor in self.tensors {
            let before = out.bytes;
            (tensor.source)(out)?;
            if out.bytes - before != tensor.bytes {
                return Err(std::io::Error::other(format!(
                    "tensor `{}` wrote {} bytes instead of {}",
                    tensor.name,
                    out.bytes - before,
                    tensor.bytes
                )));
            }
            out.pad(alignment)?;
        }
        Ok(())
    }
}

fn temporary_beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

struct Counted<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Counted<W> {
    fn pad(&mut self, alignment: u64) -> std::io::Result<()> {
        let gap = (self.bytes.next_multiple_of(alignment) - self.bytes) as usize;
        self.write_all(&vec![0; gap])
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.bytes += n as u64;
        Ok(n)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

fn write_string(out: &mut impl Write, text: &str) -> std::io::Result<()> {
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(text.as_bytes())
}

/// Integers are written in the smallest signed or unsigned width of 32 or 64 bits, as usual readers expect.
fn write_value(out: &mut impl Write, value: &Value) -> std::io::Result<()> {
    let kind = |out: &mut dyn Write, n: u32| out.write_all(&n.to_le_bytes());
    let array = |out: &mut dyn Write, n: u32, count: usize| -> std::io::Result<()> {
        kind(out, 9)?;
        kind(out, n)?;
        out.write_all(&(count as u64).to_le_bytes())
    };
    match value {
        Value::Unsigned(n) => match u32::try_from(*n) {
            Ok(n) => kind(out, 4).and_then(|()| out.write_all(&n.to_le_bytes())),
            Err(_) => kind(out, 10).and_then(|()| out.write_all(&n.to_le_bytes())),
        },
        Value::Negative(n) => kind(out, 11).and_then(|()| out.write_all(&n.to_le_bytes())),
        Value::Float(x) => kind(out, 6).and_then(|()| out.write_all(&(*x as f32).to_le_bytes())),
        Value::Bool(b) => kind(out, 7).and_then(|()| out.write_all(&[u8::from(*b)])),
        Value::String(text) => kind(out, 8).and_then(|()| write_string(out, text)),
        Value::Strings(texts) => {
            array(out, 8, texts.len())?;
            texts.iter().try_for_each(|text| write_string(out, text))
        }
        Value::Floats(values) => {
            array(out, 6, values.len())?;
            values.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))
        }
        Value::Bools(values) => {
            array(out, 7, values.len())?;
            values.iter().try_for_each(|b| out.write_all(&[u8::from(*b)]))
        }
        Value::Integers(values) => {
            match values.iter().map(|n| i32::try_from(*n)).collect::<std::result::Result<Vec<i32>, _>>() {
                Ok(small) => {
                    array(out, 5, small.len())?;
                    small.iter().try_for_each(|n| out.write_all(&n.to_le_bytes()))
                }
                Err(_) => {
                    array(out, 11, values.len())?;
                    values.iter().try_for_each(|n| out.write_all(&n.to_le_bytes()))
                }
            }
        }
    }
}
