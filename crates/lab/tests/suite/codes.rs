//! Exit codes of the program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use lab::results::Results;
use rustix::process::{Pid, Signal, kill_process};

fn lab() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway-lab"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn an_unknown_experiment_is_wrong_usage() {
    for words in [&["run", "no-such"][..], &["report", "no-such"], &["rum"]] {
        let output = lab().args(words).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {stderr}");
    }
    let folder = tempfile::tempdir().unwrap();
    let empty = lab().args(["report", "--out"]).arg(folder.path()).output().unwrap();
    assert_eq!(empty.status.code(), Some(1), "nothing is wrong with the words");
}

#[test]
fn the_exit_code_and_the_report_are_those_of_the_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = lab();
    run.args(["run", "blk-baseline", "--quick", "--only", "direct-4k-d1", "--rounds", "2"]);
    run.args(["--window-ms", "20", "--out"]).arg(folder.path()).stdout(Stdio::piped());
    let output = run.output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    let [results] = &Results::newest(folder.path(), None).unwrap()[..] else { panic!("{report}") };
    let verdict = results.verdict.unwrap();
    assert_eq!(output.status.code(), Some(verdict.exit_code().into()), "{report}");
    assert!(report.starts_with(&format!("# {}: blk-baseline (", verdict.word())), "{report}");
    assert!(!report.contains('\x1b'), "no terminal, no colours: {report}");
}

#[test]
fn a_run_whose_files_cannot_be_written_prints_its_report() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut run = lab();
    run.args(["run", "blk-baseline", "--quick", "--only", "null-4k-d1-poll", "--rounds", "2"]);
    run.args(["--window-ms", "20", "--out"]).arg(file.path().join("in-a-file"));
    let output = run.stdout(Stdio::piped()).output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(report.contains(": blk-baseline ("), "{report}");
    assert!(stderr.contains("cannot create"), "{stderr}");
}

#[test]
fn an_excused_miss_in_older_results_is_undecided() {
    let folder = tempfile::tempdir().unwrap();
    let older = include_str!("../fixtures/results-1.json");
    std::fs::write(folder.path().join("blk-baseline-20261127-183753.json"), older).unwrap();
    let mut report = lab();
    report.args(["report", "--out"]).arg(folder.path()).stdout(Stdio::piped());
    let output = report.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("# UNDECIDED: blk-baseline (20261127-183753 UTC, quick, "), "{text}");
    assert!(text.contains("\n- UNDECIDED 0.686x (at least 0.95x; "), "{text}");
    assert!(!text.contains("PASS") && output.status.code() == Some(0), "{text}");
}

#[test]
fn an_interrupted_run_says_by_what() {
    let folder = tempfile::tempdir().unwrap();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut run = lab();
        run.args([
            "run",
            "blk-baseline",
            "--quick",
            "--only",
            "null-4k-d1-sleep",
            "--rounds",
            "200",
        ]);
        run.args(["--window-ms", "50", "--out"]).arg(folder.path());
        let mut run = run.spawn().unwrap();
        let mut stderr = BufReader::new(run.stderr.take().unwrap());
        // The first progress line shows that the run has started.
        let mut line = Vec::new();
        stderr.read_until(b'\n', &mut line).unwrap();
        kill_process(Pid::from_child(&run), signal).unwrap();
        let rest = std::io::read_to_string(stderr).unwrap();
        let status = run.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{}{rest}", String::from_utf8_lossy(&line));
        assert!(rest.contains("interrupted"), "{rest}");
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "nothing was written");
}
