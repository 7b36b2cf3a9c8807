//! VHDs as users see them: trees, snapshots, kills, fixed images, and parents that do not fit.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::sectors::{connect, flush, read, write};
use crate::common::*;
use image::vhd::{CreateOptions, create_file};
use serde_json::{Value, json};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn created(folder: &TempDir, name: &str, options: &CreateOptions) -> PathBuf {
    let path = folder.path().join(name);
    create_file(&path, options).unwrap();
    path
}

/// Returns the disk of a VHD without a parent, as QEMU reads it.
fn content(path: &Path) -> Vec<u8> {
    converted("vpc", path)
}

/// Returns the disk of an image with all below it, as QEMU reads it.
fn converted(format: &str, path: &Path) -> Vec<u8> {
    let raw = path.with_extension("content");
    let convert = ["convert", "-U", "-f", format, "-O", "raw"];
    let output = Command::new("qemu-img").args(convert).arg(path).arg(&raw).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    std::fs::read(raw).unwrap()
}

fn written(content: &[u8]) -> Vec<(usize, u8)> {
    let sectors = content.chunks(512).map(|sector| sector[0]).enumerate();
    sectors.filter(|(_, value)| *value != 0).collect()
}

#[test]
fn a_guest_goes_on_through_differencing_snapshots_and_a_kill() {
    let mut io = Io::start();
    let base = created(&io.folder, "base.vhd", &CreateOptions::dynamic(5 * MIB));
    let mut caller = io.caller();
    let mut spec = io.spec("d", json!({"vhd": {"file": base}}));
    spec["cache"] = json!("writeback");
    caller.disk("disk.attach", spec);
    let mut guest = connect(&io.socket("d"));
    let path = |number: u64| io.folder.path().join(format!("{number}.vhd"));
    for number in 1..=3 {
        write(&mut guest, number, number as u8);
        write(&mut guest, 5000, number as u8);
        let disk = json!({"id": "d", "file": path(number), "format": "vhd"});
        caller.call("disk.snapshot", json!({"disks": [disk]})).unwrap();
        assert_eq!(
            (read(&mut guest, number), read(&mut guest, 5000)),
            (number as u8, number as u8)
        );
    }
    write(&mut guest, 9, 9);
    let worker = caller.stats().pid;
    drop((guest, caller));
    let pid = rustix::process::Pid::from_raw(worker.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    io.process.next_worker(Some(worker)).unwrap();
    let mut guest = connect(&io.socket("d"));
    let found = [1, 2, 3, 9, 5000, 4999].map(|sector| read(&mut guest, sector));
    assert_eq!(found, [1, 2, 3, 9, 3, 0]);
    flush(&mut guest);
    drop(guest);
    let mut caller = io.caller();
    let tree = serde_json::to_value(&caller.stats().disks.remove(0).backend).unwrap();
    assert_eq!(tree["vhd"]["file"], json!(path(3)));
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    let copy = io.folder.path().join("copy.vhd");
    let convert = json!({"source": tree, "path": copy, "format": "vhd"});
    caller.call("image.convert", convert).unwrap();
    assert_eq!(written(&content(&copy)), [(1, 1), (2, 2), (3, 3), (9, 9), (5000, 3)]);
    assert_eq!(written(&content(&base)), [(1, 1), (5000, 1)], "what the first snapshot froze");
    let check = json!({"path": path(3), "format": "vhd"});
    let report = caller.call("image.check", check).unwrap();
    assert_eq!((&report["errors"], &report["leaks"]), (&json!(0), &json!(0)), "{report}");
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_kill_of_ringway_blk_loses_no_acknowledged_write() {
    let folder = folder();
    let base = image(&folder, "base.raw", 8 * MIB);
    let parent =
        image::vhd::Parent { file: "base.raw".into(), unique_id: [0; 16], unix_seconds: 0 };
    let size = 16 * MIB;
    for (name, options, below) in [
        ("a.vhd", CreateOptions::dynamic(size), None),
        // Granules are filled.
        ("b.vhd", CreateOptions::dynamic(size - 512), None),
        ("c.vhd", CreateOptions::differencing(size, parent), Some(&base)),
    ] {
        let top = created(&folder, name, &options);
        let socket = folder.path().join("s");
        let mut options = vec!["--socket-path", socket.to_str().unwrap(), "--blk-file"];
        options.extend([top.to_str().unwrap(), "--format", "vhd", "--cache", "writeback"]);
        if let Some(base) = below {
            options.extend(["--backing", base, "--backing-format", "raw"]);
        }
        let places: Vec<_> = (0..120_u64).map(|at| at * 7919 % (size / 512 - 1)).collect();
        for (life, part) in places.chunks(40).enumerate() {
            let mut process = ready(BLK, &options);
            let mut guest = connect(&socket);
            for (at, sector) in part.iter().enumerate() {
                write(&mut guest, *sector, (life * 40 + at + 1) as u8);
            }
            process.child().kill().unwrap();
            process.child().wait().unwrap();
        }
        let mut process = ready(BLK, &options);
        let mut guest = connect(&socket);
        for (at, sector) in places.iter().enumerate() {
            assert_eq!(read(&mut guest, *sector), (at + 1) as u8, "{name} {sector}");
        }
        drop(guest);
        assert!(process.terminate().unwrap().success(), "{}", process.stderr());
        if below.is_none() {
            let expected = places.iter().zip(1..).map(|(sector, value)| (*sector as usize, value));
            let mut expected: Vec<_> = expected.collect();
            expected.sort_unstable();
            assert_eq!(written(&content(&top)), expected, "{name}");
        }
    }
}

#[test]
fn a_fixed_image_is_its_disk_and_keeps_its_footer() {
    let io = Io::start();
    let path = created(&io.folder, "a.vhd", &CreateOptions::fixed(MIB));
    let footer = std::fs::read(&path).unwrap().split_off(MIB as usize);
    let mut caller = io.caller();
    let attached = caller.disk("disk.attach", io.spec("d", json!({"vhd": {"file": path}})));
    assert_eq!(attached.geometry.size_bytes, MIB);
    let mut guest = connect(&io.socket("d"));
    write(&mut guest, 0, 1);
    write(&mut guest, MIB / 512 - 1, 2);
    let error = caller.call("disk.resize", json!({"id": "d", "size": 2 * MIB})).unwrap_err();
    assert!(error.message.contains("window"), "{error}");
    caller.call("upgrade", Value::Null).unwrap();
    let mut caller = io.caller();
    assert_eq!((read(&mut guest, 0), read(&mut guest, MIB / 512 - 1)), (1, 2));
    let over = io.folder.path().join("over.qcow2");
    caller.call("disk.snapshot", json!({"disks": [{"id": "d", "file": over}]})).unwrap();
    write(&mut guest, 1, 3);
    drop(guest);
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    let now = std::fs::read(&path).unwrap();
    assert_eq!((now.len() as u64, &now[MIB as usize..]), (MIB + 512, &footer[..]));
    assert_eq!(written(&content(&path)), [(0, 1), (2047, 2)]);
    assert_eq!(written(&converted("qcow2", &over)), [(0, 1), (1, 3), (2047, 2)]);
    let tree = json!({"vhd": {"file": path, "backing": {"null": MIB}}});
    let error = caller.call("disk.attach", io.spec("d", tree)).unwrap_err().message;
    assert!(error.contains("state none"), "{error}");
}

#[test]
fn a_parent_that_does_not_fit_is_refused_with_the_next_step() {
    let io = Io::start();
    let mut caller = io.caller();
    let base = created(&io.folder, "base.vhd", &CreateOptions::dynamic(MIB));
    let other = created(&io.folder, "other.vhd", &CreateOptions::dynamic(MIB));
    let top = io.folder.path().join("top.vhd");
    let backing = json!({"file": "base.vhd", "format": "vhd"});
    let create = json!({"path": top, "format": "vhd", "size": MIB, "backing": backing});
    let info = caller.call("image.create", create).unwrap();
    let before = std::fs::read(&top).unwrap();
    let identity = info["vhd"]["parent"]["unique_id"].as_str().unwrap();
    let mut attach = |backing: Value| {
        let tree = json!({"vhd": {"file": top, "backing": backing}});
        caller.call("disk.attach", io.spec("d", tree)).map_err(|error| error.message)
    };
    for (backing, text) in [
        (json!({"vhd": {"file": other}}), identity),
        (json!({"file": other}), "state the parent with format vhd"),
    ] {
        let error = attach(backing).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
    let attached = attach(json!({"vhd": {"file": base}})).unwrap();
    assert_eq!(attached["notes"], Value::Null);
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    let alone = io.spec("d", json!({"vhd": {"file": top}}));
    let error = caller.call("disk.attach", alone).unwrap_err().message;
    let tree = json!({"vhd": {"file": top, "backing": {"vhd": {"file": base}}}});
    assert!(error.contains("has only a part of its disk"), "{error}");
    assert!(error.contains(&tree.to_string()), "{error}");
    let mut raw = io.spec("raw", json!({"file": base}));
    raw["format"] = json!("raw");
    let notes = caller.disk("disk.attach", raw).notes;
    assert!(notes[0].contains("--format vhd"), "{notes:?}");
    assert!(std::fs::read(&top).unwrap() == before);
}
