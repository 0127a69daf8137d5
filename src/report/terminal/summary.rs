//! A finished run in 80 columns, without colour.

use super::progress::padded;
use crate::gate::Judgement;
use crate::report::text;
use crate::report::view::{MetricView, Report, RuleView};
use crate::run::RunData;
use std::fmt::Write as _;

/// Columns of the table.
const COLUMNS: usize = 80;
/// Rules listed, at most; those that pass are left out first.
const RULES_MAX: usize = 24;
/// Series listed, at most.
const SERIES_MAX: usize = 32;

/// Verdict, rules and series of a run; lines are at most 80 characters long.
pub fn summary(run: &RunData, judgement: &Judgement) -> String {
    let report = Report::build(run, Some(judgement));
    let mut out = String::new();
    head(&mut out, &report);
    rules(&mut out, &report.rules);
    series(&mut out, &report);
    trouble(&mut out, &report);
    out
}

fn head(out: &mut String, report: &Report) {
    let verdict = &report.verdict;
    let policy = match verdict.exit_code {
        Some(code) => format!("   (policy {}, exit code {code})", verdict.policy),
        None => String::new(),
    };
    push_line(out, &format!("{}{policy}", verdict.word));
    push_wrapped(out, &verdict.sentence, 2);
    out.push('\n');
    let run = &report.run;
    let state = format!("{}, {}, {} of {} cells valid", run.name, run.state, run.cells_valid, run.cells_planned);
    push_line(out, &format!("{:<11}{state}", "run"));
    for model in &report.models {
        let facts = format!("{}, sha256 {}, {} {}", model.name, model.sha256, model.weights, model.weight_type);
        push_line(out, &format!("{:<11}{facts}", model.arm));
    }
    if !run.state_note.is_empty() {
        push_wrapped(out, &run.state_note, 11);
    }
    if !run.resumed_note.is_empty() {
        push_wrapped(out, &run.resumed_note, 11);
    }
    if report.same_model {
        push_wrapped(out, "candidate and baseline are the same model: every difference is noise", 11);
    }
}

fn rules(out: &mut String, rules: &[RuleView]) {
    if rules.is_empty() {
        return;
    }
    let widths = [12, 14, 13, 16, 17];
    let _ = writeln!(out);
    push_row(out, &widths, &["OUTCOME", "RULE", "DEVICE", "METRIC", "FOUND"]);
    // worst first is the judgement's order; those that pass give way when there are too many
    let (passed, open): (Vec<&RuleView>, Vec<&RuleView>) = rules.iter().partition(|r| r.outcome == "PASS");
    let shown: Vec<&RuleView> = match rules.len() > RULES_MAX {
        true => open.iter().chain(&passed).copied().take(RULES_MAX).collect(),
        false => rules.iter().collect(),
    };
    for rule in &shown {
        let outcome =
            if rule.critical { rule.outcome.to_owned() } else { format!("({})", rule.outcome.to_lowercase()) };
        push_row(out, &widths, &[&outcome, &rule.rule, &rule.device, &rule.metric, &rule.found]);
        if rule.outcome != "PASS" {
            push_wrapped(out, &rule.sentence, 14);
        }
    }
    if shown.iter().any(|r| !r.critical) {
        push_line(out, "(in brackets: informs only, never decides)");
    }
    if rules.len() > shown.len() {
        push_line(out, &format!("… {} more in the report", rules.len() - shown.len()));
    }
}

fn series(out: &mut String, report: &Report) {
    let rows = || report.metrics.iter().flat_map(|m| m.rows.iter().map(move |row| (m, row)));
    let total = rows().count();
    if total == 0 {
        return;
    }
    let _ = writeln!(out);
    let (widths, head): (&[usize], &[&str]) = match report.run.comparison {
        true => (&[18, 8, 14, 9, 9, 8, 8], &["METRIC", "UNIT", "DEVICE", "BASELINE", "CANDIDATE", "CHANGE", "CELLS"]),
        false => (&[24, 8, 20, 12, 8], &["METRIC", "UNIT", "DEVICE", "CANDIDATE", "CELLS"]),
    };
    push_row(out, widths, head);
    let mut ordered: Vec<_> = rows().collect();
    ordered.sort_by_key(|(metric, _)| report.run.scenarios.iter().position(|s| *s == metric.scenario));
    let mut scenario = "";
    for (metric, row) in ordered.into_iter().take(SERIES_MAX) {
        if report.run.scenarios.len() > 1 && metric.scenario != scenario {
            scenario = &metric.scenario;
            push_line(out, &format!("{scenario}:"));
        }
        let (baseline, candidate) = (bare(metric, &row.baseline), bare(metric, &row.candidate));
        let cells: &[&str] = match report.run.comparison {
            true => &[&metric.metric, &metric.unit, &row.device, &baseline, &candidate, &row.change, &row.n],
            false => &[&metric.metric, &metric.unit, &row.device, &candidate, &row.n],
        };
        push_row(out, widths, cells);
    }
    if total > SERIES_MAX {
        push_line(out, &format!("… {} more in the report", total - SERIES_MAX));
    }
}

/// A quantity without the unit, which has a column of its own.
fn bare(metric: &MetricView, quantity: &str) -> String {
    match quantity {
        "" => "–".to_owned(),
        _ => quantity.strip_suffix(&metric.unit).unwrap_or(quantity).trim_end().to_owned(),
    }
}

fn trouble(out: &mut String, report: &Report) {
    let failed = report.devices.iter().filter(|d| !d.failure.is_empty());
    let mut lines: Vec<String> = failed.map(|d| format!("INFRA  {}: {}", d.name, d.failure)).collect();
    lines.extend(
        report
            .invalid
            .reasons
            .iter()
            .map(|r| format!("INVALID  {}: {} ({})", text::counted(r.cells, "cell"), r.code, r.meaning)),
    );
    lines.extend(report.died.iter().map(|d| format!("DIED  {} cell {}: {}", d.device, d.cell, d.cause)));
    if lines.is_empty() {
        return;
    }
    out.push('\n');
    for line in lines.iter().take(SERIES_MAX) {
        push_wrapped(out, line, 0);
    }
    if lines.len() > SERIES_MAX {
        push_line(out, &format!("… {} more in the report", lines.len() - SERIES_MAX));
    }
}

fn push_row(out: &mut String, widths: &[usize], cells: &[&str]) {
    let row: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| padded(cell, *width)).collect();
    push_line(out, &row.join(" "));
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(text::shortened(line.trim_end(), COLUMNS).trim_end());
    out.push('\n');
}

/// Breaks at spaces; a word longer than a line is cut into pieces.
fn push_wrapped(out: &mut String, words: &str, indent: usize) {
    let width = COLUMNS - indent;
    let mut line = String::new();
    let mut length = 0;
    let mut flush = |line: &mut String, length: &mut usize| {
        if *length > 0 {
            let _ = writeln!(out, "{:indent$}{line}", "");
            line.clear();
            *length = 0;
        }
    };
    for word in words.split_whitespace() {
        let mut rest: Vec<char> = word.chars().collect();
        if length > 0 && length + 1 + rest.len() > width {
            flush(&mut line, &mut length);
        }
        while rest.len() > width {
            line.extend(rest.drain(..width));
            length = width;
            flush(&mut line, &mut length);
        }
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        length += rest.len();
        line.extend(rest);
    }
    flush(&mut line, &mut length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_wraps_at_spaces_and_long_words_are_cut() {
        let mut out = String::new();
        push_wrapped(&mut out, &format!("{} {} end", "a".repeat(50), "b".repeat(170)), 2);
        assert!(out.lines().all(|l| l.chars().count() <= COLUMNS && l.starts_with("  ")), "{out}");
        assert_eq!(out.matches('b').count(), 170);
    }
}
