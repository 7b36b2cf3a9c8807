//! Guest memory on a file system that has no room for it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{self, File};
use std::path::Path;

use crate::common::*;
use serde_json::json;
use testkit::in_namespace::in_little_room;
use testkit::process::eventually;
use testkit::raw::frontend::Frontend;
use testkit::raw::memory::SharedMemory;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

const NAME: &str = concat!(module_path!(), "::memory_without_room_is_an_error_for_its_guest_alone");
const BYTES: u32 = 2 << 20;
const NO_ROOM: &str = "the host has no room for it";

/// The memory's file has its full length, so no check of lengths notices it. The first access to a
/// page without room is SIGBUS for a program, and EFAULT for the kernel.
#[test]
fn memory_without_room_is_an_error_for_its_guest_alone() {
    in_little_room(NAME, 1, inside).unwrap();
}

fn inside(room: &Path) {
    let mut io = Io::start_with(&["--reactors", "1"]);
    let mut caller = io.caller();
    let pid = caller.stats().pid;
    let image = |name| {
        let path = io.socket(name);
        fs::write(&path, vec![7; BYTES as usize]).unwrap();
        json!({"file": path})
    };
    caller.disk("disk.attach", io.spec("good", json!({"memory": BYTES})));
    let mut good = Guest::start(&io.socket("good"), &Setup::default()).unwrap();
    let read = Request::read(0, 512);
    let disks = [
        ("memory", json!({"memory": BYTES}), "none"),
        ("direct", image("direct.raw"), "none"),
        ("cached", image("cached.raw"), "writeback"),
    ];
    for (id, backend, cache) in disks {
        let mut spec = io.spec(id, backend);
        spec["cache"] = json!(cache);
        caller.disk("disk.attach", spec);
        let file = File::create_new(room.join(id)).unwrap();
        let memory = SharedMemory::in_file(file, 8 << 20).unwrap();
        let frontend = Frontend::connect(&io.socket(id)).unwrap();
        let mut bad = Guest::start_with(frontend, memory, &Setup::default()).unwrap();
        assert_eq!(bad.run(0, &read).unwrap().status, status::OK, "{id}");
        let pending = bad.submit(0, &Request::read(0, BYTES)).unwrap();
        bad.kick(0).unwrap();
        if id == "memory" {
            // The process itself finds the hole, and reads zeroes from then on.
            bad.frontend.connection.wait_closed().unwrap();
        } else {
            // The kernel finds it.
            assert_eq!(bad.finish(0, &pending).unwrap().status, status::IOERR, "{id}");
        }
        eventually("the log says why", || {
            io.process.stderr().lines().any(|line| line.contains(id) && line.contains(NO_ROOM))
        });
        for _ in 0..10 {
            assert_eq!(good.run(0, &read).unwrap().status, status::OK, "{id}");
        }
        drop(bad);
        fs::remove_file(room.join(id)).unwrap();
        let mut next = Guest::start(&io.socket(id), &Setup::default()).unwrap();
        assert_eq!(next.run(0, &read).unwrap().status, status::OK, "{id}");
    }
    let stats = caller.stats();
    assert_eq!(stats.pid, pid, "the worker died");
    for disk in &stats.disks {
        assert_eq!((disk.broken_rings_total, &disk.storage_errors), (0, &None), "{}", disk.id);
    }
}
