//! `farmhand tokenize`: the ids of a text as JSON on stdout, or the text of ids.

use super::args::{Args, Flag, Verb};
use super::stdout;
use crate::error::{EngineError, Result};
use crate::gguf::{Gguf, LoadMode};
use crate::quality::parse_ids;
use crate::tokenizer::Tokenizer;
use std::io::Write;
use std::path::Path;

/// `farmhand tokenize`.
pub const VERB: Verb = Verb {
    name: "tokenize",
    summary: "the tokens of a text, as a JSON array of ids; or the text of tokens",
    positional: "TEXT",
    flags: &[
        Flag { names: &["-m", "--model"], value: Some("FILE"), help: "model (GGUF)" },
        Flag {
            names: &["-f", "--file"],
            value: Some("FILE"),
            help: "take the text from this file; TEXT `-` reads stdin",
        },
        Flag { names: &["--special"], value: None, help: "read special tokens in the text as such" },
        Flag { names: &["--no-bos"], value: None, help: "add neither BOS nor EOS, even where the model wants them" },
        Flag {
            names: &["--decode"],
            value: Some("IDS"),
            help: "print the text of these ids: a JSON array, or separated by commas or spaces; `-` reads stdin",
        },
    ],
    shared: &[],
    run,
};

fn run(args: &Args) -> Result<u8> {
    let path = Path::new(args.require("--model")?);
    let input = input(args)?;
    let gguf = Gguf::open(path, LoadMode::Map)?;
    let tokenizer = Tokenizer::from_metadata(gguf.metadata()).map_err(|e| e.at(path.display().to_string()))?;
    let output = match input {
        Input::Text(text) => {
            let ids = tokenizer.encode(&text, !args.has("--no-bos"), args.has("--special"));
            let json = serde_json::to_vec(&ids);
            json.map_err(|e| EngineError::new(crate::error::ErrorKind::Bug, format!("ids do not become JSON: {e}")))?
        }
        Input::Ids(ids) => {
            let known = |id: &u32| tokenizer.token_bytes(*id).is_some();
            if let Some(id) = ids.iter().find(|id| !known(id)) {
                let what = format!("id {id} is outside the vocabulary of {} tokens", tokenizer.vocab_len());
                return Err(EngineError::usage(what).hint("were these ids made with another model's tokenizer?"));
            }
            tokenizer.decode(&ids).into_bytes()
        }
    };
    let mut out = std::io::stdout().lock();
    stdout::written(out.write_all(&output).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()))?;
    Ok(0)
}

enum Input {
    Text(String),
    Ids(Vec<u32>),
}

fn input(args: &Args) -> Result<Input> {
    match (args.get("--decode"), args.get("--file"), args.positional()) {
        (Some("-"), None, []) => Ok(Input::Ids(parse_ids(&stdin()?)?)),
        (Some(ids), None, []) => Ok(Input::Ids(parse_ids(ids)?)),
        (None, Some(file), []) => {
            let text = std::fs::read_to_string(file);
            Ok(Input::Text(text.map_err(|e| EngineError::io(format!("cannot read the text from `{file}`"), &e))?))
        }
        (None, None, [text]) if text == "-" => Ok(Input::Text(stdin()?)),
        (None, None, [text]) => Ok(Input::Text(text.clone())),
        _ => Err(EngineError::usage("`farmhand tokenize` needs one of TEXT, `--file FILE` and `--decode IDS`")
            .hint("quote a text of several words; `--` before a text that starts with `-`")),
    }
}

fn stdin() -> Result<String> {
    std::io::read_to_string(std::io::stdin()).map_err(|e| EngineError::io("cannot read stdin", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Input> {
        let argv: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        input(&Args::parse(&VERB, &argv)?)
    }

    #[test]
    fn exactly_one_source_of_input_is_wanted() {
        assert!(matches!(parsed(&["a b"]), Ok(Input::Text(text)) if text == "a b"));
        assert!(matches!(parsed(&["--decode", "5"]), Ok(Input::Ids(ids)) if ids == [5]));
        for words in [&[][..], &["a", "b"], &["a", "--decode", "1"], &["--file", "x", "a"]] {
            assert!(parsed(words).is_err(), "{words:?}");
        }
    }
}
