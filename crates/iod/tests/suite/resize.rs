//! Disks that grow while a guest uses them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::common::*;
use image::qcow2::{Backing, CreateOptions, create_file};
use serde_json::{Value, json};
use testkit::process::PROCESS_DEADLINE;
use testkit::raw::config::BlkConfig;
use testkit::raw::wire::{Message, Request as Code, backend_request};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};

const BYTES: u64 = 4 << 20;
const STEP: u64 = 1 << 20;
const STEPS: u64 = 20;

/// Grows a disk in steps under load. The guest is notified of each step and loses nothing.
fn grows(io: &Io, id: &'static str, backend: Value, cache: &str) {
    let mut caller = io.caller();
    let mut spec = io.spec(id, backend);
    (spec["queues"], spec["cache"]) = (json!(2), json!(cache));
    caller.disk("disk.attach", spec);
    let shape = Shape { queues: 2, ..Shape::default() };
    let mut guest = ReconnectingGuest::connect(&io.socket(id), shape).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
    let frontend = guest.frontend().unwrap();
    frontend.send(Message::new(Code::SET_BACKEND_REQ_FD).fd(theirs.as_fd())).unwrap();
    drop(theirs);
    let (go, signals) = std::sync::mpsc::channel();
    let growing = std::thread::spawn(move || {
        for (step, ()) in (1..=STEPS).zip(signals) {
            let size = BYTES + step * STEP;
            let reply = caller.disk("disk.resize", json!({"id": id, "size": size}));
            assert_eq!(reply.geometry.size_bytes, size);
        }
    });
    let work = |guest: &mut ReconnectingGuest| {
        let until = Instant::now() + Duration::from_millis(5);
        assert_eq!(guest.run(until).unwrap(), End::Time);
    };
    for _ in 0..STEPS {
        // Require load between any two steps, even on a busy machine.
        let before = guest.tally().completed;
        while guest.tally().completed == before {
            work(&mut guest);
        }
        go.send(()).unwrap();
    }
    while !growing.is_finished() {
        work(&mut guest);
    }
    growing.join().unwrap();
    let expected = [backend_request::CONFIG_CHANGE, 1, 0].map(u32::to_ne_bytes).concat();
    for step in 1..=STEPS {
        let mut message = [0; 12];
        ours.read_exact(&mut message).unwrap_or_else(|error| panic!("{id}, {step}: {error}"));
        assert_eq!(message[..], expected, "{id}, {step}");
    }
    let config = guest.frontend().unwrap().get_config(BlkConfig::BYTES).unwrap();
    let sectors = BlkConfig::parse(&config).capacity_sectors;
    assert_eq!(sectors, (BYTES + STEPS * STEP) / 512, "{id}");
    guest.finish().unwrap();
}

#[test]
fn a_disk_grows_under_load_and_its_guest_is_told_each_time() {
    let io = Io::start();
    let file = |name| json!({"file": image(&io.folder, name, BYTES)});
    grows(&io, "direct", file("a.raw"), "none");
    grows(&io, "cached", file("b.raw"), "writeback");
    grows(&io, "memory", json!({"memory": BYTES}), "none");
    let (top, base) = (io.folder.path().join("c.qcow2"), image(&io.folder, "c.raw", 2 * BYTES));
    let reference = Backing { file: base.clone().into(), format: Some("raw".into()) };
    let options = CreateOptions { backing: Some(reference), ..CreateOptions::new(BYTES) };
    create_file(&top, &options).unwrap();
    grows(&io, "image", json!({"qcow2": {"file": top, "backing": {"file": base}}}), "none");
}
