//! GGUF files, version 2 and 3, little-endian: a checked reader over a memory map, sets of split files as one model, and a
//! writer. Format: the GGUF specification of the ggml project.

mod content;
mod metadata;
mod parse;
mod split;
mod tensor_type;
#[cfg(test)]
mod tests;
mod writer;

pub use content::{MappedFiles, OpenedFile};
pub use metadata::{Metadata, Value};
pub use parse::{
    ALIGNMENT_BYTES_MAX, ARRAY_ELEMENTS_MAX, DIMENSIONS_MAX, ENTRIES_MAX, NAME_BYTES_MAX, STRING_BYTES_MAX, TENSORS_MAX,
};
pub use split::split_set;
pub use tensor_type::TensorType;
pub use writer::{TensorSource, Writer};

use crate::error::{EngineError, Result};
use crate::memory::{self, Locked};
use content::Content;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// How the weights come into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadMode {
    /// Map the file: pages come in as they are touched, are shared, and can be evicted.
    Map,
    /// Read the file into anonymous memory.
    Read,
}

/// Where a tensor lies.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// Its name, for instance `blk.0.attn_q.weight`.
    pub name: String,
    /// Its dimensions; the first one is contiguous (columns).
    pub shape: Vec<u64>,
    /// How its elements are stored.
    pub tensor_type: TensorType,
    file: usize,
    offset: usize,
    bytes: usize,
}

impl TensorInfo {
    /// Length of a row, in elements.
    pub fn cols(&self) -> usize {
        self.shape[0] as usize
    }
    /// Number of rows: the product of all dimensions but the first. Checked against the file's size on opening.
    pub fn rows(&self) -> usize {
        self.shape[1..].iter().product::<u64>() as usize
    }
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
    /// Size in bytes, as stored.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// An opened model: one file, or a split set as one.
pub struct Gguf {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    paths: Vec<PathBuf>,
    contents: Vec<Content>,
}

impl Gguf {
    /// Opens a file. A name that ends in `-00001-of-000NN.gguf` (or any other number of a set) opens the whole set, whose
    /// files, counts and tensor names are checked against each other.
    ///
    /// # Errors
    /// A file that is missing, cut short or malformed; each error names the file, the field and the offset.
    pub fn open(path: &Path, mode: LoadMode) -> Result<Self> {
        Self::open_with(path, mode, &|_| {})
    }

    /// As [`Gguf::open`]; `progress` hears how many bytes have been read so far where files are read, on any thread.
    pub fn open_with(path: &Path, mode: LoadMode, progress: &(dyn Fn(u64) + Sync)) -> Result<Self> {
        let paths = split_set(path)?;
        let mut contents = Vec::with_capacity(paths.len());
        let mut headers = Vec::with_capacity(paths.len());
        let mut before = 0;
        for path in &paths {
            let content = Content::open(path, mode, &|done| progress(before + done))?;
            before += content.bytes().len() as u64;
            let header = parse::header(content.bytes()).map_err(|e| in_file(e, path))?;
            headers.push(header);
            contents.push(content);
        }
        split::check(&paths, &headers)?;
        let mut gguf = Self { metadata: Metadata::new(), tensors: Vec::new(), index: HashMap::new(), paths, contents };
        for (file, header) in headers.into_iter().enumerate() {
            if file == 0 {
                gguf.metadata = header.metadata;
            }
            for tensor in header.tensors {
                gguf.add(file, tensor)?;
            }
        }
        Ok(gguf)
    }

    /// Reads one whole file that is in memory already; nothing is looked for beside it.
    ///
    /// # Errors
    /// As [`Gguf::open`], for a file of the name `memory`; a file of a larger set is refused.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        let paths = vec![PathBuf::from("memory")];
        let header = parse::header(&bytes).map_err(|e| in_file(e, &paths[0]))?;
        split::check(&paths, std::slice::from_ref(&header))?;
        let contents = vec![Content::given(bytes)];
        let parse::Header { metadata, tensors } = header;
        let mut gguf = Self { metadata, tensors: Vec::new(), index: HashMap::new(), paths, contents };
        for tensor in tensors {
            gguf.add(0, tensor)?;
        }
        Ok(gguf)
    }

    fn add(&mut self, file: usize, header: parse::TensorHeader) -> Result<()> {
        let parse::TensorHeader { name, shape, tensor_type, offset, bytes } = header;
        if self.index.insert(name.clone(), self.tensors.len()).is_some() {
            return Err(in_file(
                EngineError::model(format!("tensor `{}` stands in two files of the set", name.escape_debug())),
                &self.paths[file],
            ));
        }
        self.tensors.push(TensorInfo { name, shape, tensor_type, file, offset, bytes });
        Ok(())
    }

    /// Metadata; of a split set, the first file's.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }
    /// A tensor's bytes, row by row.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        &self.contents[tensor.file].bytes()[tensor.offset..tensor.offset + tensor.bytes]
    }
    /// The files, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.paths
    }
    /// What each file was when it was opened, in order.
    pub fn opened(&self) -> impl Iterator<Item = Option<OpenedFile>> {
        self.contents.iter().map(Content::opened)
    }
    /// sha256 of each file's bytes as they are in use here, in order, in lower-case hex. Hashed once in a process for a
    /// file that has not changed since.
    pub fn sha256(&self) -> Vec<String> {
        self.contents.iter().map(Content::sha256).collect()
    }
    /// Bytes of files that are mapped.
    pub fn mapped_bytes(&self) -> u64 {
        self.contents.iter().filter(|c| c.is_mapped()).map(|c| c.bytes().len() as u64).sum()
    }
    /// Bytes of files that were read into anonymous memory.
    pub fn anonymous_bytes(&self) -> u64 {
        self.file_bytes() - self.mapped_bytes()
    }
    /// Brings what is mapped into memory; `progress` hears how many bytes are done so far.
    pub fn page_in(&self, progress: &(dyn Fn(u64) + Sync)) {
        content::page_in(&self.contents, progress);
    }
    /// Keeps all files from being evicted or swapped, as far as the system allows.
    pub fn lock(&self) -> Locked {
        self.contents.iter().map(|content| memory::lock(content.bytes())).fold(Locked::default(), Locked::and)
    }
    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.contents.iter().map(|c| c.bytes().len() as u64).sum()
    }
    /// Bytes of all tensors.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes as u64).sum()
    }
    /// Number of elements of all tensors.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(TensorInfo::elements).sum()
    }
    /// The weight type that most bytes are stored in.
    pub fn main_type(&self) -> Option<TensorType> {
        let mut bytes: HashMap<TensorType, usize> = HashMap::new();
        for tensor in &self.tensors {
            *bytes.entry(tensor.tensor_type).or_default() += tensor.bytes;
        }
        bytes.into_iter().max_by_key(|&(tensor_type, bytes)| (bytes, tensor_type)).map(|(tensor_type, _)| tensor_type)
    }
}

/// Puts the file's name before the place within it.
fn in_file(error: EngineError, path: &Path) -> EngineError {
    let place = match error.place() {
        Some(place) => format!("{}, {place}", path.display()),
        None => path.display().to_string(),
    };
    error.at(place)
}
