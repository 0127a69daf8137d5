//! What of a conversation is kept in the KV cache, as command lines, plans and proofs say it.

use crate::error::{EngineError, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What of a conversation the KV cache keeps; as text `full`, `window:N` or `sink:S+N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KvPolicy {
    /// Everything, up to the context.
    #[default]
    Full,
    /// The last positions only; there is no limit to the conversation.
    Window {
        /// Positions seen, the token's own included.
        last_tokens: usize,
    },
    /// The first positions, on which models lean whatever they say, and the last ones.
    Sink {
        /// Positions seen from the start.
        first_tokens: usize,
        /// Positions seen at the end, the token's own included.
        last_tokens: usize,
    },
}

impl KvPolicy {
    /// Positions that are kept at least; 0 where the context alone decides.
    pub fn kept_tokens(self) -> usize {
        match self {
            Self::Full => 0,
            Self::Window { last_tokens } => last_tokens,
            Self::Sink { first_tokens, last_tokens } => first_tokens.saturating_add(last_tokens),
        }
    }
}

impl FromStr for KvPolicy {
    type Err = EngineError;

    /// `full`, `window:N` or `sink:S+N`.
    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| text.parse::<u32>().ok().map(|n| n as usize);
        let parsed = match text.split_once(':') {
            None if text == "full" => Some(Self::Full),
            Some(("window", last)) => number(last).map(|last_tokens| Self::Window { last_tokens }),
            Some(("sink", both)) => both.split_once('+').and_then(|(first, last)| {
                Some(Self::Sink { first_tokens: number(first)?, last_tokens: number(last)? })
            }),
            _ => None,
        };
        parsed.ok_or_else(|| {
            EngineError::usage(format!("unknown kv policy `{text}`"))
                .hint("known: full, window:N, sink:S+N, with numbers of positions")
        })
    }
}

impl fmt::Display for KvPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("full"),
            Self::Window { last_tokens } => write!(f, "window:{last_tokens}"),
            Self::Sink { first_tokens, last_tokens } => write!(f, "sink:{first_tokens}+{last_tokens}"),
        }
    }
}

impl TryFrom<String> for KvPolicy {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse().map_err(|e: EngineError| match e.hint_text() {
            Some(hint) => format!("{}; {hint}", e.what()),
            None => e.what().to_owned(),
        })
    }
}

impl From<KvPolicy> for String {
    fn from(policy: KvPolicy) -> Self {
        policy.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_survives_its_own_text_and_others_are_refused_with_what_is_known() {
        for text in ["full", "window:64", "sink:4+1020"] {
            let policy: KvPolicy = text.parse().unwrap();
            assert_eq!(policy.to_string(), text);
            let json = serde_json::to_string(&policy).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<KvPolicy>(&json).unwrap(), policy);
        }
        assert_eq!("sink:4+1020".parse::<KvPolicy>().unwrap().kept_tokens(), 1024);
        let refused = serde_json::from_str::<KvPolicy>("\"ring:3\"").unwrap_err().to_string();
        assert!(refused.contains("unknown kv policy `ring:3`") && refused.contains("known: full"), "{refused}");
    }
}
