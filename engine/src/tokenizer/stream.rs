//! Text from tokens as they come: a character is shown once all its bytes are there.

use super::Tokenizer;

/// Decodes a stream of tokens. All strings it hands out, joined, are what `String::from_utf8_lossy` makes of all bytes of
/// all tokens: no byte is lost, no character is torn, and what is not UTF-8 becomes U+FFFD.
///
/// Special tokens appear as their text. No leading space is taken off (unlike [`Tokenizer::decode`]): the tokens are
/// taken to continue a text.
#[derive(Debug, Clone)]
pub struct StreamDecoder<'t> {
    tokenizer: &'t Tokenizer,
    pending: Vec<u8>,
}

impl<'t> StreamDecoder<'t> {
    /// A decoder at the start of a stream.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, pending: Vec::new() }
    }

    /// The text that one more token completes, perhaps empty. An id outside the vocabulary has no bytes.
    pub fn push(&mut self, id: u32) -> String {
        self.push_bytes(self.tokenizer.token_bytes(id).unwrap_or_default())
    }

    /// The end of the stream: an unfinished character becomes U+FFFD. The decoder can then start another stream.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut out = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let at_end = done + invalid.len() == self.pending.len();
            if at_end && is_unfinished(invalid) {
                break;
            }
            out.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.pending.drain(..done);
        out
    }
}

/// Whether more bytes could still make these a character.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
