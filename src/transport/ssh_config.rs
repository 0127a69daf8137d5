//! The part of OpenSSH's client configuration that decides how a host is reached.
//!
//! As in ssh, the first value that is found wins, and files of keys add up. `Match` blocks other than `Match all` are
//! passed over, since they may run programs.

use crate::error::{Error, Place, Result};
use std::path::{Path, PathBuf};

/// The largest configuration file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// How deep files may include files.
const INCLUDE_DEPTH_MAX: u32 = 4;
/// Most files that one `Include` may name.
const INCLUDE_FILES_MAX: usize = 64;

/// What the configuration says of one host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HostSettings {
    pub host_name: Option<String>,
    pub port: Option<u16>,
    pub user: Option<String>,
    pub identity_files: Vec<String>,
    pub identities_only: Option<bool>,
    pub known_hosts_files: Option<Vec<String>>,
    pub host_key_alias: Option<String>,
    pub connect_timeout_s: Option<u64>,
    pub proxy: Option<String>,
}

/// Reads `file` and what it includes, for `host` as the user named it. A file that is missing says nothing.
pub(super) fn settings_of(host: &str, file: &Path, home: &Path) -> Result<HostSettings> {
    let mut settings = HostSettings::default();
    let mut reader = Reader { host, home, settings: &mut settings };
    reader.read(file, true, 0)?;
    Ok(settings)
}

struct Reader<'a> {
    host: &'a str,
    home: &'a Path,
    settings: &'a mut HostSettings,
}

impl Reader<'_> {
    fn read(&mut self, file: &Path, applies_here: bool, depth: u32) -> Result<()> {
        let text = match std::fs::metadata(file) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Ok(facts) if facts.len() > FILE_BYTES_MAX => {
                return Err(Error::usage(format!("an ssh configuration of {} bytes", facts.len()))
                    .in_file(file)
                    .hint(format!("at most {FILE_BYTES_MAX} bytes are read")));
            }
            _ => std::fs::read(file)
                .map_err(|e| Error::usage(format!("cannot read the ssh configuration: {e}")).in_file(file))?,
        };
        let mut applies = applies_here;
        for (i, line) in String::from_utf8_lossy(&text).lines().enumerate() {
            let words = words_of(line);
            let Some((keyword, values)) = words.split_first() else { continue };
            let place = Place::File { path: file.display().to_string(), line: i + 1, column: 1 };
            let Some(first) = values.first() else {
                return Err(Error::usage(format!("`{}` has no value", keyword.escape_debug())).at(place));
            };
            match keyword.to_ascii_lowercase().as_str() {
                "host" => applies = applies_here && matches_host(values, self.host),
                "match" => applies = applies_here && first.eq_ignore_ascii_case("all"),
                "include" if depth < INCLUDE_DEPTH_MAX => {
                    for pattern in values {
                        for included in self.files_of(pattern) {
                            self.read(&included, applies, depth + 1)?;
                        }
                    }
                }
                "include" => return Err(Error::usage("ssh configurations include each other too deeply").at(place)),
                other if applies => self.take(other, first, values).map_err(|e| e.at(place))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn take(&mut self, keyword: &str, first: &str, values: &[String]) -> Result<()> {
        let number = || -> Result<u64> {
            first.parse().map_err(|_| {
                Error::usage(format!("`{keyword}` needs a number, not `{}`", first.escape_debug()))
                    .hint("ssh itself would refuse this file as well")
            })
        };
        let s = &mut *self.settings;
        match keyword {
            "hostname" => drop(s.host_name.get_or_insert_with(|| first.to_owned())),
            "port" if s.port.is_none() => {
                s.port = Some(u16::try_from(number()?).map_err(|_| Error::usage("`port` is above 65535"))?);
            }
            "user" => drop(s.user.get_or_insert_with(|| first.to_owned())),
            "identityfile" if !first.eq_ignore_ascii_case("none") => s.identity_files.push(first.to_owned()),
            "identitiesonly" => drop(s.identities_only.get_or_insert_with(|| first.eq_ignore_ascii_case("yes"))),
            "userknownhostsfile" => drop(s.known_hosts_files.get_or_insert_with(|| values.to_vec())),
            "hostkeyalias" => drop(s.host_key_alias.get_or_insert_with(|| first.to_owned())),
            "connecttimeout" if s.connect_timeout_s.is_none() => s.connect_timeout_s = Some(number()?),
            "proxyjump" | "proxycommand" => drop(s.proxy.get_or_insert_with(|| first.to_owned())),
            _ => {}
        }
        Ok(())
    }

    /// The files an `Include` names: relative ones lie in `~/.ssh`; `*` and `?` work in the last part of the path.
    fn files_of(&self, pattern: &str) -> Vec<PathBuf> {
        let path = self.home.join(".ssh").join(expand_home(pattern, self.home));
        let Some(name) = path.file_name().map(|n| n.to_string_lossy().into_owned()) else { return Vec::new() };
        if !name.contains(['*', '?']) {
            return vec![path];
        }
        let Some(Ok(entries)) = path.parent().map(std::fs::read_dir) else { return Vec::new() };
        let mut files: Vec<PathBuf> = entries
            .flatten()
            .filter(|e| matches_pattern(&name, &e.file_name().to_string_lossy()))
            .map(|e| e.path())
            .collect();
        files.sort();
        files.truncate(INCLUDE_FILES_MAX);
        files
    }
}

/// Replaces a leading `~/` by the home folder.
pub(super) fn expand_home(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => PathBuf::from(path),
    }
}

/// Splits a line into words: `Key value`, `Key=value` and double quotes, up to a comment.
fn words_of(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() && !rest.starts_with('#') {
        let (word, after) = match rest.strip_prefix('"') {
            Some(inner) => inner.split_once('"').unwrap_or((inner, "")),
            None => {
                let stop = |c: char| c.is_whitespace() || (c == '=' && words.is_empty());
                rest.split_at(rest.find(stop).unwrap_or(rest.len()))
            }
        };
        let is_key = words.is_empty();
        words.push(word.to_owned());
        rest = after.trim_start();
        if is_key {
            rest = rest.strip_prefix('=').unwrap_or(rest).trim_start();
        }
    }
    words
}

/// Whether a `Host` line means `host`: some pattern fits and none with `!` does.
fn matches_host(patterns: &[String], host: &str) -> bool {
    let mut found = false;
    for pattern in patterns.iter().flat_map(|p| p.split(',')) {
        match pattern.strip_prefix('!') {
            Some(pattern) if matches_pattern(pattern, host) => return false,
            Some(_) => {}
            None => found |= matches_pattern(pattern, host),
        }
    }
    found
}

/// `*` stands for any text, `?` for one character; letters in either case. Linear in both lengths but for stars.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.to_lowercase().chars().collect();
    let text: Vec<char> = text.to_lowercase().chars().collect();
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                // the last star takes one character more
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, t) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings(host: &str, text: &str) -> Result<HostSettings> {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".ssh")).unwrap();
        std::fs::write(home.path().join(".ssh/config"), text).unwrap();
        std::fs::write(home.path().join(".ssh/lab-1.conf"), "Host pi*\n Port 2201\n").unwrap();
        settings_of(host, &home.path().join(".ssh/config"), home.path())
    }

    #[test]
    fn the_first_value_wins_and_key_files_add_up() {
        let text = "Host pi4\n HostName 10.0.0.7\n IdentityFile ~/.ssh/a\nHost *\n HostName wrong\n User=lab\n IdentityFile \"b c\"\n";
        let s = settings("pi4", text).unwrap();
        assert_eq!((s.host_name.as_deref(), s.user.as_deref()), (Some("10.0.0.7"), Some("lab")));
        assert_eq!(s.identity_files, ["~/.ssh/a", "b c"]);
        assert_eq!(settings("other", text).unwrap().host_name.as_deref(), Some("wrong"));
    }

    #[test]
    fn patterns_know_star_question_mark_and_not() {
        let text = "Host pi? !pi9 *.lab\n Port 2222\n";
        for (host, port) in
            [("pi4", Some(2222)), ("pi9", None), ("pi44", None), ("a.lab", Some(2222)), ("PI4", Some(2222))]
        {
            assert_eq!(settings(host, text).unwrap().port, port, "{host}");
        }
    }

    #[test]
    fn included_files_speak_where_they_are_included() {
        assert_eq!(settings("pi4", "Include lab-*.conf\nHost pi4\n Port 9\n").unwrap().port, Some(2201));
        assert_eq!(settings("pi4", "Host x\n Include lab-*.conf\nHost pi4\n Port 9\n").unwrap().port, Some(9));
    }

    #[test]
    fn a_match_block_is_passed_over_unless_it_means_all() {
        let text = "Match exec \"touch /tmp/x\"\n Port 1\nMatch all\n Port 2\n";
        assert_eq!(settings("h", text).unwrap().port, Some(2));
    }

    #[test]
    fn a_wrong_number_names_file_and_line() {
        let error = settings("h", "# comment\nPort many\n").unwrap_err().to_string();
        assert!(error.contains("config:2:1") && error.contains("`port` needs a number"), "{error}");
    }

    #[test]
    fn a_missing_file_says_nothing() {
        let none = settings_of("h", Path::new("/no/such/config"), Path::new("/no")).unwrap();
        assert_eq!(none, HostSettings::default());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_panic(text in "(?s).{0,300}") {
            let _ = settings("pi4", &text);
        }
        #[test]
        fn a_pattern_without_wildcards_matches_itself_alone(text in "[a-z0-9.]{1,12}", other in "[a-z0-9.]{1,12}") {
            prop_assert!(matches_pattern(&text, &text));
            prop_assert_eq!(matches_pattern(&text, &other), text == other);
        }
    }
}
