//! Disks without a socket: attached for NBD exports, and for no guest.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::actor::play;
use crate::common::nbd::{client, read, write};
use crate::common::*;
use crate::exports::layers;
use crate::nbd_clients::{SIZE, export, sparse, tool};
use model::report::{DiskState, DiskStats};
use model::rpc::code;
use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

/// Verbs that only a disk of a guest has.
const OF_GUESTS: [&str; 4] = ["disk.activate", "disk.pause", "disk.resume", "disk.resize"];

fn attach(io: &Io, id: &str, backend: Value) {
    let spec = json!({"id": id, "backend": backend, "cache": "writeback"});
    assert_eq!(io.caller().disk("disk.attach", spec).state, DiskState::Attached);
}

fn stats(io: &Io, id: &str) -> DiskStats {
    io.caller().stats().disks.into_iter().find(|disk| disk.id == id).unwrap()
}

fn compare(one: &str, other: &str) {
    tool(&["qemu-img", "compare", "-U", "-f", "raw", "-F", "raw", one, other]);
}

fn replace_worker(io: &mut Io) {
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
}

#[test]
fn a_disk_is_restored_without_a_socket_and_then_served_with_one() {
    let mut io = Io::start();
    let source = sparse(&io, "source.raw");
    for backend in [json!({"file": image(&io.folder, "a.raw", SIZE)}), layers(&io, SIZE)] {
        let before = names(&io.folder);
        attach(&io, "d", backend.clone());
        assert_eq!(names(&io.folder), before, "no socket");

        let uri = export(&io, "d", false);
        tool(&["nbdcopy", "--connections=4", "--flush", &source, &uri]);
        tool(&["qemu-io", "-f", "raw", &uri, "-c", "write -P 7 15M 64k", "-c", "flush"]);
        tool(&["qemu-io", "-f", "raw", &source, "-c", "write -P 7 15M 64k"]);
        // The export has the lock as a guest would.
        let mut twin = io.spec("twin", backend.clone());
        twin["cache"] = json!("writeback");
        let error = io.caller().call("disk.attach", twin.clone()).unwrap_err();
        assert!(error.message.contains("in use"), "{error}");
        let error = io.caller().call("upgrade", json!({})).unwrap_err();
        assert!(error.message.contains("exported for writing"), "{error}");
        io.caller().disk("disk.unexport", json!({"id": "d"}));

        let uri = export(&io, "d", true);
        compare(&uri, &source);
        replace_worker(&mut io);
        compare(&uri, &source);
        eventually("it is restored", || io.caller().state("d") == Some(DiskState::Attached));
        io.caller().call("upgrade", json!({})).unwrap();
        compare(&uri, &source);
        let found = stats(&io, "d");
        assert_eq!((found.state, found.socket, found.locked), (DiskState::Attached, None, false));
        assert_eq!(found.exports.len(), 1);
        for method in OF_GUESTS {
            let error = io.caller().call(method, json!({"id": "d"})).unwrap_err();
            assert_eq!(error.code, code::WRONG_STATE);
            let remedy = "has no socket, so no guest uses it, and it cannot be";
            assert!(error.message.contains(remedy), "{error}");
            assert!(error.message.contains("attach it with a socket"), "{error}");
        }
        io.caller().disk("disk.deactivate", json!({"id": "d"}));
        assert_eq!(io.caller().state("d"), Some(DiskState::Attached));
        // Layers are read with the lock. Without the lock, a guest may use the image.
        let attached = io.caller().call("disk.attach", twin.clone());
        assert_eq!(attached.is_err(), backend["file"].is_null(), "{attached:?}");
        if attached.is_err() {
            io.caller().disk("disk.unexport", json!({"id": "d"}));
            io.caller().disk("disk.attach", twin);
        }
        let write = json!({"id": "d", "socket": io.socket("w.nbd"), "read_only": false});
        let error = io.caller().call("disk.export", write).unwrap_err();
        assert!(error.message.contains("in use"), "{error}");
        io.caller().call("disk.detach", json!({"id": "twin"})).unwrap();
        io.caller().call("disk.detach", json!({"id": "d"})).unwrap();
        assert_eq!(names(&io.folder), before);

        let mut spec = io.spec("d", backend);
        spec["cache"] = json!("writeback");
        io.caller().disk("disk.attach", spec);
        let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
        let expected = std::fs::read(&source).unwrap();
        for at in (0..SIZE).step_by(1 << 20) {
            let done = guest.run(0, &Request::read(at / 512, 1 << 16)).unwrap();
            assert_eq!(done.status, status::OK);
            assert!(done.data == expected[at as usize..][..1 << 16], "{at}");
        }
        drop(guest);
        io.caller().call("disk.detach", json!({"id": "d"})).unwrap();
    }
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn rights_of_a_socket_that_is_not_there_are_refused() {
    let io = Io::start();
    let mut caller = io.caller();
    for (name, value) in [("socket_mode", json!(0o660)), ("socket_group", json!("0"))] {
        let mut spec = json!({"id": "d", "backend": {"memory": SIZE}});
        spec[name] = value;
        let error = caller.call("disk.attach", spec).unwrap_err();
        assert_eq!(error.code, code::INVALID_PARAMS);
        assert!(error.message.contains(name) && error.message.contains("no socket"), "{error}");
    }
    assert!(caller.stats().disks.is_empty());
}

#[test]
fn a_writable_export_outlives_its_worker_and_its_keeper() {
    let mut io = Io::lasting(&[]);
    let path = image(&io.folder, "a.raw", SIZE);
    attach(&io, "f", json!({"file": path}));
    attach(&io, "m", json!({"memory": SIZE}));
    for id in ["f", "m"] {
        export(&io, id, false);
        write(&mut client(&io.socket(&format!("{id}.nbd"))), 512, 5);
    }
    replace_worker(&mut io);
    for id in ["f", "m"] {
        let mut again = client(&io.socket(&format!("{id}.nbd")));
        assert_eq!(read(&mut again, 512), [5; 512]);
        write(&mut again, 1024, 6);
    }
    eventually("verbs are accepted", || stats(&io, "m").exports.len() == 1);
    io.process.kill().unwrap();
    let control = io.socket("control");
    let mut keeper = ready(IO, &["--control", control.to_str().unwrap(), "--die-with-parent"]);
    let worker = io.caller().stats().pid;
    let pid = rustix::process::Pid::from_raw(worker.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    keeper.next_worker(Some(worker)).unwrap();
    for id in ["f", "m"] {
        let mut again = client(&io.socket(&format!("{id}.nbd")));
        assert_eq!([512, 1024].map(|at| read(&mut again, at)[0]), [5, 6]);
    }
    let mut twin = io.spec("twin", json!({"file": path}));
    twin["cache"] = json!("writeback");
    let error = io.caller().call("disk.attach", twin).unwrap_err();
    assert!(error.message.contains("in use"), "{error}");
    assert!(keeper.terminate().unwrap().success(), "{}", keeper.stderr());
    assert_eq!(names(&io.folder), ["a.raw"]);
}

#[test]
fn its_backend_is_replaced_as_that_of_an_inactive_disk() {
    let mut io = Io::start();
    let source = sparse(&io, "source.raw");
    attach(&io, "d", json!({"file": source}));
    let uri = export(&io, "d", true);
    let top = io.socket("top.qcow2");
    let disks = json!({"disks": [{"id": "d", "file": top}]});
    io.caller().call("disk.snapshot", disks).unwrap();
    compare(&uri, &source);
    replace_worker(&mut io);
    compare(&uri, &source);
    let layers = json!({"qcow2": {"file": top, "backing": {"file": source}}});
    assert_eq!(serde_json::to_value(stats(&io, "d").backend).unwrap(), layers);
    let copy = image(&io.folder, "copy.raw", SIZE);
    std::fs::copy(&source, &copy).unwrap();
    let change = json!({"id": "d", "expect": layers, "backend": {"file": copy}});
    eventually("it is replaced", || io.caller().call("disk.replace", change.clone()).is_ok());
    compare(&uri, &source);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), ["copy.raw", "source.raw", "top.qcow2"]);
}

/// Returns whether the only disk is refused for its missing image, and no longer being restored.
fn is_refused(io: &Io) -> bool {
    let reason = io.caller().stats().disks.into_iter().find_map(|disk| disk.refused);
    reason.is_some_and(|reason| reason.contains("No such file"))
}

#[test]
fn one_that_is_refused_comes_back_as_it_was() {
    let mut io = Io::start();
    let path = sparse(&io, "a.raw");
    attach(&io, "d", json!({"file": path}));
    let uri = export(&io, "d", true);
    let away = format!("{path}.away");
    std::fs::rename(&path, &away).unwrap();
    replace_worker(&mut io);
    eventually("it is refused", || is_refused(&io));
    assert_eq!(stats(&io, "d").socket, None);
    std::fs::rename(&away, &path).unwrap();
    assert_eq!(io.caller().disk("disk.activate", json!({"id": "d"})).state, DiskState::Attached);
    compare(&uri, &path);
    // Without its image, it can be detached.
    std::fs::rename(&path, &away).unwrap();
    replace_worker(&mut io);
    eventually("it is refused", || is_refused(&io));
    io.caller().call("disk.detach", json!({"id": "d"})).unwrap();
    assert_eq!(names(&io.folder), ["a.raw.away", "control", "control.lock"]);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_worker_of_a_former_version_does_not_get_it_and_everything_goes_on() {
    let mut io = Io::start();
    attach(&io, "d", json!({"memory": SIZE}));
    io.caller().disk("disk.attach", io.spec("g", json!({"memory": SIZE})));
    let mut guest = Guest::start(&io.socket("g"), &Setup::default()).unwrap();
    export(&io, "d", true);
    let mut reader = client(&io.socket("d.nbd"));
    let older = play(&io, "'refuses'");
    let error = io.caller().call("upgrade", json!({"binary": older})).unwrap_err().message;
    assert!(error.contains("disk \"d\" cannot be handed over: it has no socket"), "{error}");
    assert_eq!(read(&mut reader, 0), [0; 512], "its client is not disconnected");
    assert_eq!(guest.run(0, &Request::write(0, &[6; 512])).unwrap().status, status::OK);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}
