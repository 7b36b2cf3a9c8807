//! `ringway top` and `why` without a control socket, and for virtual machines of `ringwayd`.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::served::{RINGWAY, Served};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::raw::request::Request;
use testkit::ringwayd::Ringwayd;

fn ringway(run: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(RINGWAY);
    command.args(words).args(["--seconds", "0.1", "--run"]).arg(run);
    command.env_remove("RINGWAY_CONTROL").stdin(Stdio::null()).output().unwrap()
}

fn stdout(run: &Path, words: &[&str]) -> String {
    let output = ringway(run, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn error(run: &Path, words: &[&str]) -> String {
    let output = ringway(run, words);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the control socket of an SR or of the networks.
fn control(run: &Path, id: &str) -> PathBuf {
    run.join("io").join(id).join("control.sock")
}

/// Leaves a socket on which nobody listens.
fn leave_socket(path: &Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(UnixListener::bind(path).unwrap());
}

fn run_dir() -> TempDir {
    // Socket paths must be short.
    tempfile::Builder::new().prefix("rw-").tempdir().unwrap()
}

#[test]
fn all_processes_of_a_run_directory_are_found() {
    let run = run_dir();
    let run = run.path();
    let text = error(run, &["top", "--once"]);
    assert!(text.contains("no ringway-io was found") && text.contains("control.sock"), "{text}");
    assert!(error(run, &["why", "d1"]).contains("no ringway-io was found"));

    let (a, b) = (Served::start_at(control(run, "a")), Served::start_at(control(run, "b")));
    leave_socket(&control(run, "dead"));
    a.attach("d1", json!({"null": 1 << 20}), json!({}));
    b.attach("d2", json!({"null": 1 << 20}), json!({}));
    b.attach("both", json!({"null": 1 << 20}), json!({}));
    a.attach("both", json!({"null": 1 << 20}), json!({}));
    let text = stdout(run, &["top", "--once"]);
    assert!(text.contains("d1") && text.contains("d2") && !text.contains("dead"), "{text}");
    assert!(stdout(run, &["why", "d1"]).starts_with("d1 has no front-end"));
    assert!(stdout(run, &["why", "d2"]).starts_with("d2 has no front-end"));
    let text = error(run, &["why", "d3"]);
    assert!(text.contains("no disk or NIC \"d3\"") && text.contains("a/control.sock"), "{text}");
    let text = error(run, &["why", "both"]);
    assert!(text.contains("several processes") && text.contains("b/control.sock"), "{text}");
    let named = a.stdout(&["why", "both", "--seconds", "0.1"]);
    assert!(named.starts_with("both has no front-end"), "{named}");

    drop((a, b));
    leave_socket(&control(run, "dead2"));
    let text = error(run, &["why", "d1"]);
    assert!(text.contains("no ringway-io of this host answers"), "{text}");
    let output = ringway(run, &["top", "--once"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("dead"), "{output:?}");
}

/// A machine of a `ringwayd` with the simulator, whose disk a `ringway-io` of the test serves under
/// the UUID of its VBD, where `ringwayd` would have one.
#[test]
fn machines_and_their_devices_are_looked_up_at_ringwayd() {
    let daemon = Ringwayd::simulator(&[]).unwrap();
    let run = daemon.socket().with_file_name("run");
    let xe = |words: &[&str]| daemon.xe_prints(words).unwrap();
    let machine = |name: &str| {
        xe(&["vm-install", "template=Other install media", &format!("new-name-label={name}")])
    };
    let (web, twin, other) = (machine("web"), machine("twin"), machine("twin"));
    let storage = xe(&["pool-list", "params=default-SR", "--minimal"]);
    // The template has brought the first disk.
    let first =
        xe(&["vbd-list", &format!("vm-uuid={web}"), "type=Disk", "params=uuid", "--minimal"]);
    let sr = format!("sr-uuid={storage}");
    let disk = xe(&["vdi-create", &sr, "name-label=disk", "virtual-size=16MiB"]);
    let words = [format!("vm-uuid={web}"), format!("vdi-uuid={disk}")];
    let second = xe(&["vbd-create", &words[0], &words[1], "device=1"]);
    // No `ringway-io` serves a CD.
    let disc = xe(&["vdi-create", &sr, "name-label=disc", "virtual-size=16MiB"]);
    let drive = xe(&["vbd-list", &words[0], "type=CD", "--minimal"]);
    xe(&["vbd-insert", &format!("uuid={drive}"), &format!("vdi-uuid={disc}")]);
    let io = Served::start_at(control(&run, "0123abcd"));

    let text = error(&run, &["why", "vm=web"]);
    assert!(
        text.contains("looked up at ringwayd") && text.contains("is ringwayd running"),
        "{text}"
    );
    symlink(daemon.socket(), run.join("ringwayd.sock")).unwrap();
    let text = error(&run, &["why", "vm=web"]);
    assert!(text.contains("VM web is halted") && text.contains(&web), "{text}");
    xe(&["vm-start", "vm=web"]);
    io.attach(&first, json!({"null": 1 << 20}), json!({}));
    let mut guest = io.guest(&first);
    guest.run(0, &Request::read(0, 512)).unwrap();

    // One disk is served, the other is not.
    let output = ringway(&run, &["why", "vm=web"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // The simulated guest has no agent.
    assert!(text.starts_with("web starts: it waits for the agent of its guest, for "), "{text}");
    assert!(text.contains(&format!("{first} is idle")), "{text}");
    assert!(text.contains(&format!("({second}) is plugged, but no ringway-io")), "{text}");
    io.attach(&second, json!({"null": 1 << 20}), json!({}));
    for name in ["web", &web] {
        let text = stdout(&run, &["why", &format!("vm={name}"), "--format", "json"]);
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["vm"], json!({"name": "web", "uuid": web}));
        assert_eq!(report["boot"]["stage"], "guest", "{report}");
        let causes = report["devices"].as_array().unwrap();
        assert_eq!(causes.len(), 2, "{report}");
        let cause = |at: usize| (&causes[at]["uuid"], &causes[at]["verdict"]["cause"]);
        assert_eq!(cause(0), (&json!(first), &json!("idle")));
        assert_eq!(cause(1), (&json!(second), &json!("no_front_end")));
    }
    let text = stdout(&run, &["why", &format!("vbd={first}")]);
    assert!(text.starts_with(&format!("{first} is idle")) && text.contains("p99"), "{text}");

    let text = error(&run, &["why", "vm=nobody"]);
    assert!(text.contains("ringwayd has no VM \"nobody\""), "{text}");
    let text = error(&run, &["why", "vm=twin"]);
    assert!(
        text.contains("several VMs") && text.contains(&twin) && text.contains(&other),
        "{text}"
    );
    for (key, class) in [("vbd", "VBD"), ("vif", "VIF")] {
        let text = error(&run, &["why", &format!("{key}=nobody")]);
        assert!(text.contains(&format!("ringwayd has no {class} \"nobody\"")), "{text}");
    }
    xe(&["vbd-unplug", &format!("uuid={second}")]);
    io.stdout(&["io", "disk.detach", &format!("id={second}")]);
    let text = error(&run, &["why", &format!("vbd={second}")]);
    assert!(text.contains("is not plugged") && text.contains("xe vbd-plug"), "{text}");
    assert!(stdout(&run, &["why", "vm=web"]).contains("is not plugged"));
    xe(&["vm-shutdown", "vm=web", "--force"]);
    assert!(error(&run, &["why", "vm=web"]).contains("VM web is halted"));
}
