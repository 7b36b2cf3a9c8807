//! qcow2 trees that cannot be served: each refusal names cause and next step, and changes no file.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::BufRead as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::*;
use image::qcow2::{Backing, CreateOptions, create_file};
use model::report::DiskState;
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

const MIB: u64 = 1 << 20;

/// Creates a qcow2 image of 4 MiB, with a reference to `backing` if there is one.
fn create(io: &Io, name: &str, backing: Option<&str>) -> String {
    let path = io.folder.path().join(name);
    let backing = backing.map(|file| Backing { file: file.into(), format: Some("raw".into()) });
    create_file(&path, &CreateOptions { backing, ..CreateOptions::new(4 * MIB) }).unwrap();
    path.to_str().unwrap().to_owned()
}

fn spec(io: &Io, id: &str, backend: &Value) -> Value {
    let mut spec = io.spec(id, backend.clone());
    spec["cache"] = json!("writeback");
    spec
}

/// Checks that a tree is refused for a reason, and that these files do not change.
fn refused(io: &Io, backend: &Value, reasons: &[&str], files: &[&str]) {
    let read = || files.iter().map(|file| std::fs::read(file).unwrap()).collect::<Vec<_>>();
    let before = read();
    let error = io.caller().call("disk.attach", spec(io, "d", backend)).unwrap_err();
    for reason in reasons {
        assert!(error.message.contains(reason), "{backend}: {error}");
    }
    assert!(read() == before, "{backend}: a refusal changed a file");
    assert_eq!(io.caller().state("d"), None);
}

#[test]
fn damaged_and_wrong_images_are_refused_and_not_changed() {
    let mut io = Io::start();
    let base = image(&io.folder, "base.raw", 4 * MIB);
    let whole = create(&io, "whole.qcow2", None);
    let content = std::fs::read(&whole).unwrap();
    let cut = |name: &str, len: usize| {
        let path = io.folder.path().join(name);
        std::fs::write(&path, &content[..len]).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let tree = |file: &str| json!({"qcow2": {"file": file}});
    for (len, reason) in
        [(0, "it is empty"), (600, "fewer than a block"), (4096, "ends behind the file")]
    {
        let path = cut("cut.qcow2", len);
        refused(&io, &tree(&path), &[&path, reason], &[&path]);
    }
    refused(&io, &tree(&base), &[&base, "not a qcow2 image"], &[&base]);
    let over = |below: Value| json!({"qcow2": {"file": whole, "backing": below}});
    let missing = io.folder.path().join("missing.raw");
    let missing = missing.to_str().unwrap();
    refused(&io, &over(json!({"file": missing})), &[missing, "No such file"], &[&whole]);
    refused(&io, &over(tree(&base)), &[&base, "not a qcow2 image"], &[&whole, &base]);
    refused(&io, &over(tree(&whole)), &["in the tree twice"], &[&whole]);
    let cycle = json!({"qcow2": {"file": base, "backing": over(json!({"file": base}))}});
    refused(&io, &cycle, &[&base, "in the tree twice"], &[&whole, &base]);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn an_image_is_not_served_without_the_backing_that_it_needs() {
    let mut io = Io::start();
    let base = image(&io.folder, "base.raw", 4 * MIB);
    let top = create(&io, "top.qcow2", Some(&base));
    refused(&io, &json!({"qcow2": {"file": top}}), &[&top, &base, "backing"], &[&top, &base]);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_base_may_be_shorter_or_longer_than_the_image() {
    let mut io = Io::start();
    for (bytes, seen) in [(MIB, 0), (8 * MIB, 7)] {
        let base = image(&io.folder, "base.raw", bytes);
        std::fs::write(&base, vec![7; bytes as usize]).unwrap();
        let top = create(&io, "top.qcow2", None);
        let tree = json!({"qcow2": {"file": top, "backing": {"file": base}}});
        io.caller().disk("disk.attach", spec(&io, "d", &tree));
        let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
        assert_eq!(guest.config().unwrap().capacity_sectors, 4 * MIB / 512);
        let mut read = |sector| {
            let done = guest.run(0, &Request::read(sector, 1024)).unwrap();
            assert_eq!(done.status, status::OK);
            [done.data[0], done.data[1023]]
        };
        assert_eq!([read(0), read(MIB / 512 - 1)], [[7, 7], [7, seen]]);
        assert_eq!(read(4 * MIB / 512 - 2), [seen; 2]);
        let write = Request::write(MIB / 512 - 1, &[1; 1024]);
        assert_eq!(guest.run(0, &write).unwrap().status, status::OK);
        drop(guest);
        io.caller().call("disk.detach", json!({"id": "d"})).unwrap();
        let content = std::fs::read(&base).unwrap();
        assert!(content.iter().all(|byte| *byte == 7), "the base has changed");
        std::fs::remove_file(&top).unwrap();
    }
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn an_image_has_one_writer_and_a_base_none() {
    let mut io = Io::start();
    let mut other = Io::start();
    let base = image(&io.folder, "base.raw", 4 * MIB);
    let top = create(&io, "top.qcow2", None);
    let tree = json!({"qcow2": {"file": top, "backing": {"file": base}}});
    io.caller().disk("disk.attach", spec(&io, "d", &tree));
    refused(&other, &tree, &[&top, "in use"], &[&top, &base]);
    refused(&other, &json!({"file": base}), &[&base, "in use"], &[&top, &base]);
    for (format, path) in [("qcow2", &top), ("raw", &base)] {
        let write = ["-f", format, "-c", "write 0 4k", path];
        let output = Command::new("qemu-io").args(write).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("lock"), "{output:?}");
    }
    // Another reader of the base is welcome.
    let second = create(&other, "second.qcow2", None);
    let reader = json!({"qcow2": {"file": second, "backing": {"file": base}}});
    other.caller().disk("disk.attach", spec(&other, "r", &reader));
    other.caller().call("disk.detach", json!({"id": "r"})).unwrap();
    io.caller().call("disk.detach", json!({"id": "d"})).unwrap();

    let mut command = Command::new("qemu-io");
    command.args(["-f", "qcow2", &top]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut qemu = command.spawn().unwrap();
    std::io::Write::write_all(qemu.stdin.as_mut().unwrap(), b"length\n").unwrap();
    let mut line = String::new();
    std::io::BufReader::new(qemu.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    refused(&io, &tree, &[&top, "in use"], &[&top, &base]);
    drop(qemu.stdin.take());
    qemu.wait().unwrap();
    io.caller().disk("disk.attach", spec(&io, "d", &tree));
    for io in [&mut io, &mut other] {
        assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    }
}

/// Replaces a file of a tree while no worker runs. The next worker must not serve the disk.
fn replaced(io: &mut Io, path: &str) {
    let worker = io.process.worker().unwrap().unwrap();
    io.process.signal(Signal::STOP).unwrap();
    worker.kill().unwrap();
    let (old, new) = (io.folder.path().join("old"), io.folder.path().join("new"));
    std::fs::copy(path, &new).unwrap();
    std::fs::rename(path, &old).unwrap();
    std::fs::rename(&new, path).unwrap();
    io.process.signal(Signal::CONT).unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    let text = format!("{path} is another file than the one that was attached");
    let why = |io: &Io| io.caller().stats().disks.remove(0).refused;
    eventually("it is refused", || why(io).is_some_and(|why| why.contains(&text)));
    assert!(std::fs::read(path).unwrap() == std::fs::read(&old).unwrap(), "it has changed");
    std::fs::rename(&old, path).unwrap();
    let state = io.caller().disk("disk.activate", json!({"id": "d"})).state;
    assert_eq!(state, DiskState::Active);
}

#[test]
fn a_tree_with_a_replaced_file_is_refused_until_the_file_is_back() {
    let mut io = Io::start();
    let base = image(&io.folder, "base.raw", 4 * MIB);
    let top = create(&io, "top.qcow2", None);
    let tree = json!({"qcow2": {"file": top, "backing": {"file": base}}});
    io.caller().disk("disk.attach", spec(&io, "d", &tree));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    let write = Request::write(8, &[1; 4096]);
    assert_eq!(guest.run(0, &write).unwrap().status, status::OK);
    drop(guest);
    replaced(&mut io, &base);
    replaced(&mut io, &top);
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::read(8, 4096)).unwrap().data, [1; 4096]);
    drop(guest);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert!(Path::new(&base).exists());
    let mut first = [0; 1];
    std::fs::File::open(&base).unwrap().read_exact_at(&mut first, 4096).unwrap();
    assert_eq!(first, [0], "the base has changed");
}
