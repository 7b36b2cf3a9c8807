//! Disks with an overlay: what is written is kept over kills and upgrades, and forgotten by a reset.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::sectors::{connect, flush, read, write, write_bytes};
use crate::common::*;
use model::report::{DiskState, DiskStats};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::in_namespace::in_little_room;
use testkit::process::eventually;
use testkit::raw::guest::{Pending, WaitEvent};
use testkit::raw::request::{Request, kind, status};
use testkit::raw::{Guest, Setup};

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
fn an_overflow_file_in_memory_is_told() {
    let io = Io::start();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut spec = io.spec("d", overlay(&io, json!({"file": base(&io)})));
    spec["backend"]["overlay"]["overflow"] = json!(folder.path().join("over"));
    spec["cache"] = json!("writeback");
    let reply = io.caller().call("disk.attach", spec).unwrap();
    let note = reply["notes"][0].as_str().unwrap();
    assert!(note.contains("is in memory (tmpfs)") && note.contains("on a disk"), "{note}");
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
        let check = |guest: &mut Guest| {
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

#[test]
fn what_a_guest_has_written_becomes_an_image_over_the_base() {
    for golden in [false, true] {
        let io = Io::start();
        let path = base(&io);
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&vec![9; 2 << 20], 8 * MIB).unwrap();
        let below = match golden {
            false => json!({"file": path}),
            true => json!({"golden": {"source": {"file": path},
                                      "cache": io.folder.path().join("cache")}}),
        };
        attach(&io, "d", overlay(&io, below.clone()));
        let mut guest = connect(&io.socket("d"));
        write(&mut guest, 8, 2);
        for at in 1..7 {
            write_bytes(&mut guest, at * 2048, &vec![at as u8; MIB as usize]);
        }
        // Zeroes hide what the base has.
        let zeroes = Request::range(kind::WRITE_ZEROES, 16384, 40, 0);
        assert_eq!(guest.run(0, &zeroes).unwrap().status, status::OK);
        write(&mut guest, 32767, 3);
        let new = io.folder.path().join("new.qcow2");
        let params = json!({"id": "d", "path": new});
        let error = io.caller().call("image.commit", params.clone()).unwrap_err().message;
        assert!(error.contains("pause it first"), "{error}");
        assert!(!new.exists());
        io.caller().disk("disk.pause", json!({"id": "d"}));
        io.caller().call("image.commit", params).unwrap();
        io.caller().disk("disk.resume", json!({"id": "d"}));
        attach(&io, "n", json!({"qcow2": {"file": new, "backing": below}}));
        let mut other = connect(&io.socket("n"));
        for sector in [0, 7, 8, 9, 2048, 6 * 2048 + 2047, 16384, 16423, 16424, 18000, 20480, 32767]
        {
            assert_eq!(read(&mut other, sector), read(&mut guest, sector), "{sector}, {golden}");
        }
        assert_eq!([7, 8, 16384, 16424, 32767].map(|at| read(&mut other, at)), [1, 2, 0, 9, 3]);
        // What was written alone is stored.
        assert!(std::fs::metadata(&new).unwrap().len() < 9 * MIB);
    }
}

const FULL: &str =
    concat!(module_path!(), "::writes_that_have_no_room_wait_and_go_on_when_there_is");

#[test]
fn writes_that_have_no_room_wait_and_go_on_when_there_is() {
    in_little_room(FULL, 16, full).unwrap();
}

fn only_disk(io: &Io) -> DiskStats {
    io.caller().stats().disks.remove(0)
}

/// Writes blocks that were not written, from the one at `next` on, until a write waits.
fn use_up(io: &Io, guest: &mut Guest, next: &mut u64) -> Pending {
    loop {
        let mark = guest.memory.mark();
        let pending = guest.submit(0, &Request::write(*next * 8, &[5; 4096])).unwrap();
        *next += 1;
        guest.kick(0).unwrap();
        let mut event = WaitEvent::Silent;
        while event == WaitEvent::Silent {
            if only_disk(io).waiting > 0 {
                return pending;
            }
            event = guest.wait(0, Duration::from_millis(20)).unwrap();
        }
        assert_eq!(guest.status(&pending).unwrap(), status::OK);
        guest.memory.release(mark);
    }
}

fn full(dir: &Path) {
    let io = Io::start();
    let path = image(&io.folder, "large.raw", 64 * MIB);
    let tree = json!({"overlay": {"base": {"file": path}, "ram": 4 * MIB,
                                  "overflow": dir.join("overflow")}});
    attach(&io, "d", tree);
    let mut guest = connect(&io.socket("d"));
    let filler = dir.join("filler");
    std::fs::write(&filler, vec![1; 8 << 20]).unwrap();
    let mut next = 0;
    for at in 0..6 {
        write_bytes(&mut guest, at * 2048, &vec![at as u8; MIB as usize]);
        next += 256;
    }
    let waiting = use_up(&io, &mut guest, &mut next);
    let disk = only_disk(&io);
    assert_eq!(disk.state, DiskState::Waiting);
    assert!(disk.alert.unwrap().contains("make room for the overflow file"));
    let overlay = disk.overlay.unwrap();
    assert!(overlay.is_full && overlay.waiting_bytes == 4096, "{overlay:?}");
    assert!(overlay.ram_used_bytes + (64 << 10) >= overlay.ram_bytes, "{overlay:?}");
    assert!(overlay.overflow_used_bytes > 4 * MIB, "{overlay:?}");
    let metrics = io.caller().call("metrics", Value::Null).unwrap().to_string();
    assert!(metrics.contains("ringway_disk_overlay_full{disk=\\\"d\\\"} 1"), "{metrics}");
    // Reads go on, and so does what needs no room: an upgrade, and a reset.
    assert_eq!(read(&mut guest, 2048), 1);
    io.caller().call("upgrade", Value::Null).unwrap();
    eventually("it waits again", || only_disk(&io).waiting == 1);
    // The file system gets room.
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(guest.finish(0, &waiting).unwrap().status, status::OK);
    eventually("nothing waits", || only_disk(&io).state == DiskState::Active);
    // The guest gives space back.
    let waiting = use_up(&io, &mut guest, &mut next);
    let discard = Request::range(kind::DISCARD, 0, 4096, 0);
    assert_eq!(guest.run(0, &discard).unwrap().status, status::OK);
    assert_eq!(guest.finish(0, &waiting).unwrap().status, status::OK);
    // A reset lets a write go on, too, and it is in the new contents.
    let last = next;
    let waiting = use_up(&io, &mut guest, &mut next);
    let sector = (next - 1) * 8;
    io.caller().call("disk.reset", json!({"id": "d"})).unwrap();
    assert_eq!(guest.finish(0, &waiting).unwrap().status, status::OK);
    assert_eq!([sector, last * 8 - 8].map(|sector| read(&mut guest, sector)), [5, 0]);
    eventually("nothing waits", || only_disk(&io).state == DiskState::Active);
}

/// Disks that fill their memory and one small file system at once.
const MACHINES: usize = 30;

const STORM: &str = concat!(module_path!(), "::thirty_machines_that_fill_everything_go_on");

#[test]
fn thirty_machines_that_fill_everything_go_on() {
    print!("{}", in_little_room(STORM, 12, storm).unwrap());
}

/// Writes of a machine: more than its memory and the whole file system.
fn storm_writes(machine: usize) -> Vec<Request> {
    (0..17).map(|at| Request::write(at * 2048, &vec![machine as u8 + 1; MIB as usize])).collect()
}

fn storm(dir: &Path) {
    let io = Io::start();
    let path = image(&io.folder, "large.raw", 20 * MIB);
    let mut guests: Vec<_> = (0..MACHINES)
        .map(|machine| {
            let id = format!("d{machine}");
            let over = dir.join(&id);
            attach(
                &io,
                &id,
                json!({"overlay": {"base": {"file": path}, "ram": 4 * MIB,
                                                "overflow": over}}),
            );
            let setup = Setup { memory_bytes: 20 * MIB, ..Setup::default() };
            Guest::start(&io.socket(&id), &setup).unwrap()
        })
        .collect();
    let serving = io.caller().stats().pid;
    let pending: Vec<Vec<Pending>> = std::thread::scope(|scope| {
        let each = guests.iter_mut().enumerate().map(|(machine, guest)| {
            scope.spawn(move || {
                let pending = guest.submit_all(0, &storm_writes(machine)).unwrap();
                guest.kick(0).unwrap();
                pending
            })
        });
        let each: Vec<_> = each.collect();
        each.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let all = |io: &Io, state| io.caller().stats().disks.iter().all(|disk| disk.state == state);
    eventually("all of them wait", || all(&io, DiskState::Waiting));
    // The control plane answers: calls on these disks and on others.
    let mut times: Vec<Duration> = (0..testkit::rounds(50, 2000))
        .map(|turn| {
            let ((), took) = timed(|| {
                let spec = io.spec("other", json!({"null": 1 << 20}));
                io.caller().disk("disk.attach", spec);
                io.caller().call("disk.detach", json!({"id": "other"})).unwrap();
                let poll = json!({"id": format!("d{}", turn % MACHINES), "poll": "off"});
                io.caller().call("disk.poll", poll).unwrap();
                assert!(all(&io, DiskState::Waiting));
            });
            took
        })
        .collect();
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    println!("four calls while {MACHINES} disks wait: p50 {:?}, p99 {:?}", at(50), at(99));
    // Room for all.
    let grow = ["-o", "remount,size=600m"];
    assert!(Command::new("mount").args(grow).arg(dir).status().unwrap().success());
    for (machine, (guest, pending)) in guests.iter_mut().zip(&pending).enumerate() {
        for done in guest.finish_all(0, pending).unwrap() {
            assert_eq!(done.status, status::OK);
        }
        for at in 0..17 {
            assert_eq!(read(guest, at * 2048 + 77), machine as u8 + 1);
        }
    }
    eventually("none waits", || all(&io, DiskState::Active));
    let stats = io.caller().stats();
    assert_eq!(stats.pid, serving, "the worker died");
    assert!(stats.disks.iter().all(|disk| disk.errors == 0));
}
