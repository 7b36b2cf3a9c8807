//! Storage and datapath with their real processes.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed helper is a failed test.

mod calibration;
mod conformance;
mod datapath;
mod deaths;
mod dir;
mod full;
mod full_disks;
mod host;
mod hung;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use toolstack::helper_command::HelperCommand;

/// Environment variable that marks this program as a helper.
const HELPER: &str = "RINGWAY_TEST_HELPER";
/// Longest wait for an effect in another process that sends no event.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a command that runs the test `name` of this module as a helper. `more` appears on its
/// command line.
fn again(name: &str, more: &[&str]) -> HelperCommand {
    let exe = std::env::current_exe().unwrap();
    let mut words: Vec<OsString> = vec![format!("{HELPER}=1").into(), exe.into()];
    let path = format!("storage::{name}");
    words.extend(["--exact", &path, "--nocapture", "--"].map(OsString::from));
    words.extend(more.iter().map(OsString::from));
    HelperCommand { program: PathBuf::from("env"), words }
}

fn is_helper() -> bool {
    std::env::var_os(HELPER).is_some()
}

/// Returns the arguments after the first `--`.
fn helper_words() -> impl Iterator<Item = OsString> {
    std::env::args_os().skip_while(|word| word != "--").skip(1)
}

/// No test: a storage worker for the others.
#[test]
fn storage_worker() {
    if is_helper() {
        let _code = toolstack::sr::worker::serve();
        std::process::exit(0);
    }
}

/// No test: the helper that starts detached processes.
#[test]
fn spawned() {
    if is_helper() {
        let error = toolstack::detached_process::become_spawned(helper_words());
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let until = std::time::Instant::now() + PATIENCE;
    while !check().await {
        assert!(std::time::Instant::now() < until, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the processes whose command line contains this text.
fn processes(text: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        (line.contains(text) && pid.unsigned_abs() != std::process::id()).then_some(pid)
    });
    all.collect()
}

fn kill(pid: i32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: i32, which: Signal) {
    // The process may have exited.
    let _gone = kill_process(Pid::from_raw(pid).unwrap(), which);
}
