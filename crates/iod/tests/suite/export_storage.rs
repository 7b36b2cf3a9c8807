//! Disks with writable exports, on storage that is unavailable or does not answer.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::common::nbd::{client, is_closed, read, request, write};
use crate::common::*;
use model::diagnosis::{Cause, DiskFacts, judge};
use model::report::DiskState;
use model::rpc::code;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::process::eventually;
use testkit::raw::request::Request;
use testkit::raw::{Guest, Setup};
use testkit::storage::Hanging;

const DEADLINE: Duration = Duration::from_millis(400);
/// Upper bound that tells a call from a hang, even on a busy machine.
const SOON: Duration = Duration::from_secs(20);
const BYTES: usize = 1 << 20;

/// Attaches an inactive disk `d` and exports it for writing on `d.nbd`.
fn exported(io: &Io, caller: &mut Caller, path: &Path) {
    let mut spec = io.spec("d", json!({"file": path}));
    spec["activate"] = json!(false);
    spec["stop_deadline_ms"] = json!(DEADLINE.as_millis() as u64);
    caller.disk("disk.attach", spec);
    let export = json!({"id": "d", "socket": io.socket("d.nbd"), "read_only": false});
    caller.call("disk.export", export).unwrap();
}

fn signal(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process.try_into().unwrap()).unwrap(), signal).unwrap();
}

#[test]
fn an_export_whose_image_somebody_has_taken_waits_for_it() {
    let io = Io::start();
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", BYTES as u64);
    exported(&io, &mut caller, Path::new(&path));
    write(&mut client(&io.socket("d.nbd")), 512, 5);
    let files = names(&io.folder);

    // The worker dies, and another process takes the lock before its successor.
    let worker = io.process.worker().unwrap().unwrap();
    signal(io.process.id(), Signal::STOP);
    worker.kill().unwrap();
    let elsewhere = folder();
    let taken = elsewhere.path().join("s");
    let mut thief = blk(&taken, &["--blk-file", &path, "--cache", "writeback"]);
    signal(io.process.id(), Signal::CONT);
    let mut caller = io.caller();
    eventually("it is refused", || {
        let refused = caller.stats().disks.swap_remove(0).refused;
        refused.is_some_and(|why| why.contains("in use"))
    });
    assert_eq!(names(&io.folder), files);
    // A client that connects waits.
    let waits = UnixStream::connect(io.socket("d.nbd")).unwrap();
    caller.call("disk.activate", json!({"id": "d"})).unwrap_err();
    assert_eq!(caller.state("d"), Some(DiskState::Refused));

    assert!(thief.terminate().unwrap().success());
    // The disk is restored with its writable export, which excludes a guest.
    let error = caller.call("disk.activate", json!({"id": "d"})).unwrap_err();
    assert!(error.code == code::WRONG_STATE, "{error}");
    assert!(error.message.contains("exported for writing"), "{error}");
    drop(waits);
    assert_eq!(read(&mut client(&io.socket("d.nbd")), 512), [5; 512]);
    write(&mut client(&io.socket("d.nbd")), 0, 6);
    assert_eq!(caller.state("d"), Some(DiskState::Attached));
    caller.disk("disk.unexport", json!({"id": "d"}));
    caller.disk("disk.activate", json!({"id": "d"}));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().data, [6; 512]);
}

#[test]
fn an_export_whose_image_is_gone_waits_for_it() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", BYTES as u64);
    exported(&io, &mut caller, Path::new(&path));
    let away = io.folder.path().join("away");
    std::fs::rename(&path, &away).unwrap();
    let worker = io.process.worker().unwrap().unwrap();
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
    let mut caller = io.caller();
    eventually("it is refused", || {
        let refused = caller.stats().disks.swap_remove(0).refused;
        refused.is_some_and(|why| why.contains("No such file"))
    });
    std::fs::rename(&away, &path).unwrap();
    let error = caller.call("disk.activate", json!({"id": "d"})).unwrap_err();
    assert!(error.message.contains("exported for writing"), "{error}");
    assert_eq!(read(&mut client(&io.socket("d.nbd")), 512), [0; 512]);
}

#[test]
fn an_export_is_ended_at_the_deadline_and_its_lock_follows() {
    let hanging = Hanging::new().unwrap();
    let path = hanging.image("a", BYTES).unwrap();
    let io = Io::start();
    let mut caller = io.caller();
    exported(&io, &mut caller, &path);
    let mut writer = client(&io.socket("d.nbd"));
    write(&mut writer, 0, 1);
    hanging.hang().unwrap();
    writer.write_all(&[request(1, 512, 512), vec![2; 512]].concat()).unwrap();
    // This read was answered before the write, so the write is with the storage.
    assert_eq!(read(&mut writer, 0), [1; 512]);
    let (ended, took) = timed(|| caller.call("disk.unexport", json!({"id": "d"})));
    let error = ended.unwrap_err();
    assert!(error.message.contains("mend the storage"), "{error}");
    assert!(took >= DEADLINE && took < SOON, "{took:?}");
    assert!(is_closed(&mut writer));
    assert!(!io.socket("d.nbd").exists());
    let shown = caller.stats().disks.swap_remove(0);
    assert_eq!((shown.state, shown.exports.len()), (DiskState::Stuck, 0));
    assert_eq!(shown.stuck.unwrap().verb, "disk.unexport");
    // No writer is admitted beside the abandoned write.
    for (verb, params) in [
        ("disk.activate", json!({"id": "d"})),
        ("disk.export", json!({"id": "d", "socket": io.socket("e"), "read_only": false})),
    ] {
        let (refused, took) = timed(|| caller.call(verb, params));
        assert!(refused.unwrap_err().message.contains("stuck") && took < SOON, "{verb}: {took:?}");
    }
    hanging.answer().unwrap();
    eventually("the storage is back", || caller.stats().disks[0].stuck.is_none());
    caller.disk("disk.activate", json!({"id": "d"}));
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    // The kernel has completed the abandoned write.
    assert_eq!(guest.run(0, &Request::read(1, 512)).unwrap().data, [2; 512]);
}

/// The guest is not served, but a client's write waits for space on the storage.
#[test]
fn full_storage_of_an_inactive_disk_is_the_cause() {
    let storage = Hanging::new().unwrap();
    let path = storage.place().join("sparse");
    std::fs::File::create(&path).unwrap().set_len(BYTES as u64).unwrap();
    let filler = storage.place().join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    let io = Io::start();
    let mut caller = io.caller();
    exported(&io, &mut caller, &path);
    let mut stream = client(&io.socket("d.nbd"));
    stream.write_all(&request(1, 0, 4096)).unwrap();
    stream.write_all(&[7; 4096]).unwrap();
    eventually("the write waits", || caller.stats().disks[0].waiting == 1);
    let stats = caller.stats();
    let disk = &stats.disks[0];
    assert_eq!(disk.state, DiskState::Attached);
    let verdict = judge(&DiskFacts::new(&stats, &stats, disk));
    assert_eq!(verdict.cause, Cause::Full, "{verdict:?}");
    assert!(verdict.sentence.contains("is not active, and a client of its export"), "{verdict:?}");
    drop(file);
    std::fs::remove_file(filler).unwrap();
    eventually("the write has ended", || caller.stats().disks[0].waiting == 0);
}
