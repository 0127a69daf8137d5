//! The engine's one error type: what went wrong, where, and what to try.

use std::fmt;

/// What class of fault an [`EngineError`] is; it decides `farmhand`'s exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself cannot be carried out as typed (exit code 2).
    Usage,
    /// A model file is malformed, unsupported or incomplete (exit code 2).
    Model,
    /// The operating system refused: files, memory, processes (exit code 5).
    System,
    /// A journal or plan does not follow the protocol (exit code 2).
    Protocol,
    /// Another owner holds the device, or a stale token was shown (exit code 6).
    Lease,
    /// Something that cannot happen did (exit code 70).
    Bug,
}

/// An error with its place and a hint. `Display` prints `what`, then ` (place)`, then the hint on a line of its own
/// after a blank line, in lower case and without a full stop.
#[derive(Debug, Clone)]
pub struct EngineError {
    kind: ErrorKind,
    what: String,
    place: Option<String>,
    hint: Option<String>,
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, EngineError>;

impl EngineError {
    /// A new error of the given class.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), place: None, hint: None }
    }
    /// A request that cannot be carried out as typed.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, what)
    }
    /// A model file that cannot be used.
    pub fn model(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Model, what)
    }
    /// The operating system refused something.
    pub fn system(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::System, what)
    }
    /// A plan or journal that breaks the protocol.
    pub fn protocol(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, what)
    }
    /// An operating-system error together with what was being done.
    pub fn io(doing: impl Into<String>, source: &std::io::Error) -> Self {
        Self::new(ErrorKind::System, format!("{}: {source}", doing.into()))
    }
    /// Adds where it happened, for instance `model.gguf, byte 1024, field tensor_count`.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }
    /// Adds what to try.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// The class of fault.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
    /// What went wrong, without place and hint.
    pub fn what(&self) -> &str {
        &self.what
    }
    /// Where it went wrong.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }
    /// What to try.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
    /// `farmhand`'s exit code for this class.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            ErrorKind::Usage | ErrorKind::Model | ErrorKind::Protocol => 2,
            ErrorKind::System => 5,
            ErrorKind::Lease => 6,
            ErrorKind::Bug => 70,
        }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(place) = &self.place {
            write!(f, " ({place})")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for EngineError {}
