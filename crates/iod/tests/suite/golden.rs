//! Disks on a golden image: kills, upgrades, a source that goes, and images above.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::sectors::{connect, read, write, write_bytes};
use crate::common::*;
use crate::golden_servers::{self, BLOCK, Fault, Server};
use image::qcow2::{CreateOptions, create_file};
use model::report::{GoldenStats, WarmPhase};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::reconnecting::{End, ReconnectingGuest, Shape, stamped};

const MIB: u64 = 1 << 20;

/// Golden image whose sector 7 has ones, and sector 1000 twos.
fn golden(io: &Io) -> (PathBuf, Value) {
    let path = PathBuf::from(image(&io.folder, "gold.raw", MIB));
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[1; 512], 7 * 512).unwrap();
    file.write_all_at(&[2; 512], 1000 * 512).unwrap();
    let cache = io.folder.path().join("cache");
    let backend = json!({"golden": {"source": {"file": path}, "cache": cache}});
    (path, backend)
}

fn kill_worker(io: &mut Io) {
    let serving = io.caller().stats().pid;
    let pid = rustix::process::Pid::from_raw(serving.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    io.process.next_worker(Some(serving)).unwrap();
}

#[test]
fn a_golden_disk_survives_its_source_a_kill_and_an_upgrade() {
    let mut io = Io::start();
    let (source, backend) = golden(&io);
    let mut spec = io.spec("g", backend);
    spec["read_only"] = json!(true);
    io.caller().disk("disk.attach", spec);
    let socket = io.socket("g");
    let mut guest = connect(&socket);
    assert_eq!([7, 1000].map(|sector| read(&mut guest, sector)), [1, 2]);
    drop(guest);
    std::fs::remove_file(&source).unwrap();
    kill_worker(&mut io);
    let mut guest = connect(&socket);
    assert_eq!([7, 1000].map(|sector| read(&mut guest, sector)), [1, 2]);
    io.caller().call("upgrade", Value::Null).unwrap();
    assert_eq!([7, 1000].map(|sector| read(&mut guest, sector)), [1, 2]);
}

#[test]
fn a_disk_keeps_the_image_that_its_guest_knows() {
    let mut io = Io::start();
    let (source, backend) = golden(&io);
    let mut spec = io.spec("g", backend);
    spec["read_only"] = json!(true);
    io.caller().disk("disk.attach", spec.clone());
    let identity = |io: &Io| {
        let backend = io.caller().stats().disks[0].backend.clone();
        backend.golden().unwrap().identity.clone().unwrap()
    };
    let former = identity(&io);
    assert_eq!(read(&mut connect(&io.socket("g")), 7), 1);
    let file = File::options().write(true).open(&source).unwrap();
    file.write_all_at(&[9; 512], 7 * 512).unwrap();
    kill_worker(&mut io);
    assert_eq!(read(&mut connect(&io.socket("g")), 7), 1, "from the cache");
    assert_eq!(identity(&io), former);
    // An attach takes the image that is there now.
    io.caller().call("disk.detach", json!({"id": "g"})).unwrap();
    io.caller().disk("disk.attach", spec);
    assert_eq!(read(&mut connect(&io.socket("g")), 7), 9);
    assert_ne!(identity(&io), former);
}

#[test]
fn writes_go_to_an_image_over_a_golden_one() {
    let mut io = Io::start();
    let (source, backend) = golden(&io);
    let top = io.folder.path().join("top.qcow2");
    create_file(&top, &CreateOptions::new(MIB)).unwrap();
    let tree = json!({"qcow2": {"file": top, "backing": backend}});
    let mut spec = io.spec("d", tree);
    spec["cache"] = json!("writeback");
    io.caller().disk("disk.attach", spec);
    let mut guest = connect(&io.socket("d"));
    assert_eq!([7, 1000].map(|sector| read(&mut guest, sector)), [1, 2]);
    let stats = io.caller().stats().disks[0].golden.clone().unwrap();
    assert_eq!((stats.fetched, stats.fetched_bytes, stats.problem), (2, 2 * 65536, None));
    let metrics = io.caller().call("metrics", Value::Null).unwrap().to_string();
    assert!(metrics.contains("ringway_disk_golden_fetched_bytes_total"), "{metrics}");
    // The rest of the cluster comes from the golden image.
    write(&mut guest, 8, 3);
    drop(guest);
    std::fs::remove_file(&source).unwrap();
    kill_worker(&mut io);
    let mut guest = connect(&io.socket("d"));
    assert_eq!([7, 8, 1000].map(|sector| read(&mut guest, sector)), [1, 3, 2]);
}

/// Attaches a read-only disk `id` on a golden image.
fn attach(io: &Io, id: &str, source: &Value, cache: &Path) -> PathBuf {
    let mut spec = io.spec(id, json!({"golden": {"source": source, "cache": cache}}));
    spec["read_only"] = json!(true);
    io.caller().disk("disk.attach", spec);
    io.socket(id)
}

fn state(io: &Io) -> GoldenStats {
    io.caller().stats().disks[0].golden.clone().unwrap()
}

/// Reads blocks of an image. Returns false if the process that serves them ends.
fn read_blocks(socket: &Path, bytes: &[u8], blocks: Range<usize>) -> bool {
    let mut guest = connect(socket);
    blocks.into_iter().all(|block| {
        let request = Request::read((block * BLOCK / 512) as u64, BLOCK as u32);
        let Ok(done) = guest.run(0, &request) else { return false };
        assert!(done.data == bytes[block * BLOCK..(block + 1) * BLOCK], "block {block}");
        true
    })
}

/// Reads a whole image.
fn read_all(socket: &Path, bytes: &[u8]) -> bool {
    read_blocks(socket, bytes, 0..bytes.len() / BLOCK)
}

#[test]
fn a_killed_worker_fetches_no_stored_block_again() {
    let mut io = Io::start();
    let (cache, bytes) = (io.folder.path().join("cache"), golden_servers::image(300));
    let server = Server::nbd(bytes.clone());
    let socket = attach(&io, "g", &server.source, &cache);
    std::thread::scope(|scope| {
        scope.spawn(|| read_all(&socket, &bytes));
        eventually("forty blocks are fetched", || server.served.totals().0 > 40);
        kill_worker(&mut io);
    });
    assert!(read_all(&socket, &bytes));
    // The worker had at most eight flights.
    let twice = server.served.blocks.lock().unwrap().values().filter(|count| **count > 1).count();
    assert!(twice <= 8, "{twice} blocks were fetched again");
    assert_eq!(server.served.totals().0, 300);
    server.served.blocks.lock().unwrap().clear();
    kill_worker(&mut io);
    assert!(read_all(&socket, &bytes));
    assert_eq!((server.served.totals(), state(&io).fetched), ((0, 0), 0), "warm");
}

#[test]
fn two_processes_share_a_cache() {
    let (first, second) = (Io::start(), Io::start());
    let (cache, bytes) = (first.folder.path().join("cache"), golden_servers::image(100));
    let server = Server::http(bytes.clone());
    // Both know an empty cache file, and the first one fills it.
    let sockets = [&first, &second].map(|io| attach(io, "g", &server.source, &cache));
    assert!(read_all(&sockets[0], &bytes) && read_all(&sockets[1], &bytes));
    assert_eq!((server.served.totals(), state(&second).fetched), ((100, 1), 0));
    assert_eq!((state(&first).stored, state(&second).stored), (100, 100));
}

#[test]
fn an_export_of_another_ringway_is_a_source() {
    let (store, host) = (Io::start(), Io::start());
    let (path, _) = golden(&store);
    store.caller().disk("disk.attach", store.spec("gold", json!({ "file": path })));
    let socket = store.socket("gold.nbd");
    let export = json!({"id": "gold", "socket": socket, "read_only": true});
    store.caller().call("disk.export", export).unwrap();
    let source = json!({"nbd": format!("nbd+unix:///gold?socket={}", socket.display())});
    let disk = attach(&host, "g", &source, &host.folder.path().join("cache"));
    let mut guest = connect(&disk);
    assert_eq!([7, 1000, 2047].map(|sector| read(&mut guest, sector)), [1, 2, 0]);
    assert_eq!(state(&host).fetched, 3);
}

#[test]
fn an_image_is_warmed_and_its_boot_set_moves() {
    let (io, other) = (Io::start(), Io::start());
    let (cache, bytes) = (io.folder.path().join("cache"), golden_servers::image(50));
    let server = Server::nbd(bytes.clone());
    let call = |method: &str, params: Value| io.caller().call(method, params);
    attach(&io, "g", &server.source, &cache);
    assert!(read_blocks(&io.socket("g"), &bytes, 1..2));
    let set = call("golden.export_boot_set", json!({"image": "g"})).unwrap();
    assert_eq!(set["blocks"], json!([1]));
    let there = other.folder.path().join("cache");
    let import = json!({"cache": there, "boot_set": set});
    other.caller().call("golden.import_boot_set", import).unwrap();
    attach(&other, "g", &server.source, &there);
    eventually("the boot set is fetched", || state(&other).fetched == 1);
    // A block in a long time; then without a limit.
    let identity = state(&io).identity;
    call("golden.warm", json!({"image": identity, "rate": 65536})).unwrap();
    call("golden.cancel", json!({"image": "g"})).unwrap();
    assert_eq!(state(&io).warm.unwrap().phase, WarmPhase::Canceled);
    call("golden.warm", json!({"image": "g"})).unwrap();
    eventually("the image is warm", || state(&io).warm.unwrap().phase == WarmPhase::Done);
    assert_eq!((state(&io).stored, state(&io).size), (50, bytes.len() as u64));
    server.served.set_fault(Some(Fault::Gone));
    assert!(read_all(&io.socket("g"), &bytes));
    for (method, params, reason) in [
        ("golden.warm", json!({"image": "x"}), "attach a disk on it first"),
        ("golden.warm", json!({"image": "g", "rate": 1}), "rate must be at least"),
        ("golden.import_boot_set", json!({"cache": "c", "boot_set": set}), "must be an absolute"),
        (
            "golden.import_boot_set",
            json!({"cache": "/c", "boot_set": {"format": 2, "identity": "a", "blocks": []}}),
            "format 2",
        ),
    ] {
        let error = call(method, params).unwrap_err().message;
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn requests_that_wait_for_the_source_outlive_stops_and_upgrades() {
    for layer in ["overlay", "qcow2"] {
        let io = Io::start();
        let bytes = stamped(4 * MIB, 1);
        let server = Server::nbd(bytes);
        let cache = io.folder.path().join("cache");
        let golden = json!({"golden": {"source": server.source, "cache": cache}});
        let top = io.folder.path().join("top.qcow2");
        create_file(&top, &CreateOptions::new(4 * MIB)).unwrap();
        let backend = match layer {
            "overlay" => json!({"overlay": {"base": golden, "ram": 4 * MIB}}),
            _ => json!({"qcow2": {"file": top, "backing": golden}}),
        };
        let mut spec = io.spec("d", backend);
        spec["cache"] = json!("writeback");
        io.caller().disk("disk.attach", spec);
        let shape = Shape { queues: 1, depth: 16, first_stamp: 1, ..Shape::default() };
        let mut guest = ReconnectingGuest::connect(&io.socket("d"), shape).unwrap();
        server.served.set_fault(Some(Fault::Gone));
        let waits = |guest: &mut ReconnectingGuest| {
            while state(&io).problem.is_none() || guest.outstanding() == 0 {
                let until = Instant::now() + Duration::from_millis(20);
                assert_eq!(guest.run(until).unwrap(), End::Time, "{layer}");
            }
        };
        waits(&mut guest);
        let stopped = guest.stop().unwrap();
        eventually("none waits", || state(&io).problem.is_none());
        guest.cont(stopped).unwrap();
        waits(&mut guest);
        io.caller().call("upgrade", Value::Null).unwrap();
        waits(&mut guest);
        server.served.set_fault(None);
        guest.finish().unwrap();
        assert_eq!(io.caller().stats().disks[0].errors, 0);
    }
}

#[test]
fn a_read_that_waits_for_the_source_holds_up_no_write() {
    let io = Io::start();
    let server = Server::nbd(golden_servers::image(256));
    let cache = io.folder.path().join("cache");
    let golden = json!({"golden": {"source": server.source, "cache": cache}});
    let over = io.folder.path().join("over");
    let backend = json!({"overlay": {"base": golden, "ram": 4 * MIB, "overflow": over}});
    let mut spec = io.spec("d", backend);
    (spec["cache"], spec["queues"]) = (json!("writeback"), json!(2));
    io.caller().disk("disk.attach", spec);
    let mut guest =
        Guest::start(&io.socket("d"), &Setup { queues: 2, ..Setup::default() }).unwrap();
    server.served.set_fault(Some(Fault::Gone));
    let waits = guest.submit(1, &Request::read(0, 4096)).unwrap();
    // A part of a block, whose rest the source has.
    let fills = guest.submit(1, &Request::write(128, &[7; 512])).unwrap();
    guest.kick(1).unwrap();
    eventually("they wait", || state(&io).problem.is_some());
    // Four times what the memory has.
    for turn in 0..16 {
        write_bytes(&mut guest, 2048 + turn % 8 * 2048, &vec![turn as u8; MIB as usize]);
    }
    assert_eq!([0, 5, 7].map(|at| read(&mut guest, 2048 + at * 2048)), [8, 13, 15]);
    server.served.set_fault(None);
    for one in guest.finish_all(1, &[waits, fills]).unwrap() {
        assert_eq!(one.status, status::OK);
    }
    assert_eq!(read(&mut guest, 128), 7);
}
