//! What a model file says about its tokens, checked, and the bytes each token stands for.

use super::bpe;
use crate::error::{EngineError, Result};
use crate::gguf::Metadata;
use crate::memory::heap;
use std::collections::HashMap;

/// `tokenizer.ggml.*` as it stands in a file, unchecked. Absent keys are `None`.
#[derive(Debug, Clone, Default)]
pub struct VocabularyData<'a> {
    /// `model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: Option<&'a str>,
    /// `pre`: name of the pre-tokenizer of byte-level BPE.
    pub pre: Option<&'a str>,
    /// `tokens`: texts, by id.
    pub tokens: Option<&'a [String]>,
    /// `scores`: merge priorities of SentencePiece, by id.
    pub scores: Option<&'a [f32]>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; by id.
    pub token_types: Option<Vec<i64>>,
    /// `merges`: `left right`, best first.
    pub merges: Option<&'a [String]>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// Further ids that end a generation: key and value of `eot_token_id`, `eom_token_id` and the FIM separators.
    pub ends: Vec<(&'static str, u32)>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}

const END_KEYS: [&str; 5] =
    ["eot_token_id", "eom_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"];

impl<'a> VocabularyData<'a> {
    /// Reads the keys; an error names the key whose type is wrong.
    pub fn from_metadata(metadata: &'a Metadata) -> Result<Self> {
        let mut ends = Vec::new();
        for key in END_KEYS {
            ends.extend(metadata.u32(&full(key))?.map(|id| (key, id)));
        }
        let token_types = metadata.i64s("tokenizer.ggml.token_type")?;
        Ok(Self {
            model: metadata.str("tokenizer.ggml.model")?,
            pre: metadata.str("tokenizer.ggml.pre")?,
            tokens: metadata.strings("tokenizer.ggml.tokens")?,
            scores: metadata.f32s("tokenizer.ggml.scores")?,
            token_types: token_types.map(|types| types.to_vec()),
            merges: metadata.strings("tokenizer.ggml.merges")?,
            bos: metadata.u32("tokenizer.ggml.bos_token_id")?,
            eos: metadata.u32("tokenizer.ggml.eos_token_id")?,
            unknown: metadata.u32("tokenizer.ggml.unknown_token_id")?,
            ends,
            add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
        })
    }
}

/// The metadata key of a tokenizer setting.
pub fn full(key: &str) -> String {
    format!("tokenizer.ggml.{key}")
}

/// A tokenizer key is absent that this tokenizer cannot do without.
pub fn missing(key: &str) -> EngineError {
    EngineError::model(format!("metadata key `{}` is missing", full(key)))
        .hint("the file carries no complete tokenizer; convert the model again")
}

/// A tokenizer key holds something that does not fit.
pub fn malformed(key: &str, why: impl std::fmt::Display) -> EngineError {
    EngineError::model(format!("metadata key `{}` is malformed: {why}", full(key)))
        .hint("the tokenizer in the file is damaged or of another kind; convert the model again")
}

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for what has no token.
    Unknown,
    /// Steers the model; found in a text only when special tokens are parsed.
    Control,
    /// Found in every text before anything else.
    UserDefined,
    /// Padding of the vocabulary.
    Unused,
    /// One byte, written `<0xXX>`.
    Byte,
}

impl TokenKind {
    fn from_type(value: i64) -> Option<Self> {
        Some(match value {
            // 0 is "undefined", which older converters wrote for every token
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }

    /// Whether the token's text stands for itself, with no encoding of bytes or spaces.
    pub fn is_verbatim(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }
}

/// How texts of normal tokens are written in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextEncoding {
    /// Every byte as one printable character (GPT-2).
    ByteLevel,
    /// Plain text with U+2581 for the space.
    Underscored,
}

/// The tokens of a model: kinds, and the bytes they stand for.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    kinds: Vec<TokenKind>,
    bytes: Vec<u8>,
    /// Where the bytes of each token end.
    ends: Vec<usize>,
    /// Ids that end a generation, ascending.
    eog: Vec<u32>,
}

impl Vocabulary {
    /// About what it takes on the heap, bytes.
    pub fn heap_bytes(&self) -> u64 {
        heap::vec(&self.kinds) + heap::vec(&self.bytes) + heap::vec(&self.ends) + heap::vec(&self.eog)
    }

    /// Checks kinds and ids, and works out the bytes of every token.
    pub fn new(data: &VocabularyData<'_>, tokens: &[String], encoding: TextEncoding) -> Result<Self> {
        let mut kinds = kinds(data, tokens)?;
        for (key, id) in data.ends.iter().copied() {
            in_range(key, id, tokens.len())?;
        }
        let mut eog = Vec::new();
        for ((id, text), kind) in (0u32..).zip(tokens).zip(&mut kinds) {
            // some converters forget to mark them; then a chat would never end
            if ends_generation(text) {
                *kind = TokenKind::Control;
                eog.push(id);
            } else if FILL_IN.contains(&text.as_str()) {
                *kind = TokenKind::Control;
            }
        }
        eog.extend(data.eos);
        eog.extend(data.ends.iter().map(|(_, id)| *id));
        eog.sort_unstable();
        eog.dedup();
        let mut vocabulary = Self { kinds, bytes: Vec::new(), ends: Vec::with_capacity(tokens.len()), eog };
        for (index, text) in tokens.iter().enumerate() {
            match vocabulary.kinds[index] {
                TokenKind::Byte => vocabulary.bytes.push(byte_of(text).ok_or_else(|| {
                    malformed("tokens", format!("entry {index} is a byte token but reads `{text}`, not `<0xXX>`"))
                })?),
                kind if kind.is_verbatim() => vocabulary.bytes.extend_from_slice(text.as_bytes()),
                _ => push_decoded(&mut vocabulary.bytes, text, encoding),
            }
            vocabulary.ends.push(vocabulary.bytes.len());
        }
        Ok(vocabulary)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// The bytes a token stands for; `None` outside the vocabulary.
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        let index = usize::try_from(id).ok()?;
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start..end)
    }

    /// What a token is for; `None` outside the vocabulary.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(usize::try_from(id).ok()?).copied()
    }

    /// Whether a token ends a generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }
}

/// Token texts to ids; of two tokens with the same text the later one counts.
pub fn ids_by_text(tokens: &[String]) -> HashMap<&str, u32> {
    (0u32..).zip(tokens).map(|(id, text)| (text.as_str(), id)).collect()
}

/// Checks that an id lies in the vocabulary.
pub fn in_range(key: &str, id: u32, tokens: usize) -> Result<()> {
    if (id as usize) < tokens {
        return Ok(());
    }
    Err(malformed(key, format!("id {id} is outside the vocabulary of {tokens} tokens")))
}

fn kinds(data: &VocabularyData<'_>, tokens: &[String]) -> Result<Vec<TokenKind>> {
    let Some(types) = &data.token_types else {
        return Ok(vec![TokenKind::Normal; tokens.len()]);
    };
    if types.len() != tokens.len() {
        return Err(malformed("token_type", format!("{} entries for {} tokens", types.len(), tokens.len())));
    }
    let kind = |(index, value): (usize, &i64)| {
        TokenKind::from_type(*value)
            .ok_or_else(|| malformed("token_type", format!("entry {index} is {value}, expected 1 to 6")))
    };
    types.iter().enumerate().map(kind).collect()
}

/// The byte that `<0xXX>` stands for.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn push_decoded(out: &mut Vec<u8>, text: &str, encoding: TextEncoding) {
    for c in text.chars() {
        let byte = match encoding {
            TextEncoding::ByteLevel => bpe::byte_of_char(c),
            TextEncoding::Underscored => (c == '\u{2581}').then_some(b' '),
        };
        match byte {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Whether a token of this text ends a generation, whatever the metadata say: the names that chat templates and
/// fill-in-the-middle formats of published models use, as llama.cpp lists them.
fn ends_generation(text: &str) -> bool {
    const CHAT: [&str; 20] = [
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<eos>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<EOT>",
        "_<EOT>",
        "< EOT>",
        "[EOT]",
        "[EOS]",
        "<｜end▁of▁sentence｜>",
    ];
    const SEPARATORS: [&str; 11] = [
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    ];
    CHAT.contains(&text) || SEPARATORS.contains(&text)
}

/// Tokens that are control tokens by their name, but end nothing: parts of fill-in-the-middle prompts.
const FILL_IN: [&str; 15] = [
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<fim-prefix>",
    "<fim-suffix>",
    "<fim-middle>",
    "<fim_prefix>",
    "<fim_suffix>",
    "<fim_middle>",
    "<PRE>",
    "<SUF>",
    "<MID>",
    "<|code_prefix|>",
    "<|code_suffix|>",
    "<|code_middle|>",
];
