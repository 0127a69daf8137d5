//! Any vocabulary and any text: an error or a tokenizer, and with it tokens that stand for the text.
//!
//! The input is lines: a line of settings, the texts of the tokens, an empty line, the merges, an empty line, the text.
#![no_main]

use farmgate_engine::tokenizer::{StreamDecoder, Tokenizer, VocabularyData};
use libfuzzer_sys::fuzz_target;

/// Names of pre-tokenizers, so that all of them are reached.
const PRE: [&str; 8] = ["default", "llama-bpe", "qwen2", "qwen35", "gpt-2", "smollm", "tekken", "no such name"];

fuzz_target!(|bytes: &[u8]| {
    let Some((settings, rest)) = bytes.split_at_checked(8) else { return };
    let input = String::from_utf8_lossy(rest);
    let mut parts = input.splitn(3, "\n\n");
    let lines = |part: Option<&str>| part.unwrap_or_default().lines().map(str::to_owned).collect::<Vec<_>>();
    let (tokens, merges) = (lines(parts.next()), lines(parts.next()));
    let text = parts.next().unwrap_or_default();
    let id = |byte: u8| (byte < 200).then(|| u32::from(byte));
    let flag = |byte: u8| [None, Some(false), Some(true)][usize::from(byte) % 3];
    let kind_of = |i: usize| i64::from(settings[5].rotate_left(i as u32) % 7);
    let scores: Vec<f32> = (0..tokens.len()).map(|i| f32::from(settings[6].rotate_left(i as u32))).collect();
    let data = VocabularyData {
        model: Some(if settings[0] & 1 == 0 { "gpt2" } else { "llama" }),
        pre: Some(PRE[usize::from(settings[0] >> 1) % PRE.len()]),
        token_types: (settings[5] != 0).then(|| (0..tokens.len()).map(kind_of).collect()),
        tokens: Some(&tokens),
        scores: Some(&scores),
        merges: Some(&merges),
        bos: id(settings[1]),
        eos: id(settings[2]),
        unknown: id(settings[3]),
        ends: Vec::new(),
        add_bos: flag(settings[4]),
        add_eos: flag(settings[4] / 3),
        add_space_prefix: flag(settings[4] / 9),
    };
    let Ok(tokenizer) = Tokenizer::new(&data) else { return };
    for (add_special, parse_special) in [(false, false), (true, false), (false, true)] {
        let ids = tokenizer.encode(text, add_special, parse_special);
        assert!(ids.iter().all(|&id| tokenizer.token_bytes(id).is_some()), "an id outside the vocabulary");
        let bytes = tokenizer.decode_bytes(&ids);
        assert!(bytes.len() <= ids.iter().map(|&id| tokenizer.token_bytes(id).map_or(0, <[u8]>::len)).sum());
        let mut stream = StreamDecoder::new(&tokenizer);
        let mut streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
        streamed.push_str(&stream.finish());
        let all: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap_or_default().to_vec()).collect();
        assert_eq!(streamed, String::from_utf8_lossy(&all), "the stream tells another text than its tokens");
    }
});
