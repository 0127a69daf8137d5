//! The HTML page, judged by its structure. Every page is left in Cargo's folder for temporary files of tests, to be
//! looked at in a browser.

mod report_fixtures;

use farmgate::gate::Judgement;
use farmgate::report::{Report, Templates, render};
use farmgate::run::RunData;
use report_fixtures as fixtures;

fn page(name: &str, run: &RunData, judgement: Option<&Judgement>) -> String {
    let html = render::html(&Templates::shipped().unwrap(), &Report::build(run, judgement)).unwrap();
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.html"));
    std::fs::write(path, &html).unwrap();
    html
}

fn all_pages() -> Vec<(&'static str, String)> {
    let (comparison, judged) = fixtures::comparison();
    let (trouble, troubled) = fixtures::trouble();
    vec![
        ("comparison", page("comparison", &comparison, Some(&judged))),
        ("unjudged", page("unjudged", &comparison, None)),
        ("trouble", page("trouble", &trouble, Some(&troubled))),
        ("empty", page("empty", &fixtures::empty(), None)),
        ("interrupted", page("interrupted", &fixtures::interrupted(), None)),
    ]
}

/// Walks all tags; void elements and comments aside, each one opened must be closed in turn.
fn assert_balanced(name: &str, html: &str) {
    const VOID: [&str; 6] = ["meta", "link", "br", "hr", "img", "input"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        let end = rest[start..].find('>').map(|e| start + e).unwrap_or_else(|| panic!("{name}: a tag has no end"));
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if tag.starts_with('!') || tag.starts_with('?') || tag.ends_with('/') {
            continue;
        }
        let word = tag.trim_start_matches('/').split_whitespace().next().unwrap_or("");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(word), "{name}: </{word}> closes something else");
        } else if !VOID.contains(&word) {
            open.push(word);
        }
    }
    assert!(open.is_empty(), "{name}: never closed: {open:?}");
}

#[test]
fn every_element_is_closed_and_every_id_is_unique() {
    for (name, html) in all_pages() {
        assert_balanced(name, &html);
        let mut ids: Vec<&str> = html.split(" id=\"").skip(1).map(|s| s.split('"').next().unwrap()).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "{name}: an id occurs twice");
        for target in html.split("href=\"#").skip(1).map(|s| s.split('"').next().unwrap()) {
            assert!(ids.contains(&target), "{name}: a link leads to #{target}, which does not exist");
        }
    }
}

#[test]
fn the_page_loads_nothing_from_anywhere() {
    for (name, html) in all_pages() {
        for forbidden in ["src=", "@import", "url(", "<link", "<script", "<iframe", "<object", "<img", " on"] {
            let found = html.split('<').skip(1).filter_map(|t| t.split('>').next()).any(|tag| {
                if forbidden == " on" {
                    tag.split_whitespace().any(|w| w.starts_with("on") && w.contains('='))
                } else {
                    format!("<{tag}").contains(forbidden)
                }
            });
            assert!(!found, "{name}: contains {forbidden}");
        }
        for href in html.split("href=\"").skip(1).map(|s| s.split('"').next().unwrap()) {
            assert!(href.starts_with('#'), "{name}: links to {href}");
        }
    }
}

#[test]
fn nothing_from_a_device_becomes_markup_or_moves_a_cursor() {
    let (run, judgement) = fixtures::trouble();
    let html = page("trouble", &run, Some(&judgement));
    assert!(!html.contains("<script"), "a script came through");
    assert!(!html.contains("<b>bold"), "markup came through");
    assert!(html.contains("&lt;script&gt;alert(1)"), "the name is not shown as text");
    assert!(!html.contains('\u{1b}') && !html.contains('\u{202e}'), "a control character came through");
    assert!(!html.contains(&"x".repeat(1000)), "ten kilobytes came through");
}

#[test]
fn the_page_says_what_decided_and_what_is_missing() {
    let pages = all_pages();
    let of = |name: &str| pages.iter().find(|p| p.0 == name).unwrap().1.as_str();
    for (page, words) in [
        (
            "comparison",
            &[
                "NO-GO",
                "5.9 % slower",
                "FAIL",
                "PASS",
                "INCONCLUSIVE",
                "cccccccccccc",
                "each on CPUs 4-7",
                "No temperature sensor on this device",
                "Google Tensor G2",
                "6.1.99-android14",
                "-7.1 % to -5.2 % (90 %)",
            ][..],
        ),
        (
            "trouble",
            &[
                "INFRA",
                "connection refused",
                "not-cool",
                "not-finite",
                "killed by oom-kernel",
                "SIGILL",
                "ran past its budget of 30.0 s",
                "mapping 88 MB",
                "unbounded",
            ],
        ),
        ("empty", &["NO VERDICT", "UNFINISHED", "No device took part"]),
        (
            "interrupted",
            &["INTERRUPTED", "stopped after 3 of 6 cells", "3 of 6 valid", "2 never started", "No baseline"],
        ),
    ] {
        for word in words {
            assert!(of(page).replace('\u{a0}', " ").contains(word), "{page} does not say `{word}`");
        }
    }
}

#[test]
fn every_figure_speaks_to_a_screen_reader() {
    for (name, html) in all_pages() {
        for svg in html.split("<svg").skip(1) {
            let head = &svg[..svg.find("</desc>").unwrap_or_else(|| panic!("{name}: a figure has no description"))];
            assert!(head.contains("role=\"img\"") && head.contains("<title id="), "{name}: {head}");
        }
        for th in html.split("<th").skip(1).filter(|t| !t.starts_with("ead")) {
            assert!(th.starts_with(" scope="), "{name}: a table header has no scope");
        }
    }
}

#[test]
fn a_hundred_devices_make_a_page_of_bounded_size_in_seconds() {
    let (run, judgement) = fixtures::large(100);
    let start = std::time::Instant::now();
    let html = page("large", &run, Some(&judgement));
    let elapsed = start.elapsed();
    eprintln!("100 devices: {} bytes in {elapsed:?}", html.len());
    assert!(html.len() < 8_000_000, "{} bytes", html.len());
    assert!(html.contains("were left out to keep the page small"), "the page does not say what it left out");
    assert!(elapsed.as_secs() < 20, "{elapsed:?}, unoptimised");
}
