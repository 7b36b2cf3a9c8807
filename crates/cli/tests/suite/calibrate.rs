//! `ringway calibrate` measures a folder and tells what it can do.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use testkit::process::eventually;
use testkit::ringwayd::Ringwayd;

use crate::served::Served;

fn calibrate(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.arg("calibrate").args(words).env_remove("RINGWAY_CONTROL").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns a folder on a storage with direct I/O.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

const SHORT: [&str; 5] = ["--short", "--seconds", "2", "--size", "64M"];

#[test]
fn a_folder_is_measured_as_text_json_and_picture() {
    let folder = folder();
    let path = folder.path().to_str().unwrap();
    let picture = tempfile::NamedTempFile::new().unwrap();
    let svg = ["--svg", picture.path().to_str().unwrap()];
    let machine = ["--machine", "reads=5,writes=5,size=16K"];
    let output = calibrate(&[&[path][..], &SHORT, &svg, &machine].concat());
    assert!(output.status.success(), "{output:?}");
    let told = text(&output.stdout);
    for part in ["64 MiB, written, measured and removed", "reads in MB/s", "writes in MB/s", "knee"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(told.contains("machines like yours: 5 reads and 5 writes a second of 16384 bytes"));
    let drawn = std::fs::read_to_string(picture.path()).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"), "{drawn}");
    assert_eq!(drawn.matches("<rect x=").count(), cells(path).len());
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    let output = calibrate(&[&[path, "--store"][..], &SHORT].concat());
    assert!(text(&output.stderr).contains(".ringway-profile"), "{output:?}");
    let stored = std::fs::read(folder.path().join(".ringway-profile")).unwrap();
    let stored: Value = serde_json::from_slice(&stored).unwrap();
    assert!(stored["knee_ns"].as_u64().unwrap() > 0, "{stored}");
}

/// Measures a folder again and returns the cells.
fn cells(path: &str) -> Vec<Value> {
    let output = calibrate(&[&[path, "--json"][..], &SHORT].concat());
    assert!(output.status.success(), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["profile"]["reads"]["request_ns"].is_u64(), "{found}");
    assert!(found["profile"]["knee_ns"].as_u64().unwrap() > 0, "{found}");
    found["cells"].as_array().unwrap().clone()
}

#[test]
fn what_cannot_be_measured_is_told_with_the_next_step() {
    let folder = folder();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let code = |words: &[&str], code: i32, told: &str| {
        let output = calibrate(words);
        let error = text(&output.stderr);
        assert!(
            output.status.code() == Some(code) && error.contains(told),
            "{words:?}: {output:?}"
        );
    };
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    code(&[&path(&file)], 1, "name its folder");
    code(&[&path(&folder.path().join("none"))], 1, "No such file");
    code(&[&path(folder.path()), "--size", "1024T"], 1, "free bytes");
    code(&[&path(folder.path()), "--seconds", "1"], 2, "2..=600");
    code(&[&path(folder.path()), "--machine", "cats=9"], 2, "is not reads=N");
    let svg = path(&folder.path().join("none/a.svg"));
    code(&[&path(folder.path()), "--svg", &svg], 1, "cannot write");
}

#[test]
fn a_measurement_ends_with_its_caller_and_there_is_one_at_a_time() {
    let folder = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.arg("calibrate").arg(folder.path()).args(["--size", "64M"]);
    let mut first = command.env_remove("RINGWAY_CONTROL").spawn().unwrap();
    let stat = folder.path().metadata().unwrap();
    let name = format!("@ringway-calibrate-{}-{}", stat.dev(), stat.ino());
    eventually("it has locked the folder", || {
        std::fs::read_to_string("/proc/net/unix").unwrap().contains(&name)
    });
    let second = calibrate(&[&[folder.path().to_str().unwrap()][..], &SHORT].concat());
    assert!(text(&second.stderr).contains("another measurement of"), "{second:?}");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&first),
        rustix::process::Signal::INT,
    )
    .unwrap();
    assert!(!first.wait().unwrap().success());
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    let after = calibrate(&[&[folder.path().to_str().unwrap()][..], &SHORT].concat());
    assert!(after.status.success(), "{after:?}");
}

/// A storage repository of `ringwayd` is measured by the process that serves it.
#[test]
fn a_storage_repository_is_measured_by_its_name_or_uuid() {
    let daemon = Ringwayd::simulator(&[]).unwrap();
    let run = daemon.socket().with_file_name("run");
    let xe = |words: &[&str]| daemon.xe_prints(words).unwrap();
    let measure = |sr: &str| {
        let words = [&[sr, "--store", "--run", run.to_str().unwrap()][..], &SHORT].concat();
        calibrate(&words)
    };
    let refused = |sr: &str, told: &str| {
        let output = measure(sr);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains(told), "{told}: {output:?}");
    };
    refused("nobody", "storage repositories are looked up at ringwayd");
    std::os::unix::fs::symlink(daemon.socket(), run.join("ringwayd.sock")).unwrap();
    refused("nobody", "ringwayd has no SR \"nobody\"");
    let folder = folder();
    let location = format!("device-config:location={}", folder.path().display());
    let create =
        |name: &str| xe(&["sr-create", "type=dir", &format!("name-label={name}"), &location]);
    let (sr, twins) = (create("disks"), [create("twin"), create("twin")]);
    refused("twin", &twins[0]);
    let twin = format!("sr-uuid={}", twins[1]);
    let link = xe(&["pbd-list", &twin, "params=uuid", "--minimal"]);
    xe(&["pbd-unplug", &format!("uuid={link}")]);
    refused(&twins[1], "is not plugged; plug it: xe pbd-plug");

    let control = run.join("io").join(&sr[..8]).join("control.sock");
    let io = Served::start_at(control);
    let image = folder.path().join("d1.raw");
    std::fs::write(&image, [0; 4096]).unwrap();
    io.attach("d1", serde_json::json!({ "file": image }), serde_json::json!({}));
    let output = measure("sr=disks");
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("in use by d1"), "{output:?}");
    let knee = xe(&[
        "sr-param-get",
        &format!("uuid={sr}"),
        "param-name=sm-config",
        "param-key=profile-knee-us",
    ]);
    assert!(knee.parse::<u64>().unwrap() > 0, "{knee}");
}

/// Runs `ringway calibrate` on a folder that `mount` has changed in a mount namespace of its own.
fn calibrate_mounted(mount: &str) -> String {
    let folder = folder();
    let script = format!("{mount} && exec \"$2\" calibrate \"$1\" --store --short --seconds 2");
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-e", "-c", &script, "sh"])
        .arg(folder.path())
        .arg(env!("CARGO_BIN_EXE_ringway"))
        .env_remove("RINGWAY_CONTROL")
        .output()
        .expect("needs root and `unshare` of Debian's util-linux");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    text(&output.stderr)
}

#[test]
fn full_and_read_only_storage_is_not_measured() {
    let error = calibrate_mounted("mount -t tmpfs -o size=100m none \"$1\"");
    assert!(error.contains("104857600 free bytes; a measurement writes at least"), "{error}");
    let read_only = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\"";
    let error = calibrate_mounted(read_only);
    assert!(error.contains("cannot create a file in") && error.contains("Read-only"), "{error}");
}
