//! systemd units of the daemon and its slices.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::path::{Path, PathBuf};
use std::process::Command;

use toolstack::cgroup::{INSTANCE, Weights};

/// Slices, and the units in which their groups are created.
const SLICES: [&str; 3] = ["control", "datapath", "guests"];

fn unit(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(unit(name)).unwrap()
}

fn settings(text: &str, key: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).map(Into::into).collect()
}

#[test]
fn slices_and_services_are_what_the_daemon_takes_them_for() {
    let Weights { control, datapath, guests } = Weights::default();
    for (slice, weight) in SLICES.into_iter().zip([control, datapath, guests]) {
        let text = text(&format!("{INSTANCE}{slice}.slice"));
        assert_eq!(settings(&text, "CPUWeight"), [weight.to_string()], "{slice}");
    }
    let group = text(&format!("{INSTANCE}-group@.service"));
    assert_eq!(settings(&group, "Slice"), [format!("{INSTANCE}%i.slice")]);
    assert_eq!(settings(&group, "Delegate"), ["cpu"]);
    let daemon = text("ringwayd.service");
    let wanted = SLICES.map(|slice| format!("{INSTANCE}-group@{slice}.service"));
    assert_eq!(settings(&daemon, "Wants"), wanted);
    assert_eq!(settings(&daemon, "After")[3..], wanted);
    for (name, text) in [("daemon", &daemon), ("ssh", &text("ssh.service.d/ringway.conf"))] {
        assert_eq!(settings(text, "Slice"), [format!("{INSTANCE}control.slice")], "{name}");
    }
    let logins = text("user.slice.d/ringway.conf");
    assert_eq!(settings(&logins, "CPUWeight"), [control.to_string()]);
    // Stopping a unit kills no VM. The daemon does not depend on units that it only wants.
    for text in [&group, &daemon] {
        assert_eq!(settings(text, "KillMode"), ["process"]);
        for bound in ["Requires", "BindsTo", "PartOf", "RequiredBy"] {
            assert_eq!(settings(text, bound), [""; 0]);
        }
    }
}

#[test]
fn systemd_understands_the_units() {
    testkit::process::find_tool("systemd-analyze", "systemd").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut files = vec!["ringwayd.service".to_owned()];
    files.extend(SLICES.map(|slice| format!("{INSTANCE}{slice}.slice")));
    files.extend(SLICES.map(|slice| format!("{INSTANCE}-group@{slice}.service")));
    for name in &files {
        let template = name.split_once('@').map(|(name, _)| format!("{name}@.service"));
        let text = text(&template.unwrap_or_else(|| name.clone()));
        // The unit must run the program at its installed path.
        let text =
            text.replace("Start=ringwayd", concat!("Start=", env!("CARGO_BIN_EXE_ringwayd")));
        let lines = text.lines().filter(|line| !line.starts_with("Documentation="));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]);
    let output = verify.args(files.iter().map(|name| folder.path().join(name))).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<_> = stderr.lines().filter(|line| line.contains("ringway")).collect();
    assert!(ours.is_empty() && output.status.success(), "{stderr}");
}
