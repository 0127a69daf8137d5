use super::*;
use crate::error::{ExitCode, Place};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sample {
    #[allow(dead_code)]
    threads: Option<u32>,
    #[allow(dead_code)]
    label: Option<String>,
    #[allow(dead_code)]
    share: Option<f64>,
    #[allow(dead_code)]
    list: Option<Vec<u32>>,
}

fn fault(text: &str) -> String {
    let error = parse_toml::<Sample>("devices/a.toml", text).unwrap_err();
    assert_eq!(error.exit(), ExitCode::Usage);
    assert!(error.hint_text().is_some(), "{error}");
    error.to_string()
}

/// What and where, without the hint.
fn fault_short(text: &str) -> String {
    fault(text).split("\n\nhint:").next().unwrap().to_owned()
}

#[test]
fn an_unknown_key_is_shown_with_its_place_and_the_nearest_known_key() {
    assert_eq!(
        fault("label = \"ä\"\nthread = 1\n"),
        "unknown key `thread`\n  --> devices/a.toml:2:1\n\nhint: did you mean `threads`?"
    );
    assert_eq!(
        fault("colour = 1\n"),
        "unknown key `colour`\n  --> devices/a.toml:1:1\n\nhint: known here: threads, label, share, list"
    );
}

#[test]
fn a_wrong_type_is_said_in_words_of_toml_and_at_the_value() {
    assert_eq!(
        fault_short("threads = \"four\""),
        "wrong type: text \"four\", expected a whole number from 0 to 4294967295\n  --> devices/a.toml:1:11"
    );
    assert_eq!(
        fault_short("label = 3"),
        "wrong type: integer `3`, expected a text in quotes\n  --> devices/a.toml:1:9"
    );
    assert!(fault("threads = -1").starts_with("value out of range: integer `-1`"), "{}", fault("threads = -1"));
    assert!(fault("list = 1").contains("expected a list in [ ]"), "{}", fault("list = 1"));
}

#[test]
fn a_syntax_error_is_shown_with_line_and_column_in_characters() {
    let text = fault("label = \"äöü\" nonsense");
    assert!(text.contains("devices/a.toml:1:15"), "{text}");
    assert!(fault("threads = 1\nthreads = 2").contains("devices/a.toml:2:1"));
}

#[test]
fn a_key_with_control_characters_cannot_write_to_the_terminal() {
    let text = fault("\"\\u001b[2Jx\" = 1");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn nesting_without_end_is_refused_and_does_not_overflow_the_stack() {
    let text = fault(&format!("list = {}", "[".repeat(200_000)));
    assert!(text.contains("devices/a.toml:1:"), "{}", &text[..200]);
}

#[test]
fn a_file_that_is_no_utf8_is_refused_at_its_first_bad_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.toml");
    std::fs::write(&path, b"threads = 1\nlabel = \"\xff\"\n").unwrap();
    let error = read_toml::<Sample>(&path).unwrap_err();
    assert_eq!(error.what(), "file is not UTF-8 text");
    assert!(matches!(error.place(), Some(Place::File { line: 2, column: 10, .. })), "{error}");
}

#[test]
fn a_file_beyond_the_limit_is_refused_with_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.toml");
    std::fs::write(&path, vec![b'#'; FILE_BYTES_MAX as usize + 1]).unwrap();
    let error = read_toml::<Sample>(&path).unwrap_err();
    assert_eq!(error.what(), format!("file is larger than {FILE_BYTES_MAX} bytes"));
}

#[test]
fn folders_and_links_in_a_circle_named_like_toml_are_usage_errors_and_do_not_hide_the_other_files() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("b.toml")).unwrap();
    std::os::unix::fs::symlink("c.toml", folder.path().join("c.toml")).unwrap();
    std::fs::write(folder.path().join("d.toml"), "").unwrap();
    std::fs::write(folder.path().join(".#d.toml"), "left by an editor").unwrap();
    let gathered = gather(folder.path(), &[]);
    let documents: Vec<&str> = gathered.documents.iter().map(Document::stem).collect();
    assert_eq!(documents, ["d"]);
    let whats: Vec<&str> = gathered.faults.iter().map(Error::what).collect();
    assert_eq!(whats.len(), 2);
    assert_eq!(whats[0], "this is a folder, not a TOML file");
    assert!(whats[1].starts_with("cannot read file:"), "{}", whats[1]);
    assert!(gathered.faults.iter().all(|f| f.exit() == ExitCode::Usage));
}

#[test]
fn a_named_pipe_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: `name` is a NUL-terminated path that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert_eq!(read_toml::<Sample>(&path).unwrap_err().what(), "this is not an ordinary file");
}

#[test]
fn every_fault_is_said_in_one_go() {
    let fault = |n: usize| Document::new(format!("f{n}.toml"), "x").fault(0..1, format!("fault {n}")).hint("h");
    assert!(refuse_faults(vec![]).is_ok());
    let error = refuse_faults((0..3).map(fault).collect()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "fault 0\n  --> f0.toml:1:1\n\nhint: h\n\n2 more to correct:\n  f1.toml:1:1: fault 1\n  f2.toml:1:1: fault 2"
    );
    assert!(refuse_faults((0..100).map(fault).collect()).unwrap_err().to_string().ends_with("and 79 more"));
}

#[test]
fn every_file_that_ships_is_built_in() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, shipped) in [
        ("devices", shipped::DEVICES),
        ("scenarios", shipped::SCENARIOS),
        ("scenarios/policies", shipped::POLICIES),
        ("scenarios/golden", shipped::GOLDEN),
    ] {
        let there: BTreeSet<String> = toml_files(&root.join(folder))
            .unwrap()
            .iter()
            .map(|p| p.strip_prefix(root).unwrap().display().to_string())
            .collect();
        let built_in: BTreeSet<String> = shipped.iter().map(|s| s.path.to_owned()).collect();
        assert_eq!(there, built_in);
    }
}

#[test]
fn names_are_safe_as_file_names() {
    for good in ["a", "pixel-7", "0"] {
        assert!(is_name(good), "{good}");
    }
    let long = "a".repeat(NAME_CHARS_MAX + 1);
    for bad in ["", "-a", "a-", "A", "a_b", "a/b", "..", "ä", "a b", &long] {
        assert!(!is_name(bad), "{bad}");
    }
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics_the_reader(text in any::<String>()) {
        let _ = parse_toml::<Sample>("x.toml", &text);
    }
    #[test]
    fn arbitrary_bytes_never_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.toml");
        std::fs::write(&path, bytes).unwrap();
        let _ = read_toml::<Sample>(&path);
    }
}
