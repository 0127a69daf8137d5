//! `farmhand probe` and `farmhand hash` as scripts see them.

mod agent;

use agent::*;
use farmgate_engine::protocol::Fingerprint;
use std::path::Path;

#[test]
fn a_probe_is_one_line_of_json_and_many_with_pretty() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/sys/quad-a53");
    let plain = farmhand().arg("probe").arg("--root").arg(&root).output().unwrap();
    assert_eq!(plain.status.code(), Some(0));
    let text = String::from_utf8(plain.stdout).unwrap();
    assert_eq!(text.lines().count(), 1);
    let fingerprint: Fingerprint = serde_json::from_str(&text).unwrap();
    assert_eq!(fingerprint.clusters[0].cores, [0, 1, 2, 3]);
    let pretty = farmhand().arg("probe").arg("--pretty").arg("--root").arg(&root).output().unwrap();
    let pretty: Fingerprint = serde_json::from_slice(&pretty.stdout).unwrap();
    assert_eq!(pretty, fingerprint);
}

#[test]
fn a_root_that_is_no_folder_is_refused() {
    let output = farmhand().args(["probe", "--root", "/no/such/folder"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn hash_prints_what_it_can_read_and_fails_for_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("abc");
    std::fs::write(&good, b"abc").unwrap();
    let missing = folder.path().join("none");
    let output = farmhand().arg("hash").arg(&missing).arg(&good).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["sha256"], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!((said["bytes"].as_u64(), &said["path"]), (Some(3), &good.display().to_string().into()));
    assert!(stderr(&output).contains("none"));
    assert_eq!(farmhand().arg("hash").output().unwrap().status.code(), Some(2));
}
