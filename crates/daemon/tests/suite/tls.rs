//! `xe` with the daemon's TLS listener.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::process::{Command, Output};

use testkit::process::find_binary;
use testkit::ringwayd::Ringwayd;

/// Runs `xe` with these words over TLS.
pub(crate) fn xe(daemon: &Ringwayd, password: &str, words: &[&str]) -> Output {
    let place = daemon.tls().unwrap();
    let mut command = Command::new(find_binary("xe").unwrap());
    command
        .args(["-s", &place.ip().to_string(), "-p", &place.port().to_string(), "nossl=false"])
        .args(["-u", "root", "-pw", password])
        .args(words)
        .env("HOME", daemon.dir())
        .env_remove("XE_EXTRA_ARGS");
    command.output().unwrap()
}

#[test]
fn xe_trusts_the_certificate_that_it_meets_first() {
    let daemon = Ringwayd::simulator(&["--listen", "127.0.0.1:0"]).unwrap();
    let password = daemon.password().unwrap();
    let host = daemon.xe_prints(&["host-list", "--minimal"]).unwrap();
    for (again, note) in [(false, "is trusted from now on"), (true, "")] {
        let output = xe(&daemon, &password, &["host-list", "--minimal"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), host);
        assert!(errors.contains(note) && errors.is_empty() == again, "{errors}");
    }
    let output = xe(&daemon, "wrong", &["host-list", "--minimal"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    // A client without TLS is refused.
    let plain = Command::new(find_binary("xe").unwrap())
        .args(["-s", "127.0.0.1", "-p", &daemon.tls().unwrap().port().to_string(), "--nossl"])
        .args(["-u", "root", "-pw", &password, "host-list"])
        .env("HOME", daemon.dir())
        .output()
        .unwrap();
    assert!(!plain.status.success() && plain.stdout.is_empty());
}
