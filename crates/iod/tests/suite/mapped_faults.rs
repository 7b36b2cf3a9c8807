//! qcow2 disks on storage that hangs or fails.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::*;
use image::qcow2::{CreateOptions, create_file};
use model::report::DiskState;
use serde_json::{Value, json};
use testkit::in_namespace::in_little_room;
use testkit::process::eventually;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::storage::Hanging;

/// Size of the disks.
const BYTES: u64 = 32 << 20;
/// Sectors of a cluster of 64 KiB.
const CLUSTER_SECTORS: u64 = 128;

fn create(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    create_file(&path, &CreateOptions::new(BYTES)).unwrap();
    path
}

fn attach(io: &Io, id: &str, backend: Value) -> Guest {
    let mut spec = io.spec(id, backend);
    (spec["cache"], spec["stop_deadline_ms"]) = (json!("writeback"), json!(400));
    io.caller().disk("disk.attach", spec);
    Guest::start(&io.socket(id), &Setup::default()).unwrap()
}

fn write(guest: &mut Guest, cluster: u64, value: u8) -> u8 {
    let request = Request::write(cluster * CLUSTER_SECTORS, &[value; 4096]);
    guest.run(0, &request).unwrap().status
}

fn flush(guest: &mut Guest) -> u8 {
    guest.run(0, &Request::flush()).unwrap().status
}

fn read(guest: &mut Guest, cluster: u64) -> u8 {
    let done = guest.run(0, &Request::read(cluster * CLUSTER_SECTORS, 4096)).unwrap();
    assert_eq!(done.status, status::OK);
    assert!(done.data.iter().all(|byte| *byte == done.data[0]));
    done.data[0]
}

#[test]
fn an_owner_in_a_hung_flush_blocks_no_other_disk_and_no_upgrade() {
    let hanging = Hanging::new().unwrap();
    let (base, top) = (create(hanging.place(), "base"), create(hanging.place(), "top"));
    let mut io = Io::start_with(&["--reactors", "1"]);
    let good = create(io.folder.path(), "good");
    let below = json!({"qcow2": {"file": base}});
    let mut stuck = attach(&io, "d1", json!({"qcow2": {"file": top, "backing": below}}));
    let mut well = attach(&io, "d2", json!({"qcow2": {"file": good}}));
    assert_eq!(write(&mut stuck, 1, 1), status::OK);
    hanging.hang().unwrap();
    let pending = stuck.submit(0, &Request::flush()).unwrap();
    stuck.kick(0).unwrap();
    assert_eq!(stuck.wait(0, Duration::from_millis(200)).unwrap(), WaitEvent::Silent);
    for value in 1..20 {
        assert_eq!([write(&mut well, value, 7), flush(&mut well)], [status::OK; 2]);
    }
    let mut caller = io.caller();
    let error = caller.call("upgrade", Value::Null).unwrap_err();
    assert!(error.message.contains("top"), "{error}");
    assert_eq!([write(&mut well, 1, 8), flush(&mut well)], [status::OK; 2]);
    hanging.answer().unwrap();
    assert_eq!(stuck.finish(0, &pending).unwrap().status, status::OK);
    // All layers go on: these parts of their maps are not known yet.
    assert_eq!([read(&mut stuck, 1), read(&mut stuck, 400)], [1, 0]);
    assert_eq!([write(&mut stuck, 2, 2), flush(&mut stuck)], [status::OK; 2]);
    caller.call("upgrade", Value::Null).unwrap();
    assert_eq!([read(&mut stuck, 2), read(&mut well, 1)], [2, 8]);

    // A detach ends at its deadline, too.
    assert_eq!(write(&mut stuck, 3, 3), status::OK);
    hanging.hang().unwrap();
    let mut caller = io.caller();
    let error = caller.call("disk.deactivate", json!({"id": "d1"})).unwrap_err();
    assert!(error.message.contains("mend the storage"), "{error}");
    assert_eq!(caller.state("d1"), Some(DiskState::Stuck));
    assert_eq!([write(&mut well, 2, 9), flush(&mut well)], [status::OK; 2]);
    hanging.answer().unwrap();
    eventually("the flush ends", || caller.state("d1") == Some(DiskState::Attached));
    drop((stuck, well, caller));
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

/// Loop device over a file.
struct Loop(String);

impl Loop {
    fn new(file: &Path) -> Self {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(String::from_utf8(output.stdout).unwrap().trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

const LOST: &str =
    concat!(module_path!(), "::a_failed_flush_of_an_image_stays_failed_also_after_an_upgrade");

#[test]
fn a_failed_flush_of_an_image_stays_failed_also_after_an_upgrade() {
    in_little_room(LOST, 24, |dir| {
        // A device that is larger than what is behind it: its page cache takes writes that it
        // cannot store.
        let image = create(dir, "image");
        std::fs::File::options().write(true).open(&image).unwrap().set_len(16 << 20).unwrap();
        let device = Loop::new(&image);
        let mut io = Io::start();
        let backend = json!({"qcow2": {"file": device.0}});
        let mut guest = attach(&io, "d", backend.clone());
        assert_eq!([write(&mut guest, 1, 1), flush(&mut guest)], [status::OK; 2]);
        let filler = dir.join("filler");
        std::fs::write(&filler, vec![1; 24 << 20]).unwrap_err();
        assert_eq!([write(&mut guest, 2, 2), flush(&mut guest)], [status::OK, status::IOERR]);
        std::fs::remove_file(&filler).unwrap();
        for _ in 0..2 {
            assert_eq!(flush(&mut guest), status::IOERR);
            assert_eq!([1, 2].map(|at| read(&mut guest, at)), [1, 2]);
            io.caller().call("upgrade", Value::Null).unwrap();
        }
        assert_eq!(flush(&mut guest), status::IOERR);
        let error = io.caller().call("disk.detach", json!({"id": "d"})).unwrap_err();
        assert!(error.message.contains("flush"), "{error}");
        drop(guest);
        // Who attaches it anew begins with what is on the device.
        let mut guest = attach(&io, "d", backend);
        assert_eq!(read(&mut guest, 1), 1);
        assert_eq!([write(&mut guest, 2, 3), flush(&mut guest)], [status::OK; 2]);
        drop(guest);
        assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
    })
    .unwrap();
}
