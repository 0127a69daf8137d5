//! What the real binary proves about itself and its memory, verb by verb.

mod agent;

use agent::*;
use farmgate_engine::hash::sha256_file;
use farmgate_engine::protocol::{CellPlan, EngineConfig, KvType, ReasonCode, SelfProof, Validity};
use farmgate_engine::synth::{self, Shape};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

/// A model whose weights are much larger than what may stay unexplained.
fn noise(folder: &Path) -> String {
    let shape = Shape::parse("layers=2,hidden=512,ffn=1024,heads=8,kv-heads=2,vocab=32000,context=512,tied=1").unwrap();
    let path = folder.join("noise.gguf");
    synth::write(&shape, "f16", 1, &path).unwrap();
    path.display().to_string()
}

fn tiny() -> String {
    tiny_model().display().to_string()
}

fn verb(words: &[&str]) -> Output {
    farmhand().args(words).output().unwrap()
}

/// The rows of `farmhand bench -o jsonl` with these words more, and the exit code.
fn bench(model: &str, words: &[&str]) -> (Vec<Value>, Option<i32>, String) {
    let all = ["bench", "-m", model, "-o", "jsonl", "-r", "1"];
    let output = verb(&[&all[..], words].concat());
    let rows = String::from_utf8(output.stdout.clone()).unwrap();
    (rows.lines().map(|l| serde_json::from_str(l).unwrap()).collect(), output.status.code(), stderr(&output))
}

fn proof_of(row: &Value) -> SelfProof {
    serde_json::from_value(row["proof"].clone()).unwrap()
}

fn binary_sha256() -> String {
    sha256_file(Path::new(env!("CARGO_BIN_EXE_farmhand"))).unwrap()
}

#[test]
fn bench_explains_its_anonymous_memory_mapped_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = noise(folder.path());
    let file_bytes = std::fs::metadata(&model).unwrap().len();
    for (flags, mapped, anonymous) in [(["-mmp", "1"], file_bytes, 0), (["-mmp", "0"], 0, file_bytes)] {
        let (rows, code, said) =
            bench(&model, &[&["-p", "64", "-n", "4", "-d", "0,64", "-t", "1"][..], &flags].concat());
        assert_eq!((rows.len(), code), (4, Some(0)), "{said}");
        for row in &rows {
            let memory = |name: &str| row["memory"][name].as_u64().unwrap_or_else(|| panic!("{name}: {row}"));
            assert_eq!(memory("weights_mapped_bytes"), mapped);
            assert_eq!(memory("weights_anonymous_bytes"), anonymous);
            assert!(memory("unexplained_bytes") <= memory("unexplained_bytes_max"), "{row}");
            // what is read is anonymous, what is mapped was paged in at load
            assert!(memory("rss_anon_bytes") >= anonymous && memory("rss_file_bytes") >= mapped, "{row}");
            assert!(memory("rss_peak_bytes") >= memory("rss_bytes") && memory("kv_bytes") > 0);
            assert_eq!(row["use_mmap"], mapped > 0);
            assert_eq!(proof_of(row).held.anonymous_bytes, anonymous);
        }
    }
}

#[test]
fn keys_and_values_of_different_types_are_both_in_the_proof() {
    let (rows, code, said) = bench(&tiny(), &["-p", "4", "-n", "0", "-t", "1", "-ctk", "q8_0,f16", "-ctv", "f16"]);
    assert_eq!(code, Some(0), "{said}");
    let types: Vec<_> = rows.iter().map(proof_of).map(|p| (p.config.kv_type, p.kv_value_type)).collect();
    assert_eq!(types, [(KvType::Q8_0, Some(KvType::F16)), (KvType::F16, None)]);
}

#[test]
fn bench_holds_for_a_decode_what_one_token_needs() {
    let folder = tempfile::tempdir().unwrap();
    let model = noise(folder.path());
    let (rows, ..) = bench(&model, &["-p", "256", "-n", "2", "-t", "1"]);
    let scratch = |row: &Value| row["memory"]["scratch_bytes"].as_u64().unwrap();
    assert!(scratch(&rows[1]) * 4 < scratch(&rows[0]), "{} and {}", scratch(&rows[1]), scratch(&rows[0]));
}

#[test]
fn every_verb_says_which_binary_and_model_ran_and_how() {
    let (rows, _, said) = bench(&tiny(), &["-p", "8", "-n", "0", "-t", "1", "-tb", "2"]);
    let proof = proof_of(&rows[0]);
    assert_eq!(
        (&proof.engine_sha256, &proof.model_sha256),
        (&binary_sha256(), &model_ref(&tiny_model()).sha256),
        "{said}"
    );
    assert_eq!((proof.threads_effective, proof.threads_batch_effective), (1, 2));
    assert_eq!(rows[0]["n_threads"], 2, "a prompt has its own number of threads");
    assert_eq!((proof.affinity_wanted, proof.affinity_effective.len()), (proof.affinity_effective.clone(), 2));
    let (rows, ..) = bench(&tiny(), &["-p", "8", "-n", "0", "--no-model-hash"]);
    assert_eq!(proof_of(&rows[0]).model_sha256, [""; 0]);

    let model_sha256 = &model_ref(&tiny_model()).sha256[0];
    let generated = |words: &[&str]| {
        let output = verb(&[&["generate", "-m", &tiny(), "-p", "One day", "-n", "4"][..], words].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output))
    };
    let (text, head) = generated(&["--proof"]);
    assert!(head.contains(&binary_sha256()) && head.contains(model_sha256), "{head}");
    assert!(head.contains("model mapped, not locked") && head.contains("kv cache f16"), "{head}");
    let (same_text, head) = generated(&["--no-mmap"]);
    assert!(head.contains("model not hashed") && head.contains("model read into memory"), "{head}");
    assert_eq!(text, same_text);
    assert!(!text.contains("sha256"), "stdout is data");

    let folder = tempfile::tempdir().unwrap();
    let ids = folder.path().join("ids");
    std::fs::write(&ids, "1 5 9 12 7 3 8 44").unwrap();
    let output = verb(&["perplexity", "-m", &tiny(), "--ids", &ids.display().to_string(), "-c", "0"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!(
        (proof_of(&found).model_sha256, proof_of(&found).engine_sha256),
        (vec![model_sha256.clone()], binary_sha256())
    );
}

#[test]
fn a_core_that_cannot_be_had_makes_bench_invalid_and_never_goes_unsaid() {
    let (rows, code, said) = bench(&tiny(), &["-p", "8", "-n", "2", "--cpus", "4095"]);
    assert_eq!((rows.len(), code), (2, Some(3)), "{said}");
    for row in &rows {
        assert_eq!(row["invalid"], serde_json::json!(["affinity-differs"]));
        assert!(proof_of(row).affinity_faults[0].contains("pinned to core 4095"));
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0, "raw figures are kept");
    }
    assert!(said.contains("INVALID (affinity-differs): worker 0 was pinned to core 4095"), "{said}");
    let (rows, code, said) = bench(&tiny(), &["-p", "8", "-n", "2"]);
    assert_eq!((rows.len(), code, rows[0]["invalid"].as_array().unwrap().len()), (2, Some(0), 0), "{said}");
}

#[test]
fn flags_that_contradict_each_other_are_refused_before_anything_is_measured() {
    for (words, what) in [
        (&["--cpus", "0", "-t", "2"][..], "2 threads do not fit 1 cores"),
        (&["--cpus", "0", "--cpu-clusters", "big"], "cores 0 and clusters big are both asked for"),
        (&["--cpu-clusters", "prime"], "flag `--cpu-clusters`: `prime` is none of big, mid, little, all"),
        (&["--cpus", "0-"], "flag `--cpus`: `0-` is neither"),
    ] {
        let (rows, code, said) = bench(&tiny(), words);
        assert_eq!((rows.len(), code), (0, Some(2)), "{said}");
        assert!(said.contains(what), "`{what}` is missing: {said}");
    }
}

#[test]
fn a_cell_whose_cores_cannot_be_had_is_invalid_for_that_reason() {
    let config = EngineConfig { cpus: "4095".parse().unwrap(), threads: 0, ..short(0).config };
    let desk = Desk::new(&plan(vec![CellPlan { config, ..short(0) }, short(1)]));
    let output = desk.run();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let ends = desk.ends();
    assert_eq!(ends[0].3, [ReasonCode::AffinityDiffers]);
    assert_eq!(ends[1].3, []);
    let samples = desk.samples();
    let invalid = Validity::Invalid(ReasonCode::AffinityDiffers);
    assert!(samples.iter().filter(|s| s.cell == 0).all(|s| s.validity == invalid));
    assert!(samples.iter().filter(|s| s.cell == 1).all(|s| s.validity == Validity::Valid));
}

/// farmhand with a limit of 64 KiB of locked memory, as on Android, and without the right to exceed it.
#[cfg(target_os = "linux")]
fn with_small_lock_limit(words: &[&str]) -> Output {
    use std::os::unix::process::CommandExt;
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    let mut command = farmhand();
    command.args(words);
    // SAFETY: between fork and exec only the async-signal-safe calls prctl and setrlimit are made
    unsafe {
        command.pre_exec(|| {
            // refused where there is no such right anyway
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
            let limit = libc::rlimit { rlim_cur: 65_536, rlim_max: 65_536 };
            if libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    command.output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_model_that_may_not_be_locked_is_measured_and_the_record_says_that_it_is_not_locked() {
    let words = ["bench", "-m", &tiny(), "-o", "jsonl", "-r", "1", "-p", "8", "-n", "0", "--mlock", "--repack", "off"];
    let output = with_small_lock_limit(&words);
    let said = stderr(&output);
    let bytes = std::fs::metadata(tiny_model()).unwrap().len();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let warning = format!("it takes {bytes} bytes, this process may lock 65536\n\nhint: raise the limit");
    assert!(said.contains(&warning), "{said}");
    let row: Value = serde_json::from_slice(&output.stdout).unwrap();
    let proof = proof_of(&row);
    assert_eq!((proof.config.mlock, proof.held.locked_bytes), (true, 0));
    assert_eq!(
        (row["memory"]["weights_locked_bytes"].as_u64(), row["memory"]["locked_bytes"].as_u64()),
        (Some(0), Some(0))
    );
}

#[test]
fn what_is_said_to_be_locked_is_what_the_kernel_has_locked() {
    for mmap in ["1", "0"] {
        let (rows, code, said) = bench(&tiny(), &["-p", "8", "-n", "0", "--mlock", "-mmp", mmap]);
        assert_eq!(code, Some(0), "{said}");
        let memory = |name: &str| rows[0]["memory"][name].as_u64().unwrap();
        // the kernel locks whole pages
        assert!(memory("locked_bytes").abs_diff(memory("weights_locked_bytes")) < 65_536, "{}", rows[0]);
        assert_eq!(memory("weights_locked_bytes") == 0, said.contains("is not locked in memory"), "{said}");
    }
}

#[test]
fn warm_says_what_was_and_is_in_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let model = noise(folder.path());
    let output = verb(&["warm", "-m", &model, "-m", &tiny()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (&lines[0]["path"], lines[0]["bytes"].as_u64()),
        (&Value::from(&*model), std::fs::metadata(&model).ok().map(|m| m.len()))
    );
    assert_eq!(lines[0]["resident_after_ratio"], 1.0);
    assert!(lines[0]["duration_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(verb(&["warm", "-m", "/nowhere/m.gguf"]).status.code(), Some(2));
}
