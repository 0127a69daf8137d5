//! Scripted scenarios (`scenarios/*.toml`): what is done on a device, step by step, and how often.

mod golden;
mod steps;

pub use golden::Golden;
pub use steps::{tokens_needed, tokens_of_case};

use crate::config::{self, Checker, Document, Folders, shipped};
use crate::error::{Error, Place, Result, nearest};
use farmgate_engine::protocol::{CpuClusters, CpuList, EngineConfig, GoldenCase, KvPolicy, KvType, Repack, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::Spanned;

/// Most pairs, and most repetitions, of a scenario.
pub const PAIRS_MAX: u32 = 1000;
/// Longest context, in tokens.
pub const CONTEXT_TOKENS_MAX: u32 = 1 << 20;
/// Most worker threads.
pub const THREADS_MAX: u32 = 1024;
/// Longest budget of a cell that a scenario may state, in seconds.
pub const TIMEOUT_S_MAX: u64 = 86_400;
/// Largest seed: with a pair's number added, every JSON reader still keeps it exactly.
pub const SEED_MAX: u64 = 1 << 48;

/// A scripted scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Scenario {
    /// Name, unique in the catalogue, `[a-z0-9-]`.
    pub name: String,
    /// What it does, one line.
    pub summary: String,
    /// The question it answers, one line.
    pub question: Option<String>,
    /// Seed of the first pair's prompts and sampling; pair n has this plus n.
    pub seed: u64,
    /// Cells without a baseline, each in a fresh process.
    pub repetitions: u32,
    /// Pairs of cells with a baseline.
    pub pairs: u32,
    /// How the engine is set up.
    pub config: EngineConfig,
    /// Budget of a cell after the load, seconds, before the plan adds time for the model's size.
    pub timeout_s: u64,
    /// What is done, in order; the first is the load. Golden steps are filled in when the model is known.
    pub steps: Vec<Step>,
    /// File that states it, as errors show it.
    pub file: String,
}

/// A scenario file as typed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ScenarioToml {
    name: Option<Spanned<String>>,
    summary: Spanned<String>,
    question: Option<Spanned<String>>,
    seed: Option<Spanned<u64>>,
    repetitions: Spanned<u32>,
    pairs: Spanned<u32>,
    context_tokens: Option<Spanned<u32>>,
    threads: Option<Spanned<u32>>,
    threads_batch: Option<Spanned<u32>>,
    cpus: Option<Spanned<CpuList>>,
    cpu_clusters: Option<Spanned<CpuClusters>>,
    kv_type: Option<Spanned<KvType>>,
    kv_type_k: Option<Spanned<KvType>>,
    kv_type_v: Option<Spanned<KvType>>,
    kv_policy: Option<Spanned<KvPolicy>>,
    mmap: Option<bool>,
    mlock: Option<bool>,
    repack: Option<Repack>,
    timeout_s: Spanned<u64>,
    #[serde(default)]
    step: Vec<Spanned<Step>>,
}

impl Scenario {
    /// Reads one scenario file.
    ///
    /// # Errors
    /// Usage error that names every fault of the file, the first with path:line:column.
    pub fn from_document(document: &Document) -> Result<Self> {
        let (scenario, _, faults) = read_scenario(document)?;
        config::refuse_faults(faults)?;
        Ok(scenario)
    }
}

fn read_scenario(document: &Document) -> Result<(Scenario, Place, Vec<Error>)> {
    let typed: ScenarioToml = document.parse()?;
    let mut check = Checker::new(document);
    let (name, name_span) = check.name(typed.name.as_ref(), "scenario");
    check.line("summary", &typed.summary);
    if let Some(question) = &typed.question {
        check.line("question", question);
    }
    check.within_if_there("seed", typed.seed.as_ref(), 0..=SEED_MAX);
    check.within_if_there("repetitions", Some(&typed.repetitions), 1..=PAIRS_MAX);
    check.within_if_there("pairs", Some(&typed.pairs), 1..=PAIRS_MAX);
    check.within_if_there("context-tokens", typed.context_tokens.as_ref(), 1..=CONTEXT_TOKENS_MAX);
    check.within_if_there("threads", typed.threads.as_ref(), 0..=THREADS_MAX);
    check.within_if_there("threads-batch", typed.threads_batch.as_ref(), 0..=THREADS_MAX);
    check_cores(&mut check, &typed);
    check_cache(&mut check, &typed);
    check.within_if_there("timeout-s", Some(&typed.timeout_s), 1..=TIMEOUT_S_MAX);
    let bare = |value: Option<Spanned<u32>>, default: u32| value.map_or(default, Spanned::into_inner);
    let default = EngineConfig::default();
    let config = EngineConfig {
        threads: bare(typed.threads, default.threads),
        threads_batch: bare(typed.threads_batch, default.threads_batch),
        cpus: typed.cpus.map_or(default.cpus, Spanned::into_inner),
        cpu_clusters: typed.cpu_clusters.map(Spanned::into_inner),
        context_tokens: bare(typed.context_tokens, default.context_tokens),
        kv_policy: typed.kv_policy.map_or(default.kv_policy, Spanned::into_inner),
        mmap: typed.mmap.unwrap_or(default.mmap),
        mlock: typed.mlock.unwrap_or(default.mlock),
        repack: typed.repack.unwrap_or(default.repack),
        ..default
    };
    let both = typed.kv_type.map_or(config.kv_type, Spanned::into_inner);
    let one = |value: Option<Spanned<KvType>>| value.map_or(both, Spanned::into_inner);
    let config = config.with_kv_types(one(typed.kv_type_k), one(typed.kv_type_v));
    steps::check(&mut check, &typed.step, config.context_tokens);
    let scenario = Scenario {
        name,
        summary: typed.summary.into_inner(),
        question: typed.question.map(Spanned::into_inner),
        seed: typed.seed.map_or(0, Spanned::into_inner),
        repetitions: typed.repetitions.into_inner(),
        pairs: typed.pairs.into_inner(),
        config,
        timeout_s: typed.timeout_s.into_inner(),
        steps: typed.step.into_iter().map(Spanned::into_inner).collect(),
        file: document.path().to_owned(),
    };
    Ok((scenario, document.place(name_span.start), check.into_faults()))
}

/// Cores are named in one way, and there are as many as workers.
fn check_cores(check: &mut Checker<'_>, typed: &ScenarioToml) {
    let Some(cpus) = &typed.cpus else { return };
    if let Some(clusters) = &typed.cpu_clusters {
        let what = "`cpus` and `cpu-clusters` both name cores";
        check.fault(clusters.span(), what, "keep one of them");
    }
    let cores = cpus.get_ref().cpus().len();
    for threads in [&typed.threads, &typed.threads_batch].into_iter().flatten() {
        if cores > 0 && *threads.get_ref() as usize > cores {
            let what = format!("{} threads do not fit the {cores} cores of `cpus`", threads.get_ref());
            check.fault(threads.span(), what, "name as many cores as threads, or ask for fewer threads");
        }
    }
}

/// The cache's types are named in one way, and its policy keeps something that fits.
fn check_cache(check: &mut Checker<'_>, typed: &ScenarioToml) {
    if typed.kv_type.is_some() {
        for (key, apart) in [("kv-type-k", &typed.kv_type_k), ("kv-type-v", &typed.kv_type_v)] {
            if let Some(apart) = apart {
                let what = format!("`kv-type` and `{key}` both name a cache type");
                check.fault(apart.span(), what, "keep `kv-type` for both, or name keys and values apart");
            }
        }
    }
    let Some(policy) = &typed.kv_policy else { return };
    let context = typed.context_tokens.as_ref().map_or(EngineConfig::default().context_tokens, |c| *c.get_ref());
    if let Err(fault) = policy.get_ref().check(context as usize) {
        check.fault(policy.span(), fault.what(), fault.hint_text().unwrap_or_default());
    }
}

/// All scenarios and all recorded answers.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    scenarios: Vec<Scenario>,
    golden: Golden,
}

impl Catalogue {
    /// Reads every scenario and every golden file of the project; the built-in ones fill the gaps by file name.
    ///
    /// # Errors
    /// Usage error that names every fault of every file, the first with path:line:column.
    pub fn load(folders: &Folders) -> Result<Self> {
        let gathered = config::gather(&folders.scenarios, shipped::SCENARIOS);
        let mut faults = gathered.faults;
        let mut first_at: BTreeMap<String, Place> = BTreeMap::new();
        let mut scenarios = Vec::new();
        for document in &gathered.documents {
            match read_scenario(document) {
                Ok((scenario, place, found)) => {
                    faults.extend(found);
                    if let Some(other) = first_at.get(&scenario.name) {
                        faults.push(taken_twice(&scenario.name, place, other));
                    } else {
                        first_at.insert(scenario.name.clone(), place);
                    }
                    scenarios.push(scenario);
                }
                Err(fault) => faults.push(fault),
            }
        }
        let golden = Golden::gather(&folders.golden(), &mut faults);
        config::refuse_faults(faults)?;
        scenarios.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { scenarios, golden })
    }

    /// All scenarios, sorted by name.
    pub fn scenarios(&self) -> &[Scenario] {
        &self.scenarios
    }

    /// The scenario of that name.
    ///
    /// # Errors
    /// Usage error with the nearest name.
    pub fn find(&self, name: &str) -> Result<&Scenario> {
        let names = || self.scenarios.iter().map(|s| s.name.as_str());
        self.scenarios.iter().find(|s| s.name == name).ok_or_else(|| {
            let hint = match nearest(name, names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => {
                    let shown: Vec<&str> = names().take(config::KEYS_SHOWN_MAX).collect();
                    format!("there are: {}", shown.join(", "))
                }
            };
            Error::usage(format!("unknown scenario `{}`", config::printable(name))).hint(hint)
        })
    }

    /// The answers recorded for the model with these file hashes; empty when there are none.
    pub fn golden_cases(&self, sha256: &[String]) -> &[GoldenCase] {
        self.golden.cases(sha256)
    }
}

/// `place` is where the second one takes the name; the file of a built-in one cannot be edited, so the hint differs.
fn taken_twice(name: &str, place: Place, other: &Place) -> Error {
    let built_in = |p: &Place| matches!(p, Place::File { path, .. } if path.starts_with('<'));
    // what the user can change is the place to point at
    let (place, other) = if built_in(&place) { (other.clone(), place) } else { (place, other.clone()) };
    let hint = if built_in(&other) {
        format!("`{name}` is built in; to replace it, name the file {name}.toml, else give it another `name`")
    } else {
        format!("the other one is at {other}; give one of them another `name`")
    };
    Error::usage(format!("scenario `{name}` is there twice")).at(place).hint(hint)
}

#[cfg(test)]
mod tests;
