//! Exactly what was typed. Nothing is looked up here, so `--help` works whatever the environment is like.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// May this release go out to these devices?
#[derive(Debug, Parser)]
#[command(name = "farmgate", version, about, disable_help_subcommand = true)]
#[command(
    after_help = "exit codes: 0 GO, 1 NO-GO, 2 usage or configuration error (nothing was touched), 3 INCONCLUSIVE,\n\
                        4 INVALID (nothing that may be believed), 5 INFRA (devices or links failed), 70 a bug in farmgate"
)]
pub struct Cli {
    /// Folder that holds devices/, scenarios/ and reports/
    #[arg(long, value_name = "DIR", default_value = ".", global = true)]
    pub project: PathBuf,
    /// Folder for runs, artefacts and the index [default: PROJECT/results]
    #[arg(long, value_name = "DIR", global = true)]
    pub results: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run scenarios on devices, judge them and write the report
    Run(RunArgs),
    /// Judge a stored run by a policy
    Gate(GateArgs),
    /// Write the report of a stored run again, or list the runs
    Report(ReportArgs),
    /// The registered devices
    #[command(subcommand)]
    Device(DeviceVerb),
    /// Model files
    #[command(subcommand)]
    Model(ModelVerb),
    /// The bundled engine
    #[command(subcommand)]
    Engine(EngineVerb),
    /// The index over all runs
    #[command(subcommand)]
    Store(StoreVerb),
    /// The whole way on this machine: build the engine, smoke and latency, report and verdict
    Demo(DemoArgs),
}

/// `farmgate run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Scenarios, in order
    #[arg(required_unless_present = "resume", value_name = "SCENARIO")]
    pub scenarios: Vec<String>,
    /// The candidate: a GGUF file, or the first file of a split set
    #[arg(long, short, required_unless_present = "resume", value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// The baseline to compare with, in pairs on each device
    #[arg(long, value_name = "FILE")]
    pub baseline_model: Option<PathBuf>,
    /// Devices by name; may be repeated [default: all registered]
    #[arg(long, short, value_name = "NAME")]
    pub device: Vec<String>,
    /// Devices by their labels, for instance `phone & !old`
    #[arg(long, value_name = "LABELS", conflicts_with = "device")]
    pub labels: Option<String>,
    /// Pairs for each scenario, instead of what the scenario says
    #[arg(long, value_name = "N")]
    pub pairs: Option<u32>,
    /// Repetitions for each scenario without a baseline
    #[arg(long, value_name = "N")]
    pub repetitions: Option<u32>,
    /// Worker threads of the engine, instead of what the scenario says
    #[arg(long, short, value_name = "N")]
    pub threads: Option<u32>,
    /// Room in the KV cache in tokens, instead of what the scenario says; steps that need more are left out
    #[arg(long, value_name = "TOKENS")]
    pub context_tokens: Option<u32>,
    /// Policy: a name in scenarios/policies/ or a file [default: `default`, its rules for these scenarios]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Folder with built engines (farmhand-TARGET), instead of building one
    #[arg(long, value_name = "DIR")]
    pub artefacts: Option<PathBuf>,
    /// Go on with a run that was interrupted or whose farmgate died; models are looked for where they were
    #[arg(long, value_name = "RUN", conflicts_with_all = ["scenarios", "device", "labels", "pairs", "repetitions", "threads",
        "context_tokens", "dry_run"])]
    pub resume: Option<String>,
    /// Wait so long for devices that others hold, for instance 90s, 30m or 2h [default: not at all]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub wait: Option<Duration>,
    /// Print the plan and touch nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the plan or the run as JSON
    #[arg(long)]
    pub json: bool,
}

/// A time such as `90s`, `30m` or `1h 30m`, at most a week.
fn span(text: &str) -> Result<Duration, String> {
    let hint = || "give a time such as 90s, 30m or 2h, at most 168h".to_owned();
    let span: jiff::SignedDuration = text.parse().map_err(|_| hint())?;
    Duration::try_from(span).ok().filter(|time| time.as_secs() <= 7 * 24 * 3600).ok_or_else(hint)
}

/// `farmgate gate`.
#[derive(Debug, Args)]
pub struct GateArgs {
    /// The run [default: the newest]
    pub run: Option<String>,
    /// Policy: a name in scenarios/policies/ or a file [default: the one it ran with]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Print the judgement as JSON
    #[arg(long)]
    pub json: bool,
}

/// `farmgate report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The run [default: the newest]
    pub run: Option<String>,
    /// List the runs
    #[arg(long)]
    pub list: bool,
    /// Print one format to stdout instead of writing all into the run's folder
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Policy whose judgement the report shows [default: the one it ran with]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Folder to write into [default: the run's]
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Report formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One self-contained page
    Html,
    /// For a pull-request comment
    Md,
    /// For CI systems
    Junit,
    /// Raw samples
    Csv,
    /// Everything, versioned
    Json,
}

/// `farmgate device …`.
#[derive(Debug, Subcommand)]
pub enum DeviceVerb {
    /// List the registered devices
    List {
        /// Only those whose labels fit, for instance `phone & !old`
        #[arg(value_name = "LABELS")]
        labels: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask a device what it is; changes nothing but its farmgate folder
    Probe {
        /// The device's name
        device: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Folder with built engines, instead of building one
        #[arg(long, value_name = "DIR")]
        artefacts: Option<PathBuf>,
    },
    /// Register a device: reach it, ask what it is, and write its file
    Add {
        /// How it is reached
        #[command(subcommand)]
        how: AddVerb,
    },
    /// Say what will spoil a measurement on a device, and what mends it
    Doctor {
        /// The device's name
        device: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Folder with built engines, instead of building one
        #[arg(long, value_name = "DIR")]
        artefacts: Option<PathBuf>,
    },
    /// Say who holds a device; with --force, take it away
    Release {
        /// The device's name
        device: String,
        /// End the lease in its owner's stead; the owner is told by whom
        #[arg(long)]
        force: bool,
        /// Folder with built engines, instead of building one
        #[arg(long, value_name = "DIR")]
        artefacts: Option<PathBuf>,
    },
    /// Leave a device out of all runs until it is returned
    Quarantine {
        /// The device's name
        device: String,
        /// Why, for whoever finds it missing
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Take a device out of quarantine
    Return {
        /// The device's name
        device: String,
    },
}

/// `farmgate device add …`.
#[derive(Debug, Subcommand)]
pub enum AddVerb {
    /// A board or server with an ssh server
    Ssh {
        /// HOST, USER@HOST or an alias of ~/.ssh/config
        host: String,
        /// TCP port
        #[arg(long, value_name = "PORT")]
        port: Option<u16>,
        /// Private key
        #[arg(long, value_name = "FILE")]
        identity_file: Option<String>,
        /// File of host keys that are trusted
        #[arg(long, value_name = "FILE")]
        known_hosts_file: Option<String>,
        /// What all ways have in common
        #[command(flatten)]
        new: NewDevice,
    },
    /// A phone or tablet behind adb
    Adb {
        /// Serial as `adb devices` shows it, or HOST:PORT
        serial: String,
        /// The adb client, if another than the one in PATH
        #[arg(long, value_name = "FILE")]
        program: Option<String>,
        /// TCP port of the adb server
        #[arg(long, value_name = "PORT")]
        server_port: Option<u16>,
        /// What all ways have in common
        #[command(flatten)]
        new: NewDevice,
    },
}

/// What can be said of any new device.
#[derive(Debug, Args)]
pub struct NewDevice {
    /// Its name [default: from host or serial]
    #[arg(long)]
    pub name: Option<String>,
    /// Labels besides those that the probe gives; may be repeated
    #[arg(long, value_name = "LABEL")]
    pub label: Vec<String>,
    /// Folder on the device that farmgate may use [default: the transport's own choice]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Folder with built engines, instead of building one
    #[arg(long, value_name = "DIR")]
    pub artefacts: Option<PathBuf>,
}

/// `farmgate model …`.
#[derive(Debug, Subcommand)]
pub enum ModelVerb {
    /// Check a GGUF file and show what it is
    Inspect {
        /// The file, or the first file of a split set
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a model of a given shape with noise for weights: as fast and as large as the real one
    Synth {
        /// smollm2-135m, llama-1b, llama-3b, llama-7b, qwen-7b, or dimensions such as
        /// layers=24,hidden=2048,ffn=8192,heads=32,kv-heads=8,vocab=32000
        #[arg(long, value_name = "SHAPE")]
        like: String,
        /// Weight type, for instance q4_0, q8_0, q4_k_m, f16
        #[arg(long, value_name = "TYPE", default_value = "q4_0")]
        quant: String,
        /// Seed of the noise
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// File to write
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
}

/// `farmgate engine …`.
#[derive(Debug, Subcommand)]
pub enum EngineVerb {
    /// Build farmhand and print where it is [default: for this machine]
    Build {
        /// Build for this target, or aarch64, armv7, riscv64, x86_64; may be repeated
        #[arg(long, value_name = "TARGET")]
        target: Vec<String>,
        /// Build for every target among the registered devices
        #[arg(long, conflicts_with = "target")]
        all: bool,
    },
}

/// `farmgate store …`.
#[derive(Debug, Subcommand)]
pub enum StoreVerb {
    /// Make the index again from the runs' journals
    Rebuild,
}

/// `farmgate demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Pairs of the latency comparison
    #[arg(long, value_name = "N")]
    pub pairs: Option<u32>,
    /// Folder with built engines (farmhand-TARGET), instead of building one
    #[arg(long, value_name = "DIR")]
    pub artefacts: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_declared_without_contradictions() {
        Cli::command().debug_assert();
    }
}
