//! Text to tokens and back, with the tokenizer that the model file carries: byte-level BPE (`gpt2`) and SentencePiece
//! (`llama`). Follows llama.cpp token by token, since its tokens are the reference.

mod bpe;
mod sentencepiece;
mod special;
mod split;
mod stream;
#[cfg(test)]
mod tests;
mod unicode;
mod vocabulary;

pub use split::PreTokenizer;
pub use stream::StreamDecoder;
pub use vocabulary::VocabularyData;

use crate::error::Result;
use crate::gguf::Metadata;
use bpe::Bpe;
use sentencepiece::SentencePiece;
use special::{Fragment, SpecialTokens};
use vocabulary::{TextEncoding, TokenKind, Vocabulary, in_range, malformed, missing};

/// Encodes and decodes with the vocabulary of one model. Immutable, so that threads can share it.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    /// Tokens to find in every text: user-defined ones.
    always: SpecialTokens,
    /// Tokens to find where special tokens are parsed: control and unknown ones as well.
    parsed: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    warning: Option<String>,
}

#[derive(Debug, Clone)]
enum Algorithm {
    Bpe(Bpe),
    SentencePiece(SentencePiece),
}

impl Tokenizer {
    /// The tokenizer in a model file's metadata. An unknown pre-tokenizer is replaced by the default one with a warning
    /// on stderr: its tokens are valid for the model, but may be cut otherwise than in training.
    ///
    /// # Errors
    /// A key that is missing, has the wrong type or does not fit the others; the error names it.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let tokenizer = Self::new(&VocabularyData::from_metadata(metadata)?)?;
        if let Some(warning) = tokenizer.warning() {
            crate::talk::talk!("warning: {warning}");
        }
        Ok(tokenizer)
    }

    /// About what it takes on the heap, bytes.
    pub fn heap_bytes(&self) -> u64 {
        let algorithm = match &self.algorithm {
            Algorithm::Bpe(bpe) => bpe.heap_bytes(),
            Algorithm::SentencePiece(pieces) => pieces.heap_bytes(),
        };
        self.vocabulary.heap_bytes() + algorithm + self.always.heap_bytes() + self.parsed.heap_bytes()
    }

    /// The tokenizer for a vocabulary.
    ///
    /// # Errors
    /// As [`Tokenizer::from_metadata`].
    pub fn new(data: &VocabularyData<'_>) -> Result<Self> {
        let model = data.model.ok_or_else(|| missing("model"))?;
        let tokens = data.tokens.ok_or_else(|| missing("tokens"))?;
        // the largest 32-bit number is not an id, see bpe
        if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
            return Err(malformed("tokens", format!("{} entries", tokens.len())));
        }
        let named = [("bos_token_id", data.bos), ("eos_token_id", data.eos), ("unknown_token_id", data.unknown)];
        for (key, id) in named {
            id.map_or(Ok(()), |id| in_range(key, id, tokens.len()))?;
        }
        match model {
            "gpt2" => Self::with_bpe(data, tokens),
            "llama" => Self::with_sentencepiece(data, tokens),
            other => Err(malformed("model", format!("tokenizer `{other}` is not supported, only `gpt2` and `llama`"))),
        }
    }

    fn with_bpe(data: &VocabularyData<'_>, tokens: &[String]) -> Result<Self> {
        let (pre, warning) = match (data.pre, data.pre.and_then(PreTokenizer::from_name)) {
            (_, Some(pre)) => (pre, None),
            (name, None) => {
                let what = name.map_or_else(|| "is missing".to_owned(), |name| format!("names unknown `{name}`"));
                let text =
                    format!("metadata key `tokenizer.ggml.pre` {what}: tokens may differ from those in training");
                (PreTokenizer::Default, Some(text))
            }
        };
        let vocabulary = Vocabulary::new(data, tokens, TextEncoding::ByteLevel)?;
        let bpe = Bpe::new(data, tokens, &vocabulary, pre)?;
        let add_bos = data.add_bos.unwrap_or(pre.adds_bos() && data.bos.is_some());
        let base = Self::assemble(vocabulary, Algorithm::Bpe(bpe), tokens);
        Self { bos: data.bos, eos: data.eos, add_bos, add_eos: data.add_eos.unwrap_or(false), warning, ..base }
            .checked()
    }

    fn with_sentencepiece(data: &VocabularyData<'_>, tokens: &[String]) -> Result<Self> {
        // the ids of the first SentencePiece models, which their files do not always name
        let or_usual = |named: Option<u32>, id: u32| named.or_else(|| in_range("", id, tokens.len()).ok().map(|()| id));
        let (bos, eos) = (or_usual(data.bos, 1), or_usual(data.eos, 2));
        let data = &VocabularyData { eos, ..data.clone() };
        let vocabulary = Vocabulary::new(data, tokens, TextEncoding::Underscored)?;
        let pieces = SentencePiece::new(data, tokens, or_usual(data.unknown, 0))?;
        let base = Self::assemble(vocabulary, Algorithm::SentencePiece(pieces), tokens);
        let add_space_prefix = data.add_space_prefix.unwrap_or(true);
        let add_bos = data.add_bos.unwrap_or(bos.is_some());
        Self { bos, eos, add_bos, add_eos: data.add_eos.unwrap_or(false), add_space_prefix, ..base }.checked()
    }

    fn assemble(vocabulary: Vocabulary, algorithm: Algorithm, tokens: &[String]) -> Self {
        let of_kinds = |kinds: &[TokenKind]| {
            let texts = (0u32..).zip(tokens).map(|(id, text)| (id, text.as_str()));
            SpecialTokens::new(texts.filter(|(id, _)| vocabulary.kind(*id).is_some_and(|kind| kinds.contains(&kind))))
        };
        let always = of_kinds(&[TokenKind::UserDefined]);
        let parsed = of_kinds(&[TokenKind::UserDefined, TokenKind::Control, TokenKind::Unknown]);
        let (bos, eos, warning) = (None, None, None);
        let (add_bos, add_eos, add_space_prefix) = (false, false, false);
        Self { vocabulary, algorithm, always, parsed, bos, eos, add_bos, add_eos, add_space_prefix, warning }
    }

    fn checked(self) -> Result<Self> {
        let pairs = [("add_bos_token", self.add_bos, self.bos), ("add_eos_token", self.add_eos, self.eos)];
        match pairs.iter().find(|(_, add, id)| *add && id.is_none()) {
            Some((key, ..)) => Err(malformed(key, "it is true, but the id of that token is missing")),
            None => Ok(self),
        }
    }

    /// The tokens of a text. `add_special` adds BOS and EOS where the model wants them; `parse_special` reads the texts of
    /// control tokens as those tokens (never do that with text from outside). User-defined tokens are always read.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        let mut out = Vec::new();
        if add_special && self.add_bos {
            out.extend(self.bos);
        }
        let special = if parse_special { &self.parsed } else { &self.always };
        let mut after_token = true;
        for fragment in special.partition(text) {
            match (fragment, &self.algorithm) {
                (Fragment::Token(id), _) => out.push(id),
                (Fragment::Text(text), Algorithm::Bpe(bpe)) => bpe.encode(text, &mut out),
                (Fragment::Text(text), Algorithm::SentencePiece(pieces)) => {
                    pieces.encode(text, self.add_space_prefix && after_token, &mut out);
                }
            }
            after_token = matches!(fragment, Fragment::Token(_));
        }
        if add_special && self.add_eos {
            out.extend(self.eos);
        }
        out
    }

    /// The bytes a token stands for, special ones by their text; `None` for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.vocabulary.bytes(id)
    }

    /// The bytes of a whole text: those of all tokens, without the space that encoding puts before a text and after
    /// special tokens (SentencePiece models that ask for it). Ids outside the vocabulary have no bytes.
    pub fn decode_bytes(&self, ids: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut after_token = true;
        for id in ids {
            let bytes = self.token_bytes(*id).unwrap_or_default();
            let is_text = self.vocabulary.kind(*id).is_some_and(|kind| !kind.is_verbatim());
            let spaced = self.add_space_prefix && after_token && is_text;
            out.extend_from_slice(if spaced { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes });
            after_token = !is_text;
        }
        out
    }

    /// [`Tokenizer::decode_bytes`] as text; what is not UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.decode_bytes(ids)).into_owned()
    }

    /// Number of tokens.
    pub fn vocab_len(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that starts a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether `encode` with `add_special` starts with BOS.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether `encode` with `add_special` ends with EOS.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether a token ends a generation: EOS, end of turn, and their like by id or by name.
    pub fn is_eog(&self, id: u32) -> bool {
        self.vocabulary.is_eog(id)
    }

    /// Whether a token is no part of a text: control and unknown tokens.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.vocabulary.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// What the user should know about the tokenizer in the file, one line.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }
}
