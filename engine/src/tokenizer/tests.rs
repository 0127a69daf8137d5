//! The tokenizer on small vocabularies made here: round trips, special tokens, malformed metadata.

use super::*;
use proptest::prelude::*;

/// The 256 byte tokens of a byte-level vocabulary, by byte, then some merged and special ones.
struct Made {
    tokens: Vec<String>,
    types: Vec<i64>,
    merges: Vec<String>,
    scores: Vec<f32>,
}

impl Made {
    fn data(&self, model: &'static str) -> VocabularyData<'_> {
        VocabularyData {
            model: Some(model),
            pre: Some("qwen2"),
            tokens: Some(&self.tokens),
            token_types: Some(self.types.clone()),
            merges: Some(&self.merges),
            scores: Some(&self.scores),
            ..VocabularyData::default()
        }
    }

    fn add(&mut self, text: &str, kind: i64, score: f32) {
        self.tokens.push(text.to_owned());
        self.types.push(kind);
        self.scores.push(score);
    }
}

const IM_END: u32 = 260;
const CONTROL: u32 = 261;
const USER: u32 = 262;

fn byte_level() -> Made {
    let mut made = Made { tokens: Vec::new(), types: Vec::new(), merges: Vec::new(), scores: Vec::new() };
    let mut chars: Vec<(u8, char)> =
        ('\0'..='\u{2ff}').filter_map(|c| bpe::byte_of_char(c).map(|byte| (byte, c))).collect();
    chars.sort_unstable();
    for (_, c) in chars {
        made.add(&c.to_string(), 1, 0.0);
    }
    for (left, right) in [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "hell")] {
        made.merges.push(format!("{left} {right}"));
        made.add(&format!("{left}{right}"), 1, 0.0);
    }
    made.add("<|im_end|>", 1, 0.0);
    made.add("<|ctrl|>", 3, 0.0);
    made.add("<user>", 4, 0.0);
    made
}

/// `<unk> <s> </s>`, 256 byte tokens, then pieces.
fn pieces() -> Made {
    let mut made = Made { tokens: Vec::new(), types: Vec::new(), merges: Vec::new(), scores: Vec::new() };
    for (text, kind) in [("<unk>", 2), ("<s>", 3), ("</s>", 3)] {
        made.add(text, kind, 0.0);
    }
    for byte in 0..=255u8 {
        made.add(&format!("<0x{byte:02X}>"), 6, 0.0);
    }
    for (text, score) in [("▁", -1.0), ("h", -2.0), ("i", -3.0), ("hi", -4.0), ("▁hi", -5.0), ("é", -6.0)] {
        made.add(text, 1, score);
    }
    made.add("<user>", 4, 0.0);
    made
}

fn refused(data: &VocabularyData<'_>, key: &str) {
    let error = Tokenizer::new(data).expect_err("malformed");
    assert!(error.what().contains(&format!("`tokenizer.ggml.{key}`")), "{key}: {error}");
    assert!(error.hint_text().is_some());
}

#[test]
fn merges_apply_in_the_order_of_their_rank() {
    let made = byte_level();
    let tokenizer = Tokenizer::new(&made.data("gpt2")).expect("valid");
    assert_eq!(tokenizer.encode(" hello hell", true, false), [259, u32::from(b'o'), 259]);
    assert_eq!(tokenizer.encode("lllhe", true, false), [257, u32::from(b'l'), 256]);
    assert_eq!(tokenizer.token_bytes(259), Some(&b" hell"[..]));
    assert_eq!(tokenizer.token_bytes(263), None);
    assert_eq!(tokenizer.vocab_len(), 263);
}

#[test]
fn control_tokens_are_read_on_request_and_user_defined_ones_always() {
    let made = byte_level();
    let tokenizer = Tokenizer::new(&made.data("gpt2")).expect("valid");
    assert_eq!(tokenizer.encode("<user><|ctrl|>", true, true), [USER, CONTROL]);
    let plain = tokenizer.encode("<user><|ctrl|>", true, false);
    assert_eq!(plain[0], USER);
    assert!(!plain.contains(&CONTROL));
    assert_eq!(tokenizer.decode(&plain), "<user><|ctrl|>");
    assert_eq!(tokenizer.decode(&[USER, CONTROL]), "<user><|ctrl|>");
    assert!(tokenizer.is_special(CONTROL) && !tokenizer.is_special(USER));
}

#[test]
fn tokens_that_end_a_generation_are_known_by_id_and_by_name() {
    let made = byte_level();
    let data = VocabularyData { eos: Some(5), ends: vec![("eot_token_id", CONTROL)], ..made.data("gpt2") };
    let tokenizer = Tokenizer::new(&data).expect("valid");
    let found: Vec<u32> = (0..300).filter(|id| tokenizer.is_eog(*id)).collect();
    assert_eq!(found, [5, IM_END, CONTROL]);
    // typed as normal in the file, yet a control token by its name
    assert_eq!(tokenizer.encode("<|im_end|>", true, true), [IM_END]);
    assert_ne!(tokenizer.encode("<|im_end|>", true, false), [IM_END]);
}

#[test]
fn bos_and_eos_are_added_as_the_metadata_say() {
    let made = byte_level();
    let with = |add_bos, add_eos, bos| VocabularyData { add_bos, add_eos, bos, eos: Some(2), ..made.data("gpt2") };
    let a = u32::from(b'a');
    let encode = |data: &VocabularyData<'_>, special| Tokenizer::new(data).expect("valid").encode("a", special, false);
    assert_eq!(encode(&with(None, None, Some(1)), true), [a]);
    assert_eq!(encode(&with(Some(true), Some(true), Some(1)), true), [1, a, 2]);
    assert_eq!(encode(&with(Some(true), Some(true), Some(1)), false), [a]);
    let llama = |add_bos| VocabularyData { pre: Some("llama-bpe"), ..with(add_bos, None, Some(1)) };
    assert_eq!(encode(&llama(None), true), [1, a]);
    assert_eq!(encode(&llama(Some(false)), true), [a]);
    refused(&with(Some(true), None, None), "add_bos_token");
    let spm = pieces();
    let tokenizer = Tokenizer::new(&spm.data("llama")).expect("valid");
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos(), tokenizer.add_eos()),
        (Some(1), Some(2), true, false)
    );
}

#[test]
fn llama_bpe_takes_a_whole_piece_before_any_merge() {
    let mut made = byte_level();
    made.add("hello", 1, 0.0);
    let with = |pre| VocabularyData { pre: Some(pre), ..made.data("gpt2") };
    assert_eq!(Tokenizer::new(&with("llama-bpe")).expect("valid").encode("hello", false, false), [263]);
    assert_eq!(Tokenizer::new(&with("qwen2")).expect("valid").encode("hello", false, false).len(), 2);
}

#[test]
fn an_unknown_pre_tokenizer_gives_a_warning_that_names_it() {
    let made = byte_level();
    let with = |pre| Tokenizer::new(&VocabularyData { pre, ..made.data("gpt2") }).expect("valid");
    assert!(with(Some("brand-new")).warning().is_some_and(|w| w.contains("`brand-new`")));
    assert!(with(None).warning().is_some());
    assert_eq!(with(Some("default")).warning(), None);
}

#[test]
fn sentencepiece_puts_a_space_before_each_stretch_of_text_and_takes_it_off_again() {
    let made = pieces();
    let (hi, user, e) = (263, 265, 264);
    let tokenizer = Tokenizer::new(&made.data("llama")).expect("valid");
    let ids = tokenizer.encode("hi hi<user>hi</s>é", true, true);
    assert_eq!(ids, [1, hi, hi, user, hi, 2, 259, e]);
    assert_eq!(tokenizer.decode(&ids), "<s>hi hi<user>hi</s>é");
    let bare = VocabularyData { add_space_prefix: Some(false), ..made.data("llama") };
    let ids = Tokenizer::new(&bare).expect("valid").encode("hi hi", false, false);
    assert_eq!(ids, [262, hi]);
    assert!(tokenizer.encode("", false, false).is_empty());
}

#[test]
fn sentencepiece_spells_unknown_characters_in_bytes() {
    let made = pieces();
    let data = VocabularyData { add_space_prefix: Some(false), ..made.data("llama") };
    let tokenizer = Tokenizer::new(&data).expect("valid");
    assert_eq!(tokenizer.encode("€", false, false), [3 + 0xe2, 3 + 0x82, 3 + 0xac]);
    assert_eq!(tokenizer.decode(&[3 + 0xe2, 3 + 0x82]), "\u{fffd}");
}

#[test]
fn malformed_metadata_is_refused_by_the_name_of_the_key() {
    let made = byte_level();
    let good = || made.data("gpt2");
    let none: &[String] = &[];
    refused(&VocabularyData { model: None, ..good() }, "model");
    refused(&VocabularyData { model: Some("bert"), ..good() }, "model");
    refused(&VocabularyData { tokens: None, ..good() }, "tokens");
    refused(&VocabularyData { tokens: Some(none), ..good() }, "tokens");
    refused(&VocabularyData { merges: None, ..good() }, "merges");
    for rule in ["he", "h", "", "h zz", "zz h", "a b", " ab", "h e "] {
        let merges = [rule.to_owned()];
        refused(&VocabularyData { merges: Some(&merges), ..good() }, "merges");
    }
    refused(&VocabularyData { token_types: Some(vec![1; 3]), ..good() }, "token_type");
    refused(&VocabularyData { token_types: Some(vec![-1; 263]), ..good() }, "token_type");
    // byte tokens are written `<0xXX>`
    refused(&VocabularyData { token_types: Some(vec![6; 263]), ..good() }, "tokens");
    refused(&VocabularyData { bos: Some(263), ..good() }, "bos_token_id");
    refused(&VocabularyData { eos: Some(u32::MAX), ..good() }, "eos_token_id");
    refused(&VocabularyData { unknown: Some(263), ..good() }, "unknown_token_id");
    refused(&VocabularyData { ends: vec![("eot_token_id", 263)], ..good() }, "eot_token_id");
    let spm = pieces();
    let good = || spm.data("llama");
    refused(&VocabularyData { scores: None, ..good() }, "scores");
    refused(&VocabularyData { scores: Some(&[0.0; 3]), ..good() }, "scores");
    let nan = vec![f32::NAN; spm.tokens.len()];
    refused(&VocabularyData { scores: Some(&nan), ..good() }, "scores");
}

#[test]
fn a_word_of_a_million_letters_is_encoded_in_good_time() {
    let text = "hell".repeat(250_000);
    let (made, spm) = (byte_level(), pieces());
    let tokenizer = Tokenizer::new(&made.data("gpt2")).expect("valid");
    let started = std::time::Instant::now();
    assert_eq!(tokenizer.encode(&text, false, false), vec![258; 250_000]);
    let tokenizer = Tokenizer::new(&spm.data("llama")).expect("valid");
    assert_eq!(tokenizer.encode(&"hi".repeat(100_000), false, false).len(), 100_000);
    // quadratic time would be hours, whatever the machine and the build
    assert!(started.elapsed().as_secs() < 120, "{:?}", started.elapsed());
}

fn tokenizers() -> Vec<Tokenizer> {
    let (made, spm) = (byte_level(), pieces());
    let pres = ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "tekken", "default"];
    let mut all: Vec<Tokenizer> = pres
        .iter()
        .map(|pre| Tokenizer::new(&VocabularyData { pre: Some(pre), ..made.data("gpt2") }).expect("valid"))
        .collect();
    for prefix in [false, true] {
        let data = VocabularyData { add_space_prefix: Some(prefix), ..spm.data("llama") };
        all.push(Tokenizer::new(&data).expect("valid"));
    }
    all
}

fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<char>().prop_map(String::from),
        "[a-z '0-9\\n]{1,6}",
        prop::sample::select(vec!["<user>", "<|ctrl|>", "</s>", " hell", "hi", "  ", "\r\n", "'ll"])
            .prop_map(String::from),
    ];
    // U+2581 is SentencePiece's space: a text with it comes back with a space
    prop::collection::vec(piece, 0..30).prop_map(|parts| parts.concat().replace('\u{2581}', ""))
}

proptest! {
    #[test]
    fn decoding_what_was_encoded_gives_the_text_back(text in any_text(), parse_special: bool) {
        for tokenizer in tokenizers() {
            let ids = tokenizer.encode(&text, false, parse_special);
            prop_assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_len()));
            prop_assert_eq!(tokenizer.decode(&ids), text.as_str());
        }
    }

    #[test]
    fn a_stream_gives_what_lossy_decoding_of_all_bytes_gives(
        ids in prop::collection::vec(prop_oneof![0u32..300, 0xc0u32..0x100, 0x80u32..0xc0], 0..60)
    ) {
        for tokenizer in tokenizers() {
            let mut stream = StreamDecoder::new(&tokenizer);
            let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
            text.push_str(&stream.finish());
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id).unwrap_or_default()).copied().collect();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_stream_shows_a_character_with_its_last_byte(c: char) {
        let made = byte_level();
        let tokenizer = Tokenizer::new(&made.data("gpt2")).expect("valid");
        let mut stream = StreamDecoder::new(&tokenizer);
        let shown: Vec<String> = c.to_string().bytes().map(|byte| stream.push(byte.into())).collect();
        let (last, before) = shown.split_last().expect("a character has bytes");
        prop_assert!(before.iter().all(String::is_empty));
        prop_assert_eq!(last, &c.to_string());
        prop_assert!(stream.finish().is_empty());
    }
}
