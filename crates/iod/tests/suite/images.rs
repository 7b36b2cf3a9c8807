//! Images that cannot be served, and images that another program uses.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::process::{Command, Output};

use crate::common::sectors::{connect, write};
use crate::common::*;
use serde_json::json;
use tempfile::TempDir;
use testkit::process::{Backend, StorageDaemon, Target};

/// Starts `ringway-blk` on an image that it must refuse. Returns its standard error.
fn refusal(folder: &TempDir, options: &[&str]) -> String {
    let socket = folder.path().join("refused");
    let socket = socket.to_str().unwrap();
    let (code, stderr) = ends(BLK, &[&["--socket-path", socket], options].concat());
    assert_eq!(code, 1, "{stderr}");
    let left: Vec<_> = names(folder).into_iter().filter(|name| name.contains("refused")).collect();
    assert_eq!(left, [""; 0], "nothing is left behind");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn bad_images_are_refused_with_the_next_step() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let missing = path("missing");
    let stderr = refusal(&folder, &["--blk-file", &missing]);
    assert!(stderr.contains(&missing) && stderr.contains("No such file"), "{stderr}");
    assert!(stderr.contains(&format!("`truncate -s 8G {missing}`")), "{stderr}");

    let empty = image(&folder, "empty", 0);
    let stderr = refusal(&folder, &["--blk-file", &empty]);
    assert!(stderr.contains("is empty") && stderr.contains("truncate"), "{stderr}");

    let odd = image(&folder, "odd", 1_000_001);
    let stderr = refusal(&folder, &["--blk-file", &odd]);
    assert!(stderr.contains("not a multiple") && stderr.contains("truncate"), "{stderr}");

    let stderr = refusal(&folder, &["--blk-file", folder.path().to_str().unwrap()]);
    assert!(stderr.contains("directory") && stderr.contains("block device"), "{stderr}");

    // A link to itself is unreadable even for root.
    symlink(path("loop"), path("loop")).unwrap();
    let stderr = refusal(&folder, &["--blk-file", &path("loop")]);
    assert!(stderr.contains("loop") && stderr.contains("ymbolic link"), "{stderr}");

    let stderr = refusal(&folder, &["--blk-file", "/dev/null"]);
    assert!(stderr.contains("/dev/null") && stderr.contains("block device"), "{stderr}");
}

#[test]
fn an_image_has_one_writer() {
    let folder = folder();
    let image = image(&folder, "a.raw", 1 << 20);
    let options = ["--blk-file", &image, "--cache", "writeback"];
    let first = blk(&folder.path().join("first"), &options);
    let stderr = refusal(&folder, &options);
    assert!(stderr.contains("in use") && stderr.contains("read-only"), "{stderr}");
    // A reader is not admitted beside a writer either, because the disk would change under it.
    let stderr = refusal(&folder, &[&options[..], &["--read-only"]].concat());
    assert!(stderr.contains("in use"), "{stderr}");
    drop(first);
    drop(blk(&folder.path().join("second"), &options));
}

#[test]
fn readers_share_an_image() {
    let folder = folder();
    let image = image(&folder, "a.raw", 1 << 20);
    let options = ["--blk-file", &image, "--cache", "writeback", "--read-only"];
    let _first = blk(&folder.path().join("first"), &options);
    let _second = blk(&folder.path().join("second"), &options);
    let stderr = refusal(&folder, &options[..4]);
    assert!(stderr.contains("in use"), "{stderr}");
}

fn qemu_io(image: &str, options: &[&str]) -> Output {
    let command = [&["-f", "raw"], options, &["-c", "read 0 512", image]].concat();
    Command::new("qemu-io").args(command).output().unwrap()
}

#[test]
fn qemu_sees_our_lock() {
    let folder = folder();
    let image = image(&folder, "a.raw", 1 << 20);
    let ours = blk(&folder.path().join("a"), &["--blk-file", &image, "--cache", "writeback"]);
    let output = qemu_io(&image, &[]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("lock"), "{stderr}");
    drop(ours);
    let reader = ["--blk-file", &image, "--cache", "writeback", "--read-only"];
    let _ours = blk(&folder.path().join("a"), &reader);
    assert!(qemu_io(&image, &["-r"]).status.success());
    assert!(!qemu_io(&image, &[]).status.success());
}

#[test]
fn we_see_the_lock_of_qemu() {
    let folder = folder();
    let image = image(&folder, "a.raw", 1 << 20);
    let mut options = StorageDaemon::new(Target::File(image.clone().into()));
    options.direct = false;
    let theirs = Backend::storage_daemon(&options).unwrap();
    let stderr = refusal(&folder, &["--blk-file", &image, "--cache", "writeback"]);
    assert!(stderr.contains("in use"), "{stderr}");
    drop(theirs);
    drop(blk(&folder.path().join("a"), &["--blk-file", &image, "--cache", "writeback"]));
}

#[test]
fn one_write_to_a_large_disk_takes_little_space() {
    let io = Io::start();
    let mut caller = io.caller();
    for format in ["qcow2", "vhd"] {
        let path = io.socket(&format!("image.{format}"));
        let image = json!({"path": path, "format": format, "size": 100_u64 << 30});
        caller.call("image.create", image).unwrap();
        caller.disk("disk.attach", io.spec(format, json!({format: {"file": path}})));
        write(&mut connect(&io.socket(format)), 1_000_000, 1);
        let bytes = path.metadata().unwrap().blocks() * 512;
        assert!(bytes <= 5 << 20, "{format}: {bytes}");
    }
}
