//! Test of the README's `xe` commands, as written there, on a real guest.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::guest::boot_config;
use testkit::process::{Process, write_script};
use testkit::ringwayd::Ringwayd;

/// Longest wait for the guest's shell: a machine without KVM boots in some seconds.
const BOOT_DEADLINE: Duration = Duration::from_secs(120);
/// Text that the guest prints when its shell is ready.
const READY: &str = "ringway-guest: ready";

/// Returns the commands of the block that begins with `first`, one a line.
fn block(first: &str) -> Vec<String> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let from = readme.find(&format!("```sh\n{first}")).expect("the block is in the README");
    let lines = readme[from..].lines().skip(1).take_while(|line| *line != "```");
    lines.map(str::to_owned).collect()
}

/// Starts a daemon that finds the built guest. Also returns a directory with an `xe` for it.
fn host() -> (Ringwayd, tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let config = boot_config().unwrap();
    let daemon = Ringwayd::start(&["--config", config.path().to_str().unwrap()]).unwrap();
    let xe = daemon.xe(&[]).unwrap();
    let words: Vec<_> = [xe.get_program()].into_iter().chain(xe.get_args()).collect();
    let words: Vec<_> = words.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let path = dir.path().join("xe");
    write_script(&path, &format!("exec {} \"$@\"", words.join(" "))).unwrap();
    (daemon, dir, path)
}

fn typed(line: &str, folder: &Path) -> Command {
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-ec", line]).env("PATH", path).env("HOME", folder);
    command
}

#[test]
fn a_host_that_xe_drives() {
    let (daemon, dir, _xe) = host();
    let mut lines = block("xe vm-install");
    let console = lines.pop().unwrap();
    assert!(console.starts_with("xe console"), "the last line shows the console: {console}");
    for line in &lines {
        let output = typed(line, dir.path()).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(
        daemon
            .xe_prints(&["vm-list", "name-label=first", "power-state=running", "--minimal"])
            .unwrap()
            .len(),
        36
    );
    let mut shell =
        Process::start(typed(&format!("exec {console}"), dir.path()).stdout(Stdio::piped()))
            .unwrap();
    let mut stdout = shell.child().stdout.take().unwrap();
    let (mut received, until) = (Vec::new(), Instant::now() + BOOT_DEADLINE);
    while !String::from_utf8_lossy(&received).contains(READY) {
        let mut chunk = [0; 4096];
        let n = stdout.read(&mut chunk).unwrap();
        let text = String::from_utf8_lossy(&received).into_owned();
        assert!(n > 0 && Instant::now() < until, "{}: {text}", shell.stderr());
        received.extend_from_slice(&chunk[..n]);
    }
    drop(shell);
    daemon.xe_prints(&["vm-disk-add", "vm=first", "disk-size=1GiB", "device=0"]).unwrap();
    daemon.xe_prints(&["vm-shutdown", "vm=first"]).unwrap();
}
