//! Tests of `ringway doctor` on this host, and on a host that lacks everything.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use crate::common::{Running, World};

fn doctor(world: &World, path: Option<&str>, format: &str) -> (Option<i32>, String) {
    let mut command = world.ringway();
    command.args(["doctor", "--format", format]).arg("--path").arg(world.dir("images"));
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let (status, output, _) = Running::start(&mut command).finish();
    (status.code(), output)
}

#[test]
fn the_exit_code_agrees_with_the_findings() {
    let world = World::new();
    let (code, output) = doctor(&world, None, "json");
    let findings: Vec<serde_json::Value> = serde_json::from_str(&output).unwrap();
    assert!(findings.len() >= 10, "{output}");
    let failing = findings.iter().any(|finding| finding["level"] == "failure");
    assert_eq!(code, Some(i32::from(failing)), "{output}");
    let io_uring = findings.iter().find(|finding| finding["check"] == "io_uring").unwrap();
    assert_ne!(io_uring["level"], "failure", "{output}");
}

/// The sizes are those of the table in docs/sizing.md.
#[test]
fn every_size_is_told_with_its_reason() {
    let world = World::new();
    let (_, output) = doctor(&world, None, "json");
    let findings: Vec<serde_json::Value> = serde_json::from_str(&output).unwrap();
    for size in ["memory share", "reactors", "image cache", "request buffers", "device steps"] {
        let reported: Vec<_> = findings.iter().filter(|finding| finding["check"] == size).collect();
        let [finding] = reported[..] else { panic!("{size}: {reported:?}") };
        assert_eq!(finding["level"], "ok", "{finding}");
        let found = finding["found"].as_str().unwrap();
        let [number, why] = [0, 1].map(|part| found.splitn(2, [':', ',']).nth(part).unwrap());
        assert!(number.starts_with(|first: char| first.is_ascii_digit()), "{finding}");
        assert!(!why.trim().is_empty(), "{finding}");
    }
}

#[test]
fn a_missing_qemu_fails_with_what_to_do() {
    let world = World::new();
    let (code, output) = doctor(&world, Some("/nonexistent"), "table");
    assert_eq!(code, Some(1));
    assert!(output.contains("apt-get install qemu-system-x86"), "{output}");
}
