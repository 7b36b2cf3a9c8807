//! XenServer's Python bindings with an administrator's script, against a daemon with a real guest.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::path::Path;
use std::process::Command;

use tempfile::NamedTempFile;
use testkit::guest::boot_config;
use testkit::ringwayd::Ringwayd;
use testkit::{python, rounds};

/// Runs the script: start, start again, shut down by a task, log out.
fn script(daemon: &mut Ringwayd) {
    let url = match daemon.tls() {
        Some(place) => format!("https://{place}"),
        None => daemon.url().unwrap(),
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/script1/script.py");
    let mut command = Command::new(python::with(python::XENAPI).unwrap());
    let output = command.arg(script).arg(url).arg(daemon.password().unwrap()).output();
    let output = output.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}

/// Starts a daemon with the VM that the script expects.
fn with_machine(options: &[&str]) -> (Ringwayd, NamedTempFile) {
    let config = boot_config().unwrap();
    let path = config.path().display().to_string();
    let daemon = Ringwayd::start(&[options, &["--config", &path]].concat()).unwrap();
    daemon
        .xe_prints(&["vm-install", "template=Ringway test guest", "new-name-label=testvm"])
        .unwrap();
    (daemon, config)
}

#[test]
fn the_script_passes_on_the_simulator() {
    let (mut daemon, _config) = with_machine(&["--hypervisor", "simulator"]);
    for _ in 0..rounds(2, 20) {
        script(&mut daemon);
    }
}

#[test]
fn the_script_passes_over_tls() {
    let options = ["--hypervisor", "simulator", "--listen", "127.0.0.1:0"];
    let (mut daemon, _config) = with_machine(&options);
    assert!(daemon.tls().is_some());
    script(&mut daemon);
}

#[test]
fn the_script_passes_with_a_real_guest_and_across_a_restart() {
    let (mut daemon, _config) = with_machine(&["--hypervisor", "qemu"]);
    script(&mut daemon);
    for _ in 0..rounds(1, 5) {
        daemon.process.kill().unwrap();
        daemon.start_again().unwrap();
        script(&mut daemon);
    }
}
