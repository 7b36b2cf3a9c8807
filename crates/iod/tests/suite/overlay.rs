//! Disks with an overlay: what is written is kept over kills and upgrades, and forgotten by a reset.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::common::sectors::{connect, flush, read, write, write_bytes};
use crate::common::*;
use rustix::process::Signal;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// Disk, larger than the memory of its overlay.
const SIZE: u64 = 16 * MIB;

fn kill_worker(io: &mut Io) {
    let serving = io.caller().stats().pid;
    let pid = rustix::process::Pid::from_raw(serving.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    io.process.next_worker(Some(serving)).unwrap();
}

/// Raw image whose sector 7 has ones.
fn base(io: &Io) -> PathBuf {
    let path = PathBuf::from(image(&io.folder, "base.raw", SIZE));
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[1; 512], 7 * 512).unwrap();
    path
}

fn overlay(io: &Io, base: Value) -> Value {
    json!({"overlay": {"base": base, "ram": 4 * MIB, "overflow": io.folder.path().join("over")}})
}

fn attach(io: &Io, id: &str, backend: Value) {
    let mut spec = io.spec(id, backend);
    // Folders of tests may be on file systems without direct I/O.
    spec["cache"] = json!("writeback");
    io.caller().disk("disk.attach", spec);
}

#[test]
fn writes_survive_kills_and_upgrades_until_a_reset() {
    for golden in [false, true] {
        let mut io = Io::start();
        let path = base(&io);
        let before = std::fs::read(&path).unwrap();
        let below = match golden {
            false => json!({"file": path}),
            true => json!({"golden": {"source": {"file": path},
                                      "cache": io.folder.path().join("cache")}}),
        };
        attach(&io, "d", overlay(&io, below));
        let socket = io.socket("d");
        let mut guest = connect(&socket);
        assert_eq!(read(&mut guest, 7), 1);
        // A part of a block, and more than the memory has.
        write(&mut guest, 8, 2);
        for at in 1..SIZE / MIB {
            write_bytes(&mut guest, at * 2048, &vec![at as u8; MIB as usize]);
        }
        flush(&mut guest);
        let check = |guest: &mut testkit::raw::Guest| {
            assert_eq!([7, 8].map(|sector| read(guest, sector)), [1, 2]);
            for at in 1..SIZE / MIB {
                assert_eq!(read(guest, at * 2048 + 5), at as u8, "at {at}");
            }
        };
        check(&mut guest);
        drop(guest);
        kill_worker(&mut io);
        let mut guest = connect(&socket);
        check(&mut guest);
        io.caller().call("upgrade", Value::Null).unwrap();
        check(&mut guest);
        let reply = io.caller().call("disk.reset", json!({"id": "d"})).unwrap();
        assert!(reply["pause_us"].as_u64().unwrap() > 0, "{reply}");
        assert_eq!([7, 8, 2048].map(|sector| read(&mut guest, sector)), [1, 0, 0]);
        // The file of the former writes is used again.
        for at in 1..SIZE / MIB {
            write_bytes(&mut guest, at * 2048, &vec![at as u8 + 50; MIB as usize]);
        }
        io.caller().call("upgrade", Value::Null).unwrap();
        for at in 1..SIZE / MIB {
            assert_eq!(read(&mut guest, at * 2048 + 5), at as u8 + 50, "at {at}");
        }
        drop(guest);
        kill_worker(&mut io);
        assert_eq!(read(&mut connect(&socket), 2048), 51);
        assert!(std::fs::read(&path).unwrap() == before, "the base never changes");
        // A detach ends the writes, too.
        io.caller().call("disk.detach", json!({"id": "d"})).unwrap();
        let below = json!({"file": path});
        attach(&io, "d", overlay(&io, below));
        assert_eq!([7, 8, 2048].map(|sector| read(&mut connect(&socket), sector)), [1, 0, 0]);
    }
}

#[test]
fn a_replaced_base_keeps_the_writes_and_an_overlay_is_not_lost() {
    let io = Io::start();
    let path = base(&io);
    let tree = overlay(&io, json!({"file": path}));
    attach(&io, "d", tree.clone());
    let mut guest = connect(&io.socket("d"));
    write(&mut guest, 8, 2);
    let copy = io.folder.path().join("copy.raw");
    std::fs::copy(&path, &copy).unwrap();
    let next = overlay(&io, json!({"file": copy}));
    let replace = |backend: &Value, expect: &Value| {
        io.caller().call("disk.replace", json!({"id": "d", "backend": backend, "expect": expect}))
    };
    replace(&next, &tree).unwrap();
    assert_eq!([7, 8].map(|sector| read(&mut guest, sector)), [1, 2]);
    let error = replace(&json!({"file": copy}), &next).unwrap_err().message;
    assert!(error.contains("the writes of the disk are in its overlay"), "{error}");
    write(&mut guest, 9, 3);
    assert_eq!([7, 8, 9].map(|sector| read(&mut guest, sector)), [1, 2, 3]);
    // A disk that is none refuses a reset.
    let other = image(&io.folder, "other.raw", MIB);
    attach(&io, "o", json!({"file": other}));
    let error = io.caller().call("disk.reset", json!({"id": "o"})).unwrap_err().message;
    assert!(error.contains("is no overlay"), "{error}");
}

#[test]
fn an_overlay_over_a_written_disk_keeps_it_as_it_is() {
    let io = Io::start();
    let path = base(&io);
    let plain = json!({"file": path});
    attach(&io, "d", plain.clone());
    let mut guest = connect(&io.socket("d"));
    write(&mut guest, 8, 2);
    let tree = overlay(&io, plain.clone());
    let params = json!({"id": "d", "backend": tree, "expect": plain});
    io.caller().call("disk.replace", params).unwrap();
    let before = std::fs::read(&path).unwrap();
    write(&mut guest, 8, 3);
    assert_eq!(read(&mut guest, 8), 3);
    assert!(std::fs::read(&path).unwrap() == before);
    io.caller().call("disk.reset", json!({"id": "d"})).unwrap();
    assert_eq!([7, 8].map(|sector| read(&mut guest, sector)), [1, 2]);
}
