//! Snapshots and replaced backends while guests run.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::sectors::{connect, flush, read, write};
use crate::common::*;
use serde_json::{Value, json};
use testkit::raw::Guest;

const MIB: u64 = 1 << 20;

fn qemu_img(args: &[&str]) -> String {
    let output = Command::new("qemu-img").args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {text}");
    String::from_utf8_lossy(&output.stdout).into()
}

/// Returns the content of an image with all below it, as QEMU reads it.
fn content(io: &Io, path: &Path) -> Vec<u8> {
    let raw = io.folder.path().join("content");
    let (path, raw) = (path.to_str().unwrap(), raw.to_str().unwrap());
    qemu_img(&["convert", "-U", "-f", "qcow2", "-O", "raw", path, raw]);
    std::fs::read(raw).unwrap()
}

fn backend_of(caller: &mut Caller) -> Value {
    serde_json::to_value(&caller.stats().disks.remove(0).backend).unwrap()
}

#[test]
fn a_guest_goes_on_through_snapshots_a_kill_and_an_upgrade() {
    let mut io = Io::start();
    let base = image(&io.folder, "base.raw", 3 * MIB);
    let mut caller = io.caller();
    let mut spec = io.spec("d", json!({"file": base}));
    spec["cache"] = json!("writeback");
    caller.disk("disk.attach", spec);
    let mut guest = connect(&io.socket("d"));
    let path = |number: u64| io.folder.path().join(format!("{number}.qcow2"));
    for number in 1..=5 {
        write(&mut guest, number, number as u8);
        write(&mut guest, 100, number as u8);
        let disks = json!({"disks": [{"id": "d", "file": path(number)}]});
        let reply = caller.call("disk.snapshot", disks).unwrap();
        assert!(reply["pause_us"].as_u64().unwrap() > 0, "{reply}");
        // The session goes on.
        for sector in 1..=number {
            assert_eq!(read(&mut guest, sector), sector as u8);
        }
        assert_eq!(read(&mut guest, 100), number as u8);
    }
    write(&mut guest, 6, 6);
    // What is below the top does not change, and others may read it.
    let mut found = [0; 512];
    let file = std::fs::File::open(&base).unwrap();
    file.read_exact_at(&mut found, 2 * 512).unwrap();
    assert_eq!(found, [0; 512]);
    qemu_img(&["check", "-f", "qcow2", path(4).to_str().unwrap()]);
    caller.call("upgrade", Value::Null).unwrap();
    assert_eq!([1, 6, 100].map(|sector| read(&mut guest, sector)), [1, 6, 5]);
    write(&mut guest, 7, 7);
    drop((guest, caller));
    let worker = io.caller().stats().pid;
    let pid = rustix::process::Pid::from_raw(worker.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    io.process.next_worker(Some(worker)).unwrap();
    let mut guest = connect(&io.socket("d"));
    assert_eq!([1, 5, 6, 7, 100].map(|sector| read(&mut guest, sector)), [1, 5, 6, 7, 5]);
    flush(&mut guest);
    drop(guest);
    let mut caller = io.caller();
    let mut tree = &backend_of(&mut caller);
    for number in (1..=5).rev() {
        assert_eq!(tree["qcow2"]["file"], json!(path(number)));
        tree = &tree["qcow2"]["backing"];
    }
    assert_eq!(*tree, json!({"file": base}));
    caller.call("disk.detach", json!({"id": "d"})).unwrap();
    let whole = content(&io, &path(5));
    let written: Vec<_> = (0..whole.len() / 512).filter(|at| whole[at * 512] != 0).collect();
    assert_eq!(written, [1, 2, 3, 4, 5, 6, 7, 100]);
    assert_eq!(content(&io, &path(2))[100 * 512], 3, "what the third snapshot froze");
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn snapshots_of_several_disks_are_all_made_or_none() {
    let mut io = Io::start();
    let mut caller = io.caller();
    let mut guests = Vec::new();
    for id in ["a", "b"] {
        let path = image(&io.folder, &format!("{id}.raw"), MIB);
        caller.disk("disk.attach", io.spec(id, json!({"file": path})));
        guests.push(connect(&io.socket(id)));
    }
    let path = |id: &str| io.folder.path().join(format!("{id}.qcow2"));
    let disks = || ["a", "b"].map(|id| json!({"id": id, "file": path(id)}));
    let params = json!({"disks": disks()});
    std::fs::write(path("b"), "mine").unwrap();
    let before = names(&io.folder);
    for (params, reason) in [
        (params.clone(), "b.qcow2: "),
        (
            json!({"disks": [{"id": "a", "file": path("a")}, {"id": "c", "file": path("c")}]}),
            "\"c\"",
        ),
        (json!({"disks": [disks()[0], disks()[0]]}), "there twice"),
        (json!({"disks": []}), "0 disks are not in 1 to 255"),
    ] {
        let error = caller.call("disk.snapshot", params).unwrap_err();
        assert!(error.message.contains(reason), "{error}");
        assert_eq!(names(&io.folder), before);
    }
    for (guest, value) in guests.iter_mut().zip(1..) {
        write(guest, 3, value);
    }
    std::fs::remove_file(path("b")).unwrap();
    let reply = caller.call("disk.snapshot", params).unwrap();
    assert_eq!(reply["disks"].as_array().unwrap().len(), 2);
    for (guest, value) in guests.iter_mut().zip(1..) {
        assert_eq!(read(guest, 3), value);
        write(guest, 3, 9);
    }
    let base = io.folder.path().join("b.raw");
    let mut found = [0; 1];
    std::fs::File::open(&base).unwrap().read_exact_at(&mut found, 3 * 512).unwrap();
    assert_eq!(found, [2]);
    let present = json!({"qcow2": {"file": path("b"), "backing": {"file": base}}});
    let back = json!({"id": "b", "backend": {"file": base}, "expect": present});
    let error = caller.call("disk.replace", back).unwrap_err();
    assert!(error.message.contains("open for reading only"), "{error}");
    assert_eq!(read(&mut guests[1], 3), 9);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn a_backend_is_replaced_by_one_with_the_same_content_only() {
    let mut io = Io::start();
    let path = image(&io.folder, "a.raw", MIB);
    let (plain, other) = (json!({"file": path}), image(&io.folder, "b.raw", 2 * MIB));
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", plain.clone()));
    let mut guest = connect(&io.socket("d"));
    write(&mut guest, 5, 5);
    let window = json!({"raw": {"child": plain, "offset": 0, "size": MIB}});
    let missing = json!({"file": io.folder.path().join("missing")});
    for (backend, expect, reason) in [
        (&window, &window, "the backend is"),
        (&json!({"file": other}), &plain, "2097152 bytes in blocks of 512"),
        (&missing, &plain, "No such file"),
        (&json!({"memory": 100}), &plain, "not a multiple"),
    ] {
        let params = json!({"id": "d", "backend": backend, "expect": expect});
        let error = caller.call("disk.replace", params).unwrap_err();
        assert!(error.message.contains(reason), "{error}");
        assert_eq!(backend_of(&mut caller), plain);
        assert_eq!(read(&mut guest, 5), 5);
    }
    let params = json!({"id": "d", "backend": window, "expect": plain});
    caller.call("disk.replace", params).unwrap();
    assert_eq!(backend_of(&mut caller), window);
    assert_eq!(read(&mut guest, 5), 5);
    write(&mut guest, 6, 6);
    let mut found = [0; 1];
    let file = std::fs::File::open(&path).unwrap();
    file.read_exact_at(&mut found, 6 * 512).unwrap();
    assert_eq!(found, [6]);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

/// Writes and reads back until told to stop. Returns the last value of each sector.
fn load(mut guest: Guest, stop: &AtomicBool) -> (Guest, BTreeMap<u64, u8>) {
    let (mut written, mut number) = (BTreeMap::new(), 0_u64);
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let (sector, value) = (number * 7919 % 6000, number as u8);
        write(&mut guest, sector, value);
        written.insert(sector, value);
        let other = number * 31 % 6000;
        assert_eq!(read(&mut guest, other), written.get(&other).copied().unwrap_or(0));
        if number % 50 == 0 {
            flush(&mut guest);
        }
    }
    (guest, written)
}

#[test]
fn a_guest_under_load_sees_pauses_only() {
    let mut io = Io::start();
    let base = image(&io.folder, "base.raw", 3 * MIB);
    let mut caller = io.caller();
    caller.disk("disk.attach", io.spec("d", json!({"file": base})));
    let guest = connect(&io.socket("d"));
    let stop = AtomicBool::new(false);
    let mut pauses = Vec::new();
    let (mut guest, written) = std::thread::scope(|scope| {
        let guest = scope.spawn(|| load(guest, &stop));
        let ended = Ended(&stop);
        for number in 0..testkit::rounds(20, 55) {
            let file = io.folder.path().join(format!("{number}.qcow2"));
            let reply = caller.call("disk.snapshot", json!({"disks": [{"id": "d", "file": file}]}));
            pauses.push(reply.unwrap()["pause_us"].as_u64().unwrap());
        }
        drop(ended);
        guest.join().unwrap()
    });
    pauses.sort_unstable();
    let count = pauses.len();
    let [median, most] = [pauses[count / 2], pauses[count - 1]];
    println!(
        "{count} snapshots: pause in us: median {median}, longest {most}; {} writes",
        written.len()
    );
    for (sector, value) in written {
        assert_eq!(read(&mut guest, sector), value);
    }
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}
