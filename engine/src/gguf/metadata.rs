//! Key-value metadata with typed access: a value of another type than asked for is an error that names the key.

use crate::error::{EngineError, Result};
use crate::memory::heap;

/// One metadata value. Arrays are of one type and are not nested.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer, and any signed one that is not negative.
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    /// Single or double precision.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Strings.
    Strings(Vec<String>),
    /// Integers of any width.
    Integers(Vec<i64>),
    /// Floats of either width.
    Floats(Vec<f32>),
    /// Booleans.
    Bools(Vec<bool>),
}

impl Value {
    /// What kind of value it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) => "an unsigned integer",
            Self::Negative(_) => "a negative integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::String(_) => "a string",
            Self::Strings(_) => "an array of strings",
            Self::Integers(_) => "an array of integers",
            Self::Floats(_) => "an array of floats",
            Self::Bools(_) => "an array of booleans",
        }
    }

    /// The elements of an array of integers or booleans (1 and 0).
    pub fn integers(&self) -> Option<Vec<i64>> {
        match self {
            Self::Integers(values) => Some(values.clone()),
            Self::Bools(values) => Some(values.iter().map(|b| i64::from(*b)).collect()),
            _ => None,
        }
    }
}

/// All metadata of a model, in file order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: std::collections::HashMap<String, usize>,
}

impl Metadata {
    /// Empty metadata, to be filled with [`Metadata::set`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key; an older value is replaced.
    pub fn set(&mut self, key: impl Into<String>, value: Value) {
        let key = key.into();
        match self.index.get(&key) {
            Some(&at) => self.entries[at].1 = value,
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
            }
        }
    }

    /// About what all of it takes on the heap, bytes.
    pub fn heap_bytes(&self) -> u64 {
        let texts =
            |texts: &Vec<String>| heap::vec(texts) + texts.iter().map(|t| heap::block(t.capacity())).sum::<u64>();
        let of_entry = |(key, value): &(String, Value)| {
            2 * heap::block(key.len())
                + match value {
                    Value::String(text) => heap::block(text.capacity()),
                    Value::Strings(values) => texts(values),
                    Value::Integers(values) => heap::vec(values),
                    Value::Floats(values) => heap::vec(values),
                    Value::Bools(values) => heap::vec(values),
                    Value::Unsigned(_) | Value::Negative(_) | Value::Float(_) | Value::Bool(_) => 0,
                }
        };
        heap::vec(&self.entries) + heap::map(&self.index) + self.entries.iter().map(of_entry).sum::<u64>()
    }

    /// The value of a key, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// All keys and values, in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// An unsigned integer.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an unsigned integer", |value| match value {
            Value::Unsigned(n) => Some(*n),
            _ => None,
        })
    }

    /// An unsigned integer of 32 bits.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "an unsigned integer of 32 bits", |value| match value {
            Value::Unsigned(n) => u32::try_from(*n).ok(),
            _ => None,
        })
    }

    /// A finite float; integers convert.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a finite float", |value| match value {
            Value::Float(x) => Some(*x as f32).filter(|x| x.is_finite()),
            Value::Unsigned(n) => Some(*n as f32),
            Value::Negative(n) => Some(*n as f32),
            _ => None,
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a boolean", |value| match value {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Strings(v) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of floats.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>> {
        self.typed(key, "an array of floats", |value| match value {
            Value::Floats(v) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of integers.
    pub fn i64s(&self, key: &str) -> Result<Option<&[i64]>> {
        self.typed(key, "an array of integers", |value| match value {
            Value::Integers(v) => Some(v.as_slice()),
            _ => None,
        })
    }

    fn typed<'a, T>(&'a self, key: &str, wanted: &str, pick: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => pick(value).map(Some).ok_or_else(|| {
                EngineError::model(format!("metadata key `{key}` is {}, expected {wanted}", value.kind())).hint(
                    "the file was written by a tool that this engine does not understand; convert the model again",
                )
            }),
        }
    }
}
