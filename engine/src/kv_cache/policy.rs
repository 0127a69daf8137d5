//! What of the past is kept and seen.

use crate::error::{EngineError, Result};
use crate::protocol::KvPolicy;
use std::ops::Range;

impl KvPolicy {
    /// Usage errors for a policy that keeps nothing, or more than the context.
    pub fn check(self, context_tokens: usize) -> Result<()> {
        let (first, last) = match self {
            Self::Full => return Ok(()),
            Self::Window { last_tokens } => (0, last_tokens),
            Self::Sink { first_tokens, last_tokens } => (first_tokens, last_tokens),
        };
        if last == 0 {
            return Err(EngineError::usage("a window of 0 positions sees nothing").hint("ask for at least 1"));
        }
        if first.saturating_add(last) > context_tokens {
            return Err(EngineError::usage(format!(
                "a kv policy that keeps {first} + {last} positions does not fit a context of {context_tokens}"
            ))
            .hint("ask for a larger context, or keep fewer positions"));
        }
        Ok(())
    }

    /// What a token sees in a layer with that window of its own. Such a layer has no use for the first positions, which
    /// its window leaves behind anyway.
    pub fn span(self, window: Option<usize>) -> Span {
        let (first, last) = match self {
            Self::Full => (0, usize::MAX),
            Self::Window { last_tokens } => (0, last_tokens),
            Self::Sink { first_tokens, last_tokens } => (first_tokens, last_tokens),
        };
        match window {
            None => Span { first, last },
            Some(window) => Span { first: 0, last: last.min(window) },
        }
    }
}

/// What a token sees of the past: the first positions and the last ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Positions seen from the start.
    pub first: usize,
    /// Positions seen at the end, the token's own included.
    pub last: usize,
}

impl Span {
    /// Everything.
    pub const ALL: Self = Self { first: 0, last: usize::MAX };

    /// Positions that the token at `position` sees: those at the start, empty when they adjoin the others, and the last.
    pub fn visible(self, position: usize) -> [Range<usize>; 2] {
        let end = position + 1;
        let start = end.saturating_sub(self.last);
        if start <= self.first { [0..0, 0..end] } else { [0..self.first, start..end] }
    }
}
