//! Disks on a golden image: kills, upgrades, a source that goes, and images above.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::common::sectors::{connect, read, write};
use crate::common::*;
use image::qcow2::{CreateOptions, create_file};
use rustix::process::Signal;
use serde_json::{Value, json};

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
