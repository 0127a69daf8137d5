//! The flags of `farmhand`'s verbs: declared as data, so that help and parsing cannot disagree.

use crate::error::{EngineError, Result};
use std::str::FromStr;

/// One flag of a verb.
pub struct Flag {
    /// All spellings, the short one first, for instance `["-m", "--model"]`.
    pub names: &'static [&'static str],
    /// Placeholder of its value; `None` for a switch.
    pub value: Option<&'static str>,
    /// One line of help, with the default.
    pub help: &'static str,
}

/// One verb of `farmhand`.
pub struct Verb {
    /// As typed.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Placeholder of positional arguments, empty when it takes none.
    pub positional: &'static str,
    /// Its own flags.
    pub flags: &'static [Flag],
    /// Groups of flags that it shares with other verbs.
    pub shared: &'static [&'static [Flag]],
    /// Carries it out; `Ok(code)` is the process's exit code.
    pub run: fn(&Args) -> Result<u8>,
}

impl Verb {
    fn all_flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.flags.iter().chain(self.shared.iter().copied().flatten())
    }

    /// The help page of this verb.
    pub fn help(&self) -> String {
        let mut out = format!("farmhand {}: {}\n\nusage: farmhand {}", self.name, self.summary, self.name);
        if self.all_flags().next().is_some() {
            out.push_str(" [FLAGS]");
        }
        if !self.positional.is_empty() {
            out.push(' ');
            out.push_str(self.positional);
        }
        out.push('\n');
        for flag in self.all_flags() {
            let value = flag.value.map(|v| format!(" {v}")).unwrap_or_default();
            out.push_str(&format!("\n  {:<28} {}", flag.names.join(", ") + &value, flag.help));
        }
        out.push('\n');
        out
    }
}

/// What was typed after the verb.
pub struct Args {
    verb: &'static Verb,
    given: Vec<(&'static str, Option<String>)>,
    positional: Vec<String>,
}

impl Args {
    /// Parses `argv` (without program and verb) by the verb's flags. `--name=value` and `--name value` both work; after
    /// `--` everything is positional.
    pub fn parse(verb: &'static Verb, argv: &[String]) -> Result<Self> {
        let mut args = Self { verb, given: Vec::new(), positional: Vec::new() };
        let mut rest = argv.iter();
        while let Some(word) = rest.next() {
            if word == "--" {
                args.positional.extend(rest.cloned());
                break;
            }
            // "-" and negative numbers are values, not flags
            if !word.starts_with('-') || word == "-" || word[1..].starts_with(|c: char| c.is_ascii_digit()) {
                args.positional.push(word.clone());
                continue;
            }
            let (name, inline) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            let flag = verb
                .all_flags()
                .find(|f| f.names.contains(&name))
                .ok_or_else(|| EngineError::usage(format!("unknown flag `{name}` of `farmhand {}`", verb.name)))?;
            let value = match (flag.value, inline) {
                (None, None) => None,
                (None, Some(_)) => return Err(EngineError::usage(format!("flag `{name}` takes no value"))),
                (Some(_), Some(value)) => Some(value),
                (Some(what), None) => Some(
                    rest.next()
                        .cloned()
                        .ok_or_else(|| EngineError::usage(format!("flag `{name}` needs a value: {what}")))?,
                ),
            };
            args.given.push((flag.names[0], value));
        }
        if verb.positional.is_empty() && !args.positional.is_empty() {
            return Err(EngineError::usage(format!(
                "`farmhand {}` takes no positional argument, got `{}`",
                verb.name, args.positional[0]
            )));
        }
        Ok(args)
    }

    fn canonical(&self, name: &str) -> &'static str {
        let flag = self.verb.all_flags().find(|f| f.names.contains(&name));
        flag.unwrap_or_else(|| panic!("flag {name} is not declared for {}", self.verb.name)).names[0]
    }

    /// Whether the switch was given.
    pub fn has(&self, name: &str) -> bool {
        let name = self.canonical(name);
        self.given.iter().any(|(n, _)| *n == name)
    }

    /// The value of a flag; the last one wins.
    pub fn get(&self, name: &str) -> Option<&str> {
        let name = self.canonical(name);
        self.given.iter().rev().find(|(n, _)| *n == name).and_then(|(_, v)| v.as_deref())
    }

    /// All values of a flag that may be repeated, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let name = self.canonical(name);
        self.given.iter().filter(|(n, _)| *n == name).filter_map(|(_, v)| v.as_deref()).collect()
    }

    /// The value of a flag that must be given.
    pub fn require(&self, name: &str) -> Result<&str> {
        self.get(name).ok_or_else(|| EngineError::usage(format!("`farmhand {}` needs `{name}`", self.verb.name)))
    }

    /// A number, or the default when the flag is absent.
    pub fn number<T: FromStr>(&self, name: &str, default: T) -> Result<T> {
        match self.get(name) {
            None => Ok(default),
            Some(text) => parse_number(name, text),
        }
    }

    /// Comma-separated numbers, over all repetitions of the flag; the default when it is absent.
    pub fn numbers<T: FromStr + Clone>(&self, name: &str, default: &[T]) -> Result<Vec<T>> {
        let given = self.all(name);
        if given.is_empty() {
            return Ok(default.to_vec());
        }
        given.iter().flat_map(|v| v.split(',')).map(|text| parse_number(name, text)).collect()
    }

    /// A word of a set that knows how to read itself, or the default when the flag is absent.
    pub fn word<T: FromStr<Err = EngineError>>(&self, name: &str, default: T) -> Result<T> {
        self.get(name).map_or(Ok(default), |text| read_word(name, text))
    }

    /// Comma-separated words, over all repetitions of the flag; the default when it is absent.
    pub fn words<T: FromStr<Err = EngineError> + Clone>(&self, name: &str, default: &[T]) -> Result<Vec<T>> {
        let given = self.all(name);
        if given.is_empty() {
            return Ok(default.to_vec());
        }
        given.iter().flat_map(|v| v.split(',')).map(|text| read_word(name, text)).collect()
    }

    /// The positional arguments.
    pub fn positional(&self) -> &[String] {
        &self.positional
    }
}

fn read_word<T: FromStr<Err = EngineError>>(name: &str, text: &str) -> Result<T> {
    text.trim().parse().map_err(|e: EngineError| e.at(format!("flag `{name}`")))
}

fn parse_number<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.trim().parse().map_err(|_| EngineError::usage(format!("flag `{name}`: `{text}` is not a number in range")))
}
