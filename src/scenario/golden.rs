//! Recorded answers (`scenarios/golden/*.toml`), found by the sha256 of the model that gave them.

use crate::config::{self, Checker, Document, shipped};
use crate::error::{Error, Place};
use farmgate_engine::protocol::GoldenCase;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use toml::Spanned;

/// Most models, and most cases, of one file.
const ENTRIES_MAX: usize = 1000;
/// Most ids of one prompt or one answer.
const IDS_MAX: usize = 65_536;

/// A golden file as typed: the cases hold for every model named.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct GoldenToml {
    #[serde(default)]
    model: Vec<ModelToml>,
    #[serde(default)]
    case: Vec<Spanned<GoldenCase>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ModelToml {
    /// File name, for people only.
    name: Spanned<String>,
    /// sha256 of each file of the set, in order.
    sha256: Spanned<Vec<String>>,
}

/// All recorded answers.
#[derive(Debug, Clone, Default)]
pub struct Golden {
    by_model: BTreeMap<Vec<String>, Vec<GoldenCase>>,
}

impl Golden {
    /// The answers recorded for the model with these file hashes; empty when there are none.
    pub fn cases(&self, sha256: &[String]) -> &[GoldenCase] {
        self.by_model.get(sha256).map_or(&[], Vec::as_slice)
    }

    /// Reads every golden file; what is wrong goes to `faults`.
    pub(super) fn gather(folder: &Path, faults: &mut Vec<Error>) -> Self {
        let gathered = config::gather(folder, shipped::GOLDEN);
        faults.extend(gathered.faults);
        let mut out = Self::default();
        let mut first_at = BTreeMap::new();
        for document in &gathered.documents {
            match document.parse::<GoldenToml>() {
                Ok(typed) => faults.extend(out.add(document, typed, &mut first_at)),
                Err(fault) => faults.push(fault),
            }
        }
        out
    }

    fn add(
        &mut self,
        document: &Document,
        typed: GoldenToml,
        first_at: &mut BTreeMap<Vec<String>, Place>,
    ) -> Vec<Error> {
        let mut check = Checker::new(document);
        if typed.model.is_empty() || typed.model.len() > ENTRIES_MAX {
            check.fault(0..0, format!("1 to {ENTRIES_MAX} `[[model]]` tables are needed"), "name the models here");
        }
        if typed.case.is_empty() || typed.case.len() > ENTRIES_MAX {
            check.fault(0..0, format!("1 to {ENTRIES_MAX} `[[case]]` tables are needed"), "record an answer here");
        }
        check_cases(&mut check, &typed.case);
        let cases: Vec<GoldenCase> = typed.case.into_iter().map(Spanned::into_inner).collect();
        for model in typed.model {
            check.line("name", &model.name);
            let (span, sha256) = (model.sha256.span(), model.sha256.into_inner());
            let hex = |s: &String| s.len() == 64 && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            if sha256.is_empty() || !sha256.iter().all(hex) {
                check.fault(
                    span.clone(),
                    "`sha256` is not a list of 64 lower-case hex digits each",
                    "`farmgate model inspect FILE` prints it, one for each file of a split set",
                );
            }
            if let Some(other) = first_at.get(&sha256) {
                let hint = format!("the other one is at {other}; put all cases of a model into one file");
                check.fault(span, "answers are recorded twice for this model", hint);
                continue;
            }
            first_at.insert(sha256.clone(), document.place(span.start));
            self.by_model.insert(sha256, cases.clone());
        }
        check.into_faults()
    }
}

fn check_cases(check: &mut Checker<'_>, cases: &[Spanned<GoldenCase>]) {
    let mut names = BTreeSet::new();
    for case in cases {
        let (span, case) = (case.span(), case.get_ref());
        check.name_fits(&case.name, span.clone(), "case");
        if !names.insert(&case.name) {
            check.fault(
                span.clone(),
                format!("case `{}` is there twice", config::printable(&case.name)),
                "give it another name",
            );
        }
        for (key, ids) in [("prompt-ids", &case.prompt_ids), ("generated-ids", &case.generated_ids)] {
            if ids.is_empty() || ids.len() > IDS_MAX {
                check.fault(
                    span.clone(),
                    format!("`{key}` has {} ids, outside 1 to {IDS_MAX}", ids.len()),
                    "`farmgate` compares them one by one; record at least one",
                );
            }
        }
    }
}
