//! Disks with an overlay whose overflow file has the size that the disk allows.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::sectors::{connect, read};
use crate::common::*;
use model::report::{DiskState, DiskStats};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

const MIB: u64 = 1 << 20;
/// Pieces of 1 MiB that the guest writes at once.
const PIECES: u64 = 16;

fn only_disk(io: &Io) -> DiskStats {
    io.caller().stats().disks.remove(0)
}

#[test]
fn writes_go_on_when_the_limit_of_the_overflow_file_is_raised() {
    let mut io = Io::start();
    let (path, over) = (image(&io.folder, "base.raw", 32 * MIB), io.folder.path().join("over"));
    let tree = |size: u64| {
        json!({"overlay": {"base": {"file": path}, "ram": 4 * MIB, "overflow": over,
                           "overflow_size": size}})
    };
    let mut spec = io.spec("d", tree(2 * MIB));
    spec["cache"] = json!("writeback");
    io.caller().disk("disk.attach", spec);
    let setup = Setup { memory_bytes: (PIECES + 4) * MIB, ..Setup::default() };
    let mut guest = Guest::start(&io.socket("d"), &setup).unwrap();
    let piece = |at: u64| Request::write(at * 2048, &vec![at as u8 + 1; MIB as usize]);
    let pending = guest.submit_all(0, &(0..PIECES).map(piece).collect::<Vec<_>>()).unwrap();
    guest.kick(0).unwrap();
    let waits_at = |size: u64| {
        eventually("it waits at the limit", || {
            let disk = only_disk(&io);
            let overlay = disk.overlay.unwrap();
            let is_used = overlay.overflow_used_bytes + 4096 == size && overlay.is_full;
            disk.state == DiskState::Waiting && is_used && overlay.overflow_size_bytes == Some(size)
        });
        assert!(std::fs::metadata(&over).unwrap().len() <= size);
    };
    waits_at(2 * MIB);
    let alert = only_disk(&io).alert.unwrap();
    assert!(alert.contains("raise overflow_size with disk.replace"), "{alert}");
    let replace = |from: u64, to: u64| {
        let params = json!({"id": "d", "backend": tree(to), "expect": tree(from)});
        io.caller().call("disk.replace", params).unwrap();
    };
    // A limit that is too low still is one.
    replace(2 * MIB, 4 * MIB);
    waits_at(4 * MIB);
    io.caller().call("upgrade", Value::Null).unwrap();
    waits_at(4 * MIB);
    replace(4 * MIB, 32 * MIB);
    for done in guest.finish_all(0, &pending).unwrap() {
        assert_eq!(done.status, status::OK);
    }
    eventually("nothing waits", || only_disk(&io).state == DiskState::Active);
    let check = |guest: &mut Guest| {
        for at in 0..PIECES {
            assert_eq!(read(guest, at * 2048 + 77), at as u8 + 1, "at {at}");
        }
    };
    check(&mut guest);
    drop(guest);
    // The keeper knows the new limit.
    let serving = io.caller().stats().pid;
    let pid = Pid::from_raw(serving.try_into().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    io.process.next_worker(Some(serving)).unwrap();
    check(&mut connect(&io.socket("d")));
    assert_eq!(only_disk(&io).overlay.unwrap().overflow_size_bytes, Some(32 * MIB));
}
