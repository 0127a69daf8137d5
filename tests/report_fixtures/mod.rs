//! Runs made by code: a comparison on two devices, one full of trouble and hostile text, an empty one, an interrupted
//! one, and a large one. Noise comes from a seeded generator, so that snapshots hold.

use farmgate::error::ExitCode;
use farmgate::gate::{Estimate, Judgement, Outcome, RuleOutcome, Severity, Verdict};
use farmgate::run::{
    CellData, DeviceData, DeviceFacts, HostFacts, Manifest, ModelFacts, RunData, RunId, RunState, Sample,
};
use farmgate_engine::protocol::{
    Arm, ClusterClock, CoreCluster, EngineConfig, ExitCause, Fingerprint, Finite, MemoryParts, Reading, ReasonCode,
    SelfProof, Telemetry, TokenTimes, Validity,
};
use std::collections::BTreeMap;

/// A small seeded generator (splitmix64) with values about normally distributed.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
    /// A factor around 1 with the given relative spread.
    pub fn factor(&mut self, spread: f64) -> f64 {
        let sum: f64 = (0..6).map(|_| self.uniform() - 0.5).sum();
        1.0 + sum * 1.414 * spread
    }
}

pub fn finite(value: f64) -> Finite {
    Finite::new((value * 1e4).round() / 1e4).expect("a finite value")
}

pub fn model(name: &str, digit: char) -> ModelFacts {
    ModelFacts {
        name: name.into(),
        sha256: vec![digit.to_string().repeat(64)],
        file_bytes: 91_700_000,
        weight_bytes: 88_200_000,
        architecture: "llama".into(),
        parameters: 134_515_008,
        weight_type: "Q4_0".into(),
    }
}

pub fn manifest(run: &str, baseline: bool, devices: &[DeviceFacts]) -> Manifest {
    Manifest {
        run: RunId::parse(run).expect("a run's name"),
        created: "2026-07-01T09:30:00Z".into(),
        farmgate_version: "0.1.0".into(),
        host: HostFacts { os: "Debian 13".into(), kernel: "6.12.0".into(), cpus: 8, memory_bytes: 33_500_000_000 },
        scenarios: vec!["latency".into()],
        candidate: model("smollm2-135m-v2-q4_0.gguf", 'c'),
        baseline: baseline.then(|| model("smollm2-135m-v1-q4_0.gguf", 'b')),
        pairs: BTreeMap::from([("latency".to_owned(), 12)]),
        devices: devices.to_vec(),
        policy: None,
        typed: None,
    }
}

pub fn device(name: &str, soc: &str) -> DeviceData {
    let facts = DeviceFacts {
        device: name.into(),
        labels: vec!["arm64".into(), "lab-2".into()],
        tier: Some("mid".into()),
        transport: "ssh".into(),
        ..DeviceFacts::default()
    };
    let cluster = |cores: &[u32], khz, governor: &str| CoreCluster {
        cores: cores.to_vec(),
        capacity: None,
        clock_max_khz: Some(khz),
        governor: Some(governor.into()),
        offline: vec![],
    };
    let fingerprint = Fingerprint {
        target: "aarch64-unknown-linux-musl".into(),
        soc: soc.into(),
        product: Some(format!("{name} reference unit")),
        os_build: "Android 15 AP4A.250205".into(),
        kernel: "6.1.99-android14".into(),
        page_size_bytes: 4096,
        memory_bytes: 7_900_000_000,
        isa: vec!["dotprod".into(), "i8mm".into()],
        clusters: vec![
            cluster(&[4, 5, 6, 7], 2_850_000, "sched_util"),
            cluster(&[0, 1, 2, 3], 1_800_000, "sched_util"),
        ],
        power_modes: vec![("memory clock".into(), "3200 MHz".into())],
        battery_percent: Some(81),
        ..Fingerprint::default()
    };
    DeviceData {
        facts,
        fingerprint: Some(fingerprint),
        failure: None,
        engine_sha256: Some("e".repeat(64)),
        cells: vec![],
    }
}

pub fn cell(position: u32, arm: Arm, pair: u32, slot: u32) -> CellData {
    CellData {
        cell: position,
        scenario: "latency".into(),
        arm,
        pair,
        slot,
        model_sha256: vec![if arm == Arm::Baseline { "b" } else { "c" }.repeat(64)],
        config: EngineConfig::default(),
        attempts: 1,
        exit: Some(ExitCause::Done),
        duration_ms: Some(8_400),
        invalid: vec![],
        proof: Some(proof()),
        samples: vec![],
        token_times: vec![],
        telemetry: vec![],
        stderr_tail: String::new(),
    }
}

fn proof() -> SelfProof {
    SelfProof {
        build: "farmhand 0.1.0 (4f2a91c)".into(),
        engine_sha256: "e".repeat(64),
        model_sha256: vec!["c".repeat(64)],
        isa: "neon-dotprod".into(),
        config: EngineConfig::default(),
        threads_effective: 4,
        affinity_effective: vec!["4-7".into(); 4],
        weight_bytes: 88_200_000,
        kv_bytes: 94_371_840,
        scratch_bytes: 12_000_000,
        eviction: "posix_fadvise".into(),
        ..SelfProof::default()
    }
}

pub fn sample(metric: &str, repetition: u32, value: f64) -> Sample {
    Sample {
        attempt: 0,
        step: 1,
        repetition,
        metric: metric.into(),
        value: Some(finite(value)),
        validity: Validity::Valid,
    }
}

/// Speeds of a device: its metrics with the baseline's typical value, relative spread, and the candidate's factor.
type Speeds<'a> = [(&'a str, f64, f64, f64)];

/// Fills a device with ABBA pairs.
pub fn measure(device: &mut DeviceData, pairs: u32, speeds: &Speeds, noise: &mut Noise) {
    for pair in 0..pairs {
        let order = if pair % 2 == 0 { [Arm::Baseline, Arm::Candidate] } else { [Arm::Candidate, Arm::Baseline] };
        for (slot, arm) in order.into_iter().enumerate() {
            let position = pair * 2 + slot as u32;
            let mut cell = cell(position, arm, pair, slot as u32);
            for (metric, typical, spread, change) in speeds {
                let factor = if arm == Arm::Candidate { *change } else { 1.0 };
                for repetition in 0..3 {
                    cell.samples.push(sample(metric, repetition, typical * factor * noise.factor(*spread)));
                }
            }
            let slow = if arm == Arm::Candidate { 1.06 } else { 1.0 };
            let itl_us = (0..127)
                .map(|i| {
                    (18_500.0 * slow * (1.0 + f64::from(i) * 0.0009) * noise.factor(0.05)) as u32
                        + if i % 61 == 60 { 9_000 } else { 0 }
                })
                .collect();
            cell.token_times.push(TokenTimes {
                cell: position,
                attempt: 0,
                step: 2,
                repetition: 0,
                qualifier: "0".into(),
                itl_us,
                first_eog_index: None,
            });
            cell.telemetry = (0..8).map(|i| telemetry(position, i, noise)).collect();
            device.cells.push(cell);
        }
    }
}

fn telemetry(cell: u32, step: u32, noise: &mut Noise) -> (u64, Telemetry) {
    let minutes = f64::from(cell * 8 + step) / 60.0;
    let heat = 34.0 + 22.0 * (1.0 - (-minutes / 1.5).exp());
    let reading = |sensor: &str, celsius: f64| Reading { sensor: sensor.into(), celsius: finite(celsius) };
    let clock = if heat > 53.0 { 2_400_000 } else { 2_850_000 };
    let rss = 60_000_000 + u64::from(step.min(4)) * 30_000_000;
    let at = 5_000_000_000 + u64::from(cell * 10 + step) * 1_000_000;
    let record = Telemetry {
        cell,
        temperatures: vec![
            reading("cpu-big", heat * noise.factor(0.01)),
            reading("cpu-little", heat - 4.0),
            reading("battery", 31.0 + minutes / 2.0),
        ],
        clocks: vec![ClusterClock { core: 4, clock_khz: clock }, ClusterClock { core: 0, clock_khz: 1_800_000 }],
        memory: MemoryParts {
            source: "smaps_rollup".into(),
            rss_bytes: Some(rss),
            peak_rss_bytes: Some(rss),
            pss_bytes: Some(rss),
            anon_bytes: Some(rss / 2),
            file_bytes: Some(rss / 2),
            swap_bytes: Some(0),
        },
        mem_available_bytes: Some(3_100_000_000),
        ..Telemetry::default()
    };
    (at, record)
}

pub const PHONE: &Speeds = &[
    ("decode-tps@0", 53.8, 0.03, 0.942),
    ("prefill-tps@512", 412.0, 0.02, 1.004),
    ("ttft-ms@512", 1243.0, 0.025, 0.998),
    ("load-warm-ms", 61.0, 0.08, 1.01),
    ("itl-p95-ms@0", 20.4, 0.04, 1.05),
];
pub const SBC: &Speeds = &[
    ("decode-tps@0", 21.2, 0.006, 0.998),
    ("prefill-tps@512", 96.0, 0.005, 1.001),
    ("ttft-ms@512", 5330.0, 0.006, 1.0),
    ("load-warm-ms", 188.0, 0.03, 0.99),
    ("itl-p95-ms@0", 49.7, 0.01, 1.002),
];

/// A comparison on two devices; the candidate is 5.8 % slower on one of them.
pub fn comparison() -> (RunData, Judgement) {
    let mut noise = Noise::new(7);
    let mut phone = device("pixel-7", "Google Tensor G2");
    let mut sbc = device("rpi-5", "Broadcom BCM2712");
    measure(&mut phone, 12, PHONE, &mut noise);
    measure(&mut sbc, 12, SBC, &mut noise);
    if let Some(print) = &mut sbc.fingerprint {
        print.os_build = "Debian 13".into();
        print.battery_percent = None;
    }
    for cell in &mut sbc.cells {
        for (_, record) in &mut cell.telemetry {
            record.temperatures.clear();
        }
    }
    let facts = [phone.facts.clone(), sbc.facts.clone()];
    let run = RunData {
        manifest: manifest("2026-07-01-latency", true, &facts),
        state: RunState::Complete,
        resumed: vec![],
        devices: vec![phone, sbc],
    };
    let judgement = Judgement {
        policy: "release".into(),
        verdict: Verdict::NoGo,
        sentence: "1 of 6 critical rules fails: decode-tps@0 on pixel-7 is 5.9 % slower (interval 7.1 to 4.6 % \
                   slower, 12 pairs) where at most 5 % slower is allowed, and 4.6 % is the best that the data leave"
            .into(),
        outcomes: vec![
            paired("decode-speed", "pixel-7", "decode-tps@0", Outcome::Fail, 0.941, (0.929, 0.948)),
            paired("decode-speed", "rpi-5", "decode-tps@0", Outcome::Pass, 0.998, (0.995, 1.001)),
            paired("first-token", "pixel-7", "ttft-ms@512", Outcome::Inconclusive, 0.999, (0.94, 1.062)),
            paired("first-token", "rpi-5", "ttft-ms@512", Outcome::Pass, 1.001, (0.998, 1.003)),
            absolute("usable", "pixel-7", "decode-tps@0", Outcome::Pass, 50.7, (49.9, 51.3), 8.0),
            absolute("usable", "rpi-5", "decode-tps@0", Outcome::Pass, 21.15, (21.1, 21.2), 8.0),
            RuleOutcome {
                severity: Severity::Inform,
                ..paired("load", "pixel-7", "load-warm-ms", Outcome::Pass, 1.012, (0.98, 1.043))
            },
        ],
        exit: ExitCode::NoGo,
    };
    (run, judgement)
}

pub fn paired(
    rule: &str,
    device: &str,
    metric: &str,
    outcome: Outcome,
    point: f64,
    (low, high): (f64, f64),
) -> RuleOutcome {
    let slower = if metric.contains("tps") { 0.95 } else { 1.05 };
    RuleOutcome {
        rule: rule.into(),
        device: device.into(),
        scenario: "latency".into(),
        metric: metric.into(),
        severity: Severity::Critical,
        demand: "at most 5 % slower".into(),
        outcome,
        sentence: format!(
            "at most 5 % slower is allowed; {:+.1} % was found, interval {:+.1} to {:+.1} %, 12 pairs",
            (point - 1.0) * 100.0,
            (low - 1.0) * 100.0,
            (high - 1.0) * 100.0
        ),
        estimate: Some(Estimate {
            point,
            low,
            high,
            confidence: 0.9,
            n: 12,
            method: "Hodges-Lehmann, exact signed-rank".into(),
        }),
        limit: Some(slower),
        is_comparison: true,
    }
}

pub fn absolute(
    rule: &str,
    device: &str,
    metric: &str,
    outcome: Outcome,
    point: f64,
    (low, high): (f64, f64),
    limit: f64,
) -> RuleOutcome {
    RuleOutcome {
        demand: format!("at least {limit} token/s"),
        sentence: format!("at least {limit} token/s is required; {point} was found, interval {low} to {high}, n = 12"),
        estimate: Some(Estimate {
            point,
            low,
            high,
            confidence: 0.9,
            n: 12,
            method: "median, order statistics".into(),
        }),
        limit: Some(limit),
        is_comparison: false,
        ..paired(rule, device, metric, outcome, point, (low, high))
    }
}

/// Text that tries to break out of every format.
pub const HOSTILE: &str = "<script>alert(1)</script>|`x`\u{1b}[31m\u{202e}\"'&@all https://evil.example ]]>";

/// One device out of reach, one with INVALID, killed, crashed and hostile cells.
pub fn trouble() -> (RunData, Judgement) {
    let mut noise = Noise::new(11);
    let lost = DeviceData {
        fingerprint: None,
        engine_sha256: None,
        failure: Some("ssh: connection refused\n  --> device lost-1\n\nhint: is sshd running?".into()),
        cells: (0..4)
            .map(|i| CellData {
                attempts: 0,
                exit: None,
                proof: None,
                duration_ms: None,
                ..cell(i, Arm::Candidate, i, 0)
            })
            .collect(),
        ..device("lost-1", "")
    };
    let mut ill = device(HOSTILE, HOSTILE);
    measure(&mut ill, 6, PHONE, &mut noise);
    ill.cells[1].invalid = vec![ReasonCode::NotCool];
    ill.cells[1].attempts = 3;
    for sample in &mut ill.cells[1].samples {
        sample.attempt = 2;
    }
    ill.cells[2].samples[0].validity = Validity::Invalid(ReasonCode::NotFinite);
    ill.cells[2].samples[0].value = None;
    ill.cells[3].exit = Some(ExitCause::Killed { by: "oom-kernel".into() });
    ill.cells[3].stderr_tail = "loading weights\nmapping 88 MB\n\u{1b}[2Jgone <b>bold</b> ]]> `tick`".into();
    ill.cells[4].exit = Some(ExitCause::Crash { signal: "SIGILL".into() });
    ill.cells[5].exit = Some(ExitCause::Timeout { phase: "load".into(), budget_ms: 30_000 });
    ill.cells[6].exit = Some(ExitCause::Failed { status: 2, what: "x".repeat(10_000) });
    let hostile = RuleOutcome {
        sentence: format!("the device {HOSTILE} died"),
        estimate: None,
        limit: None,
        is_comparison: false,
        ..paired(HOSTILE, HOSTILE, "decode-tps@0", Outcome::Invalid, 1.0, (1.0, 1.0))
    };
    let unbounded = paired("first-token", HOSTILE, "ttft-ms@512", Outcome::Inconclusive, 1.1, (0.0, f64::INFINITY));
    let infra = RuleOutcome {
        sentence: "no data: the device could not be reached".into(),
        estimate: None,
        limit: None,
        is_comparison: false,
        scenario: String::new(),
        ..paired("decode-speed", "lost-1", "decode-tps@0", Outcome::Infra, 1.0, (1.0, 1.0))
    };
    let facts = [lost.facts.clone(), ill.facts.clone()];
    let run = RunData {
        manifest: manifest("trouble", true, &facts),
        state: RunState::Complete,
        resumed: vec![],
        devices: vec![lost, ill],
    };
    let judgement = Judgement {
        policy: "release".into(),
        verdict: Verdict::Inconclusive,
        sentence: "2 critical rules have no data that may be believed".into(),
        outcomes: vec![infra, hostile, unbounded],
        exit: ExitCode::Infra,
    };
    (run, judgement)
}

/// A run that ended before its first device.
pub fn empty() -> RunData {
    RunData { manifest: manifest("empty", false, &[]), state: RunState::Unfinished, resumed: vec![], devices: vec![] }
}

/// A run without a baseline that was stopped half way.
pub fn interrupted() -> RunData {
    let mut noise = Noise::new(3);
    let mut sbc = device("rpi-5", "Broadcom BCM2712");
    measure(&mut sbc, 6, SBC, &mut noise);
    sbc.cells.retain(|c| c.arm == Arm::Candidate);
    let cells = &mut sbc.cells;
    cells[3].exit = Some(ExitCause::Interrupted);
    for cell in &mut cells[4..] {
        *cell = CellData {
            attempts: 0,
            exit: None,
            proof: None,
            samples: vec![],
            token_times: vec![],
            telemetry: vec![],
            duration_ms: None,
            ..cell.clone()
        };
    }
    let facts = [sbc.facts.clone()];
    RunData {
        manifest: manifest("stopped", false, &facts),
        state: RunState::Interrupted,
        resumed: vec![],
        devices: vec![sbc],
    }
}

/// Many devices with 20 metrics and 100 samples of each arm a metric.
pub fn large(devices: usize) -> (RunData, Judgement) {
    let names: Vec<String> = (0..20).map(|i| format!("decode-tps@{}", i * 64)).collect();
    let speeds: Vec<(&str, f64, f64, f64)> = names.iter().map(|n| (n.as_str(), 30.0, 0.05, 0.99)).collect();
    let mut noise = Noise::new(5);
    let mut all = Vec::new();
    let mut outcomes = Vec::new();
    for position in 0..devices {
        let name = format!("phone-{position:04}");
        let mut one = device(&name, "Example SoC");
        // 17 pairs of 3 repetitions in two arms: 102 samples
        measure(&mut one, 17, &speeds, &mut noise);
        for metric in &names {
            let outcome = if position % 10 == 0 { Outcome::Fail } else { Outcome::Pass };
            outcomes.push(paired("speed", &name, metric, outcome, 0.99, (0.97, 1.01)));
        }
        all.push(one);
    }
    let facts: Vec<DeviceFacts> = all.iter().map(|d| d.facts.clone()).collect();
    let run =
        RunData { manifest: manifest("large", true, &facts), state: RunState::Complete, resumed: vec![], devices: all };
    let judgement = Judgement {
        policy: "release".into(),
        verdict: Verdict::NoGo,
        sentence: "many rules fail".into(),
        outcomes,
        exit: ExitCode::NoGo,
    };
    (run, judgement)
}
