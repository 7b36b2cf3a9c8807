//! Invalid command lines, and those that only print information.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::Command;

use crate::common::*;

#[test]
fn wrong_options_are_named() {
    let null = ["--socket-path", "/nowhere/s", "--null", "1M"];
    for (extra, named) in [
        (vec!["--frobnicate"], "--frobnicate"),
        (vec!["--num-queues", "0"], "--num-queues"),
        (vec!["--num-queues", "257"], "--num-queues"),
        (vec!["--cache", "maybe"], "--cache"),
        (vec!["--blk-file", "/also"], "--blk-file"),
    ] {
        let (code, stderr) = ends(BLK, &[&null[..], &extra].concat());
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(named), "{stderr}");
    }
    let (code, stderr) = ends(BLK, &["--null", "1M"]);
    assert!(code == 2 && stderr.contains("--socket-path"), "{stderr}");
    let (code, stderr) = ends(IO, &["--frobnicate"]);
    assert!(code == 2 && stderr.contains("--frobnicate"), "{stderr}");
    let (code, stderr) = ends(IO, &[""; 0]);
    assert!(code == 2 && stderr.contains("--control"), "{stderr}");
    // Valid for the parser, but invalid for a disk.
    let (code, stderr) = ends(BLK, &["--socket-path", "/nowhere/s", "--null", "1000"]);
    assert!(code == 2 && stderr.contains("multiple"), "{stderr}");
}

#[test]
fn what_is_not_there_is_told_with_the_next_step() {
    for (program, options, next) in [
        (BLK, &["--socket-path", "/nowhere/s", "--null", "1M"][..], "`mkdir -p /nowhere`"),
        (IO, &["--control", "/nowhere/c"], "`mkdir -p /nowhere`"),
        (IO, &["upgrade", "--control", "/nowhere/c"], "`ringway-io --control /nowhere/c`"),
    ] {
        let (code, stderr) = ends(program, options);
        assert!(code == 1 && stderr.contains(next), "{code}: {stderr}");
    }
}

#[test]
fn capabilities_are_printed_whatever_else_is_there() {
    let output = Command::new(BLK).args(["--frobnicate", "--print-capabilities"]).output().unwrap();
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["type"], "block");
    assert_eq!(report["features"], serde_json::json!(["read-only", "blk-file"]));
}

#[test]
fn the_descriptors_for_discovery_are_what_qemu_reads() {
    for (text, kind, binary) in [
        (include_str!("../../../../packaging/50-ringway-blk.json"), "block", "/ringway-blk"),
        (include_str!("../../../../packaging/50-ringway-net.json"), "net", "/ringway-net"),
    ] {
        let descriptor: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(descriptor["type"], kind);
        assert!(descriptor["binary"].as_str().unwrap().ends_with(binary));
        assert!(descriptor["description"].is_string());
    }
}

#[test]
fn help_shows_how_to_use_it() {
    for (program, shown) in
        [(BLK, "vhost-user-blk-pci"), (NET, "virtio-net-pci"), (IO, "disk.attach")]
    {
        let output = Command::new(program).arg("--help").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(shown), "{text}");
    }
}

#[test]
fn the_host_is_probed_in_one_line() {
    let output = Command::new(IO).arg("--probe").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(report["usable"].is_boolean());
    assert!(report["reactors"].as_str().unwrap().contains("CPU"), "{report}");
}
