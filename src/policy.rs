//! Gate policies (`scenarios/policies/*.toml`): the rules that a release has to meet.

use crate::config::{self, Checker, Document, Folders, shipped};
use crate::error::{Error, Result, nearest};
use crate::gate::{Rule, Severity};
use crate::label::LabelExpression;
use crate::metric::{self, Direction};
use crate::scenario::Catalogue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use toml::Spanned;

/// Most rules of a policy.
const RULES_MAX: usize = 1000;
/// Largest absolute limit, in the metric's unit.
const LIMIT_MAX: f64 = 1e12;
/// Largest tolerated worsening of a metric of which less is better, per cent.
const REGRESSION_PERCENT_MAX: f64 = 1000.0;

/// A gate policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Policy {
    /// The file's name without `.toml`.
    pub name: String,
    /// What it is for, one line.
    pub summary: Option<String>,
    /// Its rules, in the order of the file.
    pub rules: Vec<Rule>,
}

/// A policy file as typed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PolicyToml {
    summary: Option<Spanned<String>>,
    #[serde(default)]
    rule: Vec<Spanned<RuleToml>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RuleToml {
    name: Spanned<String>,
    metric: Spanned<String>,
    scenario: Option<Spanned<String>>,
    devices: Option<Spanned<String>>,
    severity: Severity,
    at_least: Option<Spanned<f64>>,
    at_most: Option<Spanned<f64>>,
    regression_percent_max: Option<Spanned<f64>>,
    #[serde(default)]
    required: bool,
}

impl Policy {
    /// Reads the policy of that name (the project's own, else the built-in one), or the file when `name_or_path` has a
    /// `/` or ends with `.toml`. Every other policy of the project is checked as well.
    ///
    /// # Errors
    /// Usage error: no such policy, or every fault of the files, the first with path:line:column.
    pub fn load(folders: &Folders, name_or_path: &str) -> Result<Self> {
        let catalogue = Catalogue::load(folders)?;
        let scenarios: Vec<&str> = catalogue.scenarios().iter().map(|s| s.name.as_str()).collect();
        if name_or_path.contains('/') || name_or_path.ends_with(".toml") {
            return Self::from_document(&Document::read(Path::new(name_or_path))?, &scenarios);
        }
        let gathered = config::gather(&folders.policies(), shipped::POLICIES);
        let mut faults = gathered.faults;
        let mut policies = Vec::new();
        for document in &gathered.documents {
            match read_policy(document, &scenarios) {
                Ok((policy, found)) => {
                    faults.extend(found);
                    policies.push(policy);
                }
                Err(fault) => faults.push(fault),
            }
        }
        config::refuse_faults(faults)?;
        let names: Vec<String> = policies.iter().map(|p| p.name.clone()).collect();
        policies.into_iter().find(|p| p.name == name_or_path).ok_or_else(|| {
            let hint = match nearest(name_or_path, names.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are: {}; or give the path of a file", names.join(", ")),
            };
            Error::usage(format!("unknown policy `{}`", config::printable(name_or_path))).hint(hint)
        })
    }

    /// Reads one policy file; its rules may name these scenarios.
    ///
    /// # Errors
    /// Usage error that names every fault of the file, the first with path:line:column.
    pub fn from_document(document: &Document, scenarios: &[&str]) -> Result<Self> {
        let (policy, faults) = read_policy(document, scenarios)?;
        config::refuse_faults(faults)?;
        Ok(policy)
    }
}

fn read_policy(document: &Document, scenarios: &[&str]) -> Result<(Policy, Vec<Error>)> {
    let typed: PolicyToml = document.parse()?;
    let mut check = Checker::new(document);
    let (name, _) = check.name(None, "policy");
    if let Some(summary) = &typed.summary {
        check.line("summary", summary);
    }
    if typed.rule.is_empty() {
        check.fault(0..0, "this policy has no rules", "begin with `[[rule]]`; scenarios/README.md shows one");
    }
    if let Some(beyond) = typed.rule.get(RULES_MAX) {
        check.fault(beyond.span(), format!("more than {RULES_MAX} rules"), "drop those that do not matter");
    }
    let mut first_at = BTreeMap::new();
    let mut rules = Vec::new();
    for rule in typed.rule {
        let span = rule.get_ref().name.span();
        if let Some(other) = first_at.insert(rule.get_ref().name.get_ref().clone(), document.place(span.start)) {
            let what = format!("rule `{}` is there twice", config::printable(rule.get_ref().name.get_ref()));
            check.fault(span, what, format!("the other one is at {other}; give it another `name`"));
        }
        rules.push(read_rule(&mut check, rule, scenarios));
    }
    Ok((Policy { name, summary: typed.summary.map(Spanned::into_inner), rules }, check.into_faults()))
}

fn read_rule(check: &mut Checker<'_>, rule: Spanned<RuleToml>, scenarios: &[&str]) -> Rule {
    let rule_span = rule.span();
    let typed = rule.into_inner();
    check.name_fits(typed.name.get_ref(), typed.name.span(), "rule");
    check_limits(check, &typed, rule_span);
    if let Some(scenario) = &typed.scenario
        && !scenarios.contains(&scenario.get_ref().as_str())
    {
        let hint = match nearest(scenario.get_ref(), scenarios.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are: {}", scenarios.join(", ")),
        };
        let what = format!("unknown scenario `{}`", config::printable(scenario.get_ref()));
        check.fault(scenario.span(), what, hint);
    }
    let devices = typed.devices.and_then(|text| match LabelExpression::parse(text.get_ref()) {
        Ok(expression) => Some(expression),
        Err(why) => {
            let what = format!("`devices` is not a label expression: {}", config::printable(&why));
            check.fault(text.span(), what, "labels are combined with & | ! and ( ), for instance \"phone & !old\"");
            None
        }
    });
    let number = |value: Option<Spanned<f64>>| value.map(Spanned::into_inner);
    Rule {
        name: typed.name.into_inner(),
        metric: typed.metric.into_inner(),
        scenario: typed.scenario.map(Spanned::into_inner),
        devices,
        severity: typed.severity,
        at_least: number(typed.at_least),
        at_most: number(typed.at_most),
        regression_percent_max: number(typed.regression_percent_max),
        required: typed.required,
    }
}

fn check_limits(check: &mut Checker<'_>, rule: &RuleToml, rule_span: std::ops::Range<usize>) {
    check.within_if_there("at-least", rule.at_least.as_ref(), 0.0..=LIMIT_MAX);
    check.within_if_there("at-most", rule.at_most.as_ref(), 0.0..=LIMIT_MAX);
    let no_limit = rule.at_least.is_none() && rule.at_most.is_none() && rule.regression_percent_max.is_none();
    if no_limit && !rule.required {
        check.fault(
            rule_span,
            format!("rule `{}` demands nothing", config::printable(rule.name.get_ref())),
            "add `at-least`, `at-most`, `regression-percent-max` or `required = true`",
        );
    }
    if let (Some(least), Some(most)) = (&rule.at_least, &rule.at_most)
        && least.get_ref() > most.get_ref()
    {
        check.fault(
            least.span(),
            format!("`at-least` {} is above `at-most` {}, so nothing can pass", least.get_ref(), most.get_ref()),
            "swap the two, or drop one of them",
        );
    }
    let kind = match metric::require(rule.metric.get_ref()) {
        Ok(kind) => kind,
        Err(error) => {
            let hint = error.hint_text().unwrap_or("measurement names end with their unit").to_owned();
            check.fault(rule.metric.span(), config::printable(error.what()), hint);
            return;
        }
    };
    if let Some((_, qualifier)) = rule.metric.get_ref().split_once('@')
        && !config::is_name(qualifier)
    {
        check.fault(
            rule.metric.span(),
            format!("`{}` is no qualifier of a metric", config::printable(qualifier)),
            format!("write `{0}` for all of them, or for instance `{0}@128`", kind.name),
        );
    }
    let Some(regression) = &rule.regression_percent_max else { return };
    match kind.direction {
        // worse by 100 % would be a speed of 0, which no measurement can fall below
        Direction::HigherIsBetter => {
            check.within(regression.span(), "regression-percent-max", regression.get_ref(), 0.0..=99.0);
        }
        Direction::LowerIsBetter => {
            let range = 0.0..=REGRESSION_PERCENT_MAX;
            check.within(regression.span(), "regression-percent-max", regression.get_ref(), range);
        }
        Direction::Neutral => check.fault(
            regression.span(),
            format!("`{}` has no better or worse, so it cannot regress", kind.name),
            "use `at-least` and `at-most`",
        ),
    }
}
