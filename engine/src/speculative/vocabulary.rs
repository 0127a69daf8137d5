//! Whether two models mean the same by a token id.

use crate::error::EngineError;
use crate::tokenizer::Tokenizer;
use std::fmt;

/// The first difference between the vocabularies of a target and its draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VocabularyDifference {
    /// A token stands for other bytes.
    Token {
        /// Its id.
        id: u32,
        /// The target's bytes.
        target: Vec<u8>,
        /// The draft's.
        draft: Vec<u8>,
    },
    /// All tokens that both have are the same, but one of the two has more.
    Size {
        /// The target's tokens.
        target: usize,
        /// The draft's.
        draft: usize,
    },
}

impl fmt::Display for VocabularyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the draft has another vocabulary than the target: ")?;
        match self {
            Self::Token { id, target, draft } => {
                let (target, draft) = (target.escape_ascii(), draft.escape_ascii());
                write!(f, "token {id} is `{target}` to the target and `{draft}` to the draft")
            }
            Self::Size { target, draft } => write!(f, "the target has {target} tokens, the draft {draft}"),
        }
    }
}

impl From<VocabularyDifference> for EngineError {
    fn from(difference: VocabularyDifference) -> Self {
        Self::usage(difference.to_string())
            .hint("a draft is a smaller model of the target's family, with the very same tokenizer")
    }
}

/// Checks that every id stands for the same bytes in both. What ends a generation may differ: only the target is asked.
pub fn compare_vocabularies(target: &Tokenizer, draft: &Tokenizer) -> Result<(), VocabularyDifference> {
    let (target_tokens, draft_tokens) = (target.vocab_len(), draft.vocab_len());
    for id in 0..target_tokens.min(draft_tokens) as u32 {
        let bytes = |tokenizer: &Tokenizer| tokenizer.token_bytes(id).unwrap_or_default().to_vec();
        if target.token_bytes(id) != draft.token_bytes(id) {
            return Err(VocabularyDifference::Token { id, target: bytes(target), draft: bytes(draft) });
        }
    }
    if target_tokens != draft_tokens {
        return Err(VocabularyDifference::Size { target: target_tokens, draft: draft_tokens });
    }
    Ok(())
}
