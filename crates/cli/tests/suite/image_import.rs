//! `ringway image import`: images that `qemu-img` reads without privileges.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::served::RINGWAY;
use testkit::process::eventually;

/// Builds `ringway` with these words in a directory.
fn ringway(dir: &Path, words: &str) -> Command {
    let mut command = Command::new(RINGWAY);
    command.args(words.split(' ')).current_dir(dir).stdin(Stdio::null());
    command.env_remove("RINGWAY_CONTROL").env("XDG_RUNTIME_DIR", dir);
    command
}

fn import(dir: &Path, words: &str) -> Output {
    ringway(dir, &format!("image import {words}")).output().unwrap()
}

fn qemu_img(dir: &Path, words: &str) {
    let ran = Command::new("qemu-img").args(words.split(' ')).current_dir(dir).output().unwrap();
    assert!(ran.status.success(), "{words}: {ran:?}");
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let names = dir.read_dir().unwrap().map(|one| one.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// A directory with a disk of 4 MiB.
fn disk() -> (tempfile::TempDir, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = vec![0; 4 << 20];
    bytes[70_000..2 << 20].fill(3);
    bytes[(4 << 20) - 512..].fill(4);
    std::fs::write(dir.path().join("a.raw"), &bytes).unwrap();
    (dir, bytes)
}

#[test]
fn images_of_other_programs_become_images_that_are_served() {
    let (dir, bytes) = disk();
    let dir = dir.path();
    for format in ["vmdk", "vdi", "vhdx", "qcow"] {
        qemu_img(dir, &format!("convert -f raw -O {format} a.raw a.{format}"));
        let made = import(dir, &format!("a.{format} b.raw --format {format} --to raw"));
        assert!(made.status.success(), "{made:?}");
        assert!(std::fs::read(dir.join("b.raw")).unwrap() == bytes, "{format}");
        let again = import(dir, &format!("a.{format} b.raw --format {format} --to raw"));
        assert!(refusal(&again).contains("b.raw exists"), "{again:?}");
        std::fs::remove_file(dir.join("b.raw")).unwrap();
    }
    qemu_img(dir, "convert -f raw -O vmdk -o subformat=streamOptimized a.raw s.vmdk");
    let made = import(dir, "s.vmdk c.qcow2 --format vmdk --to qcow2 --json");
    assert!(made.status.success(), "{made:?}");
    qemu_img(dir, "compare -f raw -F qcow2 a.raw c.qcow2");
}

#[test]
fn an_image_reaches_no_other_file() {
    let (dir, _) = disk();
    let dir = dir.path();
    // An image whose bytes are in a second file.
    qemu_img(dir, "convert -f raw -O vmdk -o subformat=monolithicFlat a.raw flat.vmdk");
    let flat = import(dir, "flat.vmdk b.raw --format vmdk --to raw");
    assert!(refusal(&flat).contains("several files"), "{flat:?}");
    let text = std::fs::read_to_string(dir.join("flat.vmdk")).unwrap();
    let secret = dir.join("a.raw");
    let stolen = text.replace("flat-flat.vmdk", secret.to_str().unwrap());
    assert_ne!(stolen, text);
    std::fs::write(dir.join("thief.vmdk"), stolen).unwrap();
    let thief = import(dir, "thief.vmdk b.raw --format vmdk --to raw");
    assert!(refusal(&thief).contains("Permission denied"), "{thief:?}");
    // Images over others.
    for (format, base) in [("vmdk", "base.vmdk"), ("qcow", "a.raw")] {
        if base != "a.raw" {
            qemu_img(dir, &format!("convert -f raw -O {format} a.raw {base}"));
        }
        let of = base.rsplit_once('.').unwrap().1;
        qemu_img(dir, &format!("create -q -f {format} -b {base} -F {of} over.{format}"));
        let over = import(dir, &format!("over.{format} b.raw --format {format} --to raw"));
        assert!(refusal(&over).contains("it lies over"), "{over:?}");
    }
    assert!(!dir.join("b.raw").exists());
}

#[test]
fn a_confined_program_has_no_rights() {
    let (dir, _) = disk();
    let own = std::process::id();
    let confined =
        |words: &str| ringway(dir.path(), &format!("confined {own} {words}")).output().unwrap();
    for words in ["cat a.raw", "ls /", "cat /etc/passwd", "touch b", "mkdir /tmp/ringway-confined"]
    {
        let output = confined(words);
        assert!(!output.status.success() && output.stdout.is_empty(), "{words}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("ermission denied"), "{words}: {said}");
    }
    let mut reads = ringway(dir.path(), &format!("confined {own} cat /dev/fd/0"));
    let reads = reads.stdin(std::fs::File::open(dir.path().join("a.raw")).unwrap());
    let reads = reads.output().unwrap();
    assert_eq!(reads.stdout.len(), 4 << 20, "{:?}", reads.stderr);
}

#[test]
fn what_cannot_be_imported_says_why_and_leaves_nothing() {
    let (dir, _) = disk();
    let dir = dir.path();
    qemu_img(dir, "convert -f raw -O vdi a.raw a.vdi");
    let before = names(dir);
    for (words, why) in [
        ("a.raw b.raw --format vmdk --to raw", "qemu-img"),
        ("a.vdi b.raw --format vhdx --to raw", "qemu-img"),
        ("none.vdi b.raw --format vdi --to raw", "none.vdi"),
        (". b.raw --format vdi --to raw", "is not a file"),
        ("a.vdi none/b.raw --format vdi --to raw", "none"),
    ] {
        let output = import(dir, words);
        assert!(refusal(&output).contains(why), "{words}: {output:?}");
    }
    let without = ringway(dir, "image import a.vdi b.raw --format vdi --to raw")
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    assert!(refusal(&without).contains("qemu-img is not in PATH"), "{without:?}");
    let usage = import(dir, "a.vdi b.raw --format raw --to raw");
    assert_eq!(usage.status.code(), Some(2), "{usage:?}");
    assert_eq!(names(dir), before);
}

#[test]
fn a_deadline_and_ctrl_c_end_a_program_that_hangs() {
    let (dir, _) = disk();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let program = bin.join("qemu-img");
    std::fs::write(&program, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let before = names(dir.path());
    let start = |timeout: &str| {
        let words = format!("image import a.raw b.raw --format vdi --to raw --timeout {timeout}");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut command = ringway(dir.path(), &words);
        command.env("PATH", path).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let late = start("1s").wait_with_output().unwrap();
    assert!(refusal(&late).contains("--timeout"), "{late:?}");
    let ended = start("1h");
    let children = format!("/proc/{0}/task/{0}/children", ended.id());
    let name = |id: &str| std::fs::read_to_string(format!("/proc/{id}/comm"));
    eventually("the program hangs", || {
        let ids = std::fs::read_to_string(&children).unwrap();
        ids.split(' ').any(|id| name(id).is_ok_and(|name| name == "sleep\n"))
    });
    let id = rustix::process::Pid::from_child(&ended);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let ended = ended.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert_eq!(names(dir.path()), before);
}
