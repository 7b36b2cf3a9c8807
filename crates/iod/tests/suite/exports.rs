//! NBD exports of disks: when they are possible, and how they end.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::common::nbd::{client, connect_nonblocking, greet, is_closed, read, request, write};
use crate::common::*;
use image::qcow2::{CreateOptions, create_file};
use model::report::{DiskState, ExportStats};
use model::rpc::{ExportReply, RpcError, code};
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

const SIZE: u64 = 8 << 20;

/// Returns the parameters of `disk.export` for disk `id` on the socket `ID.nbd`.
fn spec(io: &Io, id: &str, read_only: bool) -> Value {
    json!({"id": id, "socket": io.socket(&format!("{id}.nbd")), "read_only": read_only})
}

fn exported(caller: &mut Caller, spec: Value) -> ExportReply {
    serde_json::from_value(caller.call("disk.export", spec).unwrap()).unwrap()
}

fn refused(caller: &mut Caller, method: &str, params: Value, says: &str) -> RpcError {
    let error = caller.call(method, params).unwrap_err();
    assert!(error.message.contains(says), "{error}");
    error
}

fn inactive(io: &Io, id: &str, backend: Value) -> Value {
    let mut spec = io.spec(id, backend);
    spec["activate"] = json!(false);
    spec["cache"] = json!("writeback");
    spec
}

fn export_stats(caller: &mut Caller, id: &str) -> Vec<ExportStats> {
    let mut disks = caller.stats().disks.into_iter();
    disks.find(|disk| disk.id == id).unwrap().exports
}

#[test]
fn a_disk_has_one_writer_and_any_number_of_readers() {
    let io = Io::start();
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", SIZE);
    caller.disk("disk.attach", inactive(&io, "d", json!({"file": path})));

    let reply = exported(&mut caller, spec(&io, "d", false));
    assert_eq!(reply.uri, format!("nbd+unix:///d?socket={}", io.socket("d.nbd").display()));
    assert_eq!((reply.geometry.size_bytes, reply.geometry.read_only), (SIZE, false));
    // Repeating the same export succeeds. Other parameters, or a second writable export, are
    // refused.
    exported(&mut caller, spec(&io, "d", false));
    let error = refused(&mut caller, "disk.export", spec(&io, "d", true), "with other options");
    assert_eq!(error.code, code::WRONG_STATE);
    let mut beside = spec(&io, "d", false);
    beside["socket"] = json!(io.socket("other"));
    refused(&mut caller, "disk.export", beside, "exported for writing on");
    // The export has the lock as a guest would, against guests and all other programs.
    let error = refused(&mut caller, "disk.activate", json!({"id": "d"}), "unexport that first");
    assert_eq!(error.code, code::WRONG_STATE);
    assert_eq!(caller.state("d"), Some(DiskState::Attached));
    let mut twin = io.spec("twin", json!({"file": path}));
    twin["cache"] = json!("writeback");
    refused(&mut caller, "disk.attach", twin, "in use");
    refused(&mut caller, "disk.resize", json!({"id": "d", "size": 2 * SIZE}), "not active");

    caller.disk("disk.unexport", json!({"id": "d"}));
    let error = refused(&mut caller, "disk.unexport", json!({"id": "d"}), "not exported");
    assert_eq!(error.code, code::WRONG_STATE);
    caller.disk("disk.activate", json!({"id": "d"}));
    refused(&mut caller, "disk.export", spec(&io, "d", false), "\"read_only\":true");

    // While a guest writes, read-only clients work.
    let reply = exported(&mut caller, spec(&io, "d", true));
    assert!(reply.geometry.read_only);
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    let (mut one, mut two) = (client(&io.socket("d.nbd")), client(&io.socket("d.nbd")));
    for value in 1..20 {
        let done = guest.run(0, &Request::write(8, &[value; 512])).unwrap();
        assert_eq!(done.status, status::OK);
        assert_eq!(read(&mut one, 4096), [value; 512]);
        assert_eq!(read(&mut two, 4096), [value; 512]);
    }
    let [stats] = &export_stats(&mut caller, "d")[..] else { panic!("one export") };
    assert_eq!((stats.connections, stats.clients, stats.reads), (2, 2, 38));
    assert_eq!((stats.read_bytes, stats.errors, stats.read_only), (38 * 512, 0, true));
    // A guest that disconnects, connects, or gets another size does not disturb the clients.
    caller.disk("disk.resize", json!({"id": "d", "size": 2 * SIZE}));
    caller.disk("disk.deactivate", json!({"id": "d"}));
    assert_eq!(read(&mut one, 4096), [19; 512]);
    let mut later = client(&io.socket("d.nbd"));
    assert_eq!(read(&mut later, 2 * SIZE - 512), [0; 512], "new clients see the new size");
}

#[test]
fn what_cannot_be_exported_is_refused_and_leaves_nothing() {
    let io = Io::start();
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", SIZE);
    caller.disk("disk.attach", inactive(&io, "d", json!({"file": path})));
    let mut fixed = inactive(&io, "fixed", json!({"memory": 4096}));
    fixed["read_only"] = json!(true);
    caller.disk("disk.attach", fixed);
    let before = names(&io.folder);

    let error = refused(&mut caller, "disk.export", spec(&io, "x", true), "no disk");
    assert_eq!(error.code, code::NO_SUCH_DISK);
    refused(&mut caller, "disk.export", spec(&io, "fixed", false), "read-only");
    let mut odd = spec(&io, "d", true);
    odd["connections"] = json!(0);
    assert_eq!(refused(&mut caller, "disk.export", odd, "connections").code, code::INVALID_PARAMS);
    // Paths in use: sockets of this process, and other files.
    for taken in ["control", "d", "a.raw"] {
        let mut on = spec(&io, "d", false);
        on["socket"] = json!(io.socket(taken));
        caller.call("disk.export", on).unwrap_err();
    }
    let mut on = spec(&io, "d", true);
    on["socket"] = json!(io.socket("no/such/folder"));
    caller.call("disk.export", on).unwrap_err();
    assert_eq!(names(&io.folder), before);
    // The failed exports kept no lock.
    let mut twin = io.spec("twin", json!({"file": path}));
    twin["cache"] = json!("writeback");
    caller.disk("disk.attach", twin);
    refused(&mut caller, "disk.export", spec(&io, "d", false), "in use");
    assert!(export_stats(&mut caller, "d").is_empty());
    // The number of exports is limited.
    for at in 0..8 {
        let mut on = spec(&io, "d", true);
        on["socket"] = json!(io.socket(&format!("e{at}")));
        exported(&mut caller, on);
    }
    refused(&mut caller, "disk.export", spec(&io, "d", true), "8 exports");
    caller.disk("disk.unexport", json!({"id": "d", "socket": io.socket("e3")}));
    exported(&mut caller, spec(&io, "d", true));
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    caller.call("disk.detach", json!({"id": "twin"})).unwrap();
    let left: Vec<_> = before.into_iter().filter(|n| n != "d" && n != "d.lock").collect();
    assert_eq!(names(&io.folder), left);
}

/// Creates a qcow2 image of `bytes` over a raw one. Returns the tree.
pub(crate) fn layers(io: &Io, bytes: u64) -> Value {
    let (base, top) = (image(&io.folder, "base.raw", bytes), io.socket("top.qcow2"));
    create_file(&top, &CreateOptions::new(bytes)).unwrap();
    json!({"qcow2": {"file": top, "backing": {"file": base}}})
}

#[test]
fn layers_are_read_with_the_lock_whether_or_not_a_guest_has_it() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let tree = layers(&io, SIZE);
    caller.disk("disk.attach", inactive(&io, "d", tree.clone()));
    let mut twin = io.spec("twin", tree);
    twin["cache"] = json!("writeback");
    let (socket, second) = (io.socket("d.nbd"), io.socket("second"));
    exported(&mut caller, spec(&io, "d", true));
    let mut reader = client(&socket);
    assert_eq!(read(&mut reader, 0), [0; 512]);
    refused(&mut caller, "disk.attach", twin.clone(), "in use");
    // A writer beside it. Its end leaves the lock to the reader.
    exported(&mut caller, json!({"id": "d", "socket": second, "read_only": false}));
    write(&mut client(&second), 0, 5);
    assert_eq!(read(&mut reader, 0), [5; 512]);
    caller.disk("disk.unexport", json!({"id": "d", "socket": second}));
    assert_eq!(read(&mut reader, 0), [5; 512]);
    refused(&mut caller, "disk.attach", twin.clone(), "in use");
    // A guest beside it. The end of the export leaves the lock to the guest.
    caller.disk("disk.activate", json!({"id": "d"}));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::write(0, &[6; 512])).unwrap().status, status::OK);
    assert_eq!(read(&mut reader, 0), [6; 512]);
    caller.disk("disk.unexport", json!({"id": "d"}));
    assert!(is_closed(&mut reader));
    refused(&mut caller, "disk.attach", twin.clone(), "in use");
    assert_eq!(guest.run(0, &Request::write(0, &[7; 512])).unwrap().status, status::OK);
    caller.disk("disk.deactivate", json!({"id": "d"}));
    // The last export of an inactive disk releases the lock.
    exported(&mut caller, spec(&io, "d", true));
    replace_worker(&mut io);
    assert_eq!(read(&mut client(&socket), 0), [7; 512]);
    let mut caller = io.caller();
    refused(&mut caller, "disk.attach", twin.clone(), "in use");
    caller.call("upgrade", json!({})).unwrap();
    assert_eq!(read(&mut client(&socket), 0), [7; 512]);
    let mut caller = io.caller();
    refused(&mut caller, "disk.attach", twin.clone(), "in use");
    caller.disk("disk.unexport", json!({"id": "d"}));
    caller.disk("disk.attach", twin);
    refused(&mut caller, "disk.export", spec(&io, "d", true), "in use");
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn an_export_whose_image_has_another_writer_by_now_does_not_come_back() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let tree = layers(&io, SIZE);
    caller.disk("disk.attach", inactive(&io, "d", tree.clone()));
    caller.disk("disk.activate", json!({"id": "d"}));
    exported(&mut caller, spec(&io, "d", true));
    // The disk moves to another process.
    caller.disk("disk.deactivate", json!({"id": "d"}));
    let other = Io::start();
    let mut moved = other.spec("d", tree);
    moved["cache"] = json!("writeback");
    other.caller().disk("disk.attach", moved);
    replace_worker(&mut io);
    let mut caller = io.caller();
    eventually("the export is gone", || !io.socket("d.nbd").exists());
    eventually("it is restored", || caller.state("d") == Some(DiskState::Attached));
    assert!(export_stats(&mut caller, "d").is_empty());
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert!(io.process.stderr().contains("export not restored"), "{}", io.process.stderr());
}

#[test]
fn clients_connect_again_after_a_new_size_and_another_backend() {
    let io = Io::start();
    let mut caller = io.caller();
    let mut attach = io.spec("d", layers(&io, SIZE));
    attach["cache"] = json!("writeback");
    caller.disk("disk.attach", attach);
    let socket = io.socket("d.nbd");
    exported(&mut caller, spec(&io, "d", true));
    let mut before = client(&socket);
    caller.disk("disk.resize", json!({"id": "d", "size": 2 * SIZE}));
    assert!(is_closed(&mut before));
    let mut before = client(&socket);
    assert_eq!(read(&mut before, 2 * SIZE - 512), [0; 512]);
    let disks = json!({"disks": [{"id": "d", "file": io.socket("new.qcow2")}]});
    caller.call("disk.snapshot", disks).unwrap();
    assert!(is_closed(&mut before));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::write(0, &[4; 512])).unwrap().status, status::OK);
    assert_eq!(read(&mut client(&socket), 0), [4; 512]);
    eventually("one that ended does not count", || {
        export_stats(&mut caller, "d")[0].connections == 0
    });
}

/// Connects a client that stays within requests: it reads no replies, and sends no data for a
/// write.
fn entangled(socket: &Path) -> UnixStream {
    let mut stream = client(socket);
    for at in 0..64 {
        stream.write_all(&request(0, at * 65536, 65536)).unwrap();
    }
    stream.write_all(&request(1, 0, 1 << 20)).unwrap();
    stream.write_all(&[9; 1000]).unwrap();
    stream
}

#[test]
fn clients_in_the_middle_of_requests_are_cut_off() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", SIZE);
    caller.disk("disk.attach", inactive(&io, "d", json!({"file": path})));
    let unexport = ("disk.unexport", json!({"id": "d"}));
    for (method, params) in [unexport, ("disk.detach", json!({"id": "d"}))] {
        for read_only in [true, false] {
            if caller.state("d").is_none() {
                caller.disk("disk.attach", inactive(&io, "d", json!({"file": path})));
            }
            exported(&mut caller, spec(&io, "d", read_only));
            let mut busy = [(); 3].map(|()| entangled(&io.socket("d.nbd")));
            let _vanished = entangled(&io.socket("d.nbd"));
            caller.call(method, params.clone()).unwrap();
            assert!(busy.iter_mut().all(is_closed), "{method} read_only={read_only}");
            assert!(!io.socket("d.nbd").exists());
        }
    }
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0), "cut short, not written");
    // The whole process ends the same way.
    caller.disk("disk.attach", inactive(&io, "d", json!({"file": path})));
    exported(&mut caller, spec(&io, "d", false));
    let mut busy = entangled(&io.socket("d.nbd"));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert!(is_closed(&mut busy));
    assert_eq!(names(&io.folder), ["a.raw"]);
}

#[test]
fn a_burst_of_clients_is_served_beside_idle_ones() {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": SIZE})));
    exported(&mut caller, spec(&io, "d", true));
    let socket = io.socket("d.nbd");
    let _idle = [(); 16].map(|()| client(&socket));
    let _silent = [(); 16].map(|()| UnixStream::connect(&socket).unwrap());
    let start = std::sync::Barrier::new(60);
    let clients: Vec<_> = std::thread::scope(|scope| {
        let connect = |at: u64| {
            let (socket, start) = (&socket, &start);
            scope.spawn(move || {
                start.wait();
                // As libnbd does: it never waits within `connect`.
                let mut stream = connect_nonblocking(socket).unwrap();
                greet(&mut stream);
                assert_eq!(read(&mut stream, at * 512), [0; 512]);
                stream
            })
        };
        let threads: Vec<_> = (0..60).map(connect).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(clients.len(), 60);
    drop(clients);
    // Clients that come and go fill no log.
    let mut full = spec(&io, "d", true);
    full["socket"] = json!(io.socket("full"));
    full["connections"] = json!(1);
    exported(&mut caller, full);
    let _one = client(&io.socket("full"));
    for _ in 0..100 {
        assert!(is_closed(&mut UnixStream::connect(io.socket("full")).unwrap()));
        drop(client(&socket));
    }
    assert!(io.process.terminate().unwrap().success());
    let log = io.process.stderr();
    let rejected = log.lines().filter(|line| line.contains("client rejected")).count();
    assert!((1..=2).contains(&rejected), "a line and its summary: {log}");
    assert!(log.contains("export=\"d\"") && log.lines().count() < 40, "{log}");
}

#[test]
fn connections_are_limited_and_one_that_stalls_harms_nobody() {
    let io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"memory": SIZE})));
    let mut limited = spec(&io, "d", true);
    limited["connections"] = json!(2);
    exported(&mut caller, limited);
    let socket = io.socket("d.nbd");
    let (mut one, stalled) = (client(&socket), entangled(&socket));
    let mut third = UnixStream::connect(&socket).unwrap();
    assert!(is_closed(&mut third));
    assert_eq!(read(&mut one, 0), [0; 512]);
    // The guest on the same reactors is not disturbed.
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::write(0, &[3; 512])).unwrap().status, status::OK);
    assert_eq!(read(&mut one, 0), [3; 512]);
    drop(stalled);
    eventually("a place for a client", || export_stats(&mut caller, "d")[0].connections == 1);
    assert_eq!(read(&mut client(&socket), 0), [3; 512]);
}

fn replace_worker(io: &mut Io) {
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
}

#[test]
fn exports_come_back_with_a_new_worker() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", SIZE);
    caller.disk("disk.attach", inactive(&io, "w", json!({"file": path})));
    caller.disk("disk.attach", io.spec("r", json!({"memory": SIZE})));
    exported(&mut caller, spec(&io, "w", false));
    exported(&mut caller, spec(&io, "r", true));
    let mut ended = spec(&io, "r", true);
    ended["socket"] = json!(io.socket("ended"));
    exported(&mut caller, ended);
    caller.disk("disk.unexport", json!({"id": "r", "socket": io.socket("ended")}));
    let mut writer = client(&io.socket("w.nbd"));
    writer.write_all(&[request(1, 512, 512), vec![5; 512]].concat()).unwrap();
    writer.read_exact(&mut [0; 16]).unwrap();
    let mut guest = Guest::start(&io.socket("r"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::write(0, &[6; 512])).unwrap().status, status::OK);
    let before = names(&io.folder);

    replace_worker(&mut io);
    assert!(is_closed(&mut writer), "a crash cuts connections");
    // A client that connects at once waits until the export is restored.
    assert_eq!(read(&mut client(&io.socket("r.nbd")), 0), [6; 512]);
    assert_eq!(read(&mut client(&io.socket("w.nbd")), 512), [5; 512]);
    assert_eq!(names(&io.folder), before);
    let mut caller = io.caller();
    // Clients are served shortly before the disk accepts verbs.
    eventually("what it is refused for", || {
        let error = caller.call("disk.activate", json!({"id": "w"})).unwrap_err();
        error.message.contains("exported for writing")
    });
    assert!(!export_stats(&mut caller, "w")[0].read_only);
    assert_eq!(export_stats(&mut caller, "r").len(), 1);
    eventually("the other disk is there", || caller.state("r").is_some());
    caller.disk("disk.unexport", json!({"id": "w"}));
    replace_worker(&mut io);
    let mut caller = io.caller();
    eventually("the disk is free", || caller.call("disk.activate", json!({"id": "w"})).is_ok());
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), ["a.raw"]);
}

#[test]
fn an_upgrade_takes_readers_along_and_waits_for_writers() {
    let mut io = Io::start();
    let mut caller = io.caller();
    caller.disk("disk.attach", inactive(&io, "w", json!({"memory": SIZE})));
    caller.disk("disk.attach", io.spec("r", json!({"memory": SIZE})));
    let mut guest = Guest::start(&io.socket("r"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::write(0, &[6; 512])).unwrap().status, status::OK);
    exported(&mut caller, spec(&io, "r", true));
    exported(&mut caller, spec(&io, "w", false));
    refused(&mut caller, "upgrade", json!({}), "exported for writing");
    let mut before = client(&io.socket("r.nbd"));
    assert_eq!(read(&mut before, 0), [6; 512], "everything goes on as before");
    assert_eq!(read(&mut client(&io.socket("w.nbd")), 0), [0; 512]);
    caller.disk("disk.unexport", json!({"id": "w"}));
    let files = names(&io.folder);

    caller.call("upgrade", json!({})).unwrap();
    assert!(is_closed(&mut before), "connections belong to the worker that took them");
    assert_eq!(read(&mut client(&io.socket("r.nbd")), 0), [6; 512]);
    assert_eq!(guest.run(0, &Request::write(0, &[7; 512])).unwrap().status, status::OK);
    assert_eq!(read(&mut client(&io.socket("r.nbd")), 0), [7; 512]);
    assert_eq!(names(&io.folder), files);
    assert_eq!(export_stats(&mut io.caller(), "r").len(), 1);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
}
