//! Front-ends that take memory, descriptors and mappings from all others of their process.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde_json::json;
use testkit::raw::request::{Request, status};
use testkit::raw::{Frontend, Guest, Region, Setup};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};

const TIB: u64 = 1 << 40;

/// Returns a file of sparse memory.
fn sparse(bytes: u64) -> OwnedFd {
    let file = memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

/// Connects a front-end that shares as many regions of this size as it may. Returns it with their
/// number.
fn greedy(socket: &Path, file: &OwnedFd, bytes: u64, most: u64) -> (Frontend, u64) {
    let mut frontend = Frontend::connect(socket).unwrap();
    frontend.negotiate(Setup::default().features, Setup::default().protocol).unwrap();
    let region = |number: u64| {
        let start = number * bytes;
        Region { guest_addr: start, size: bytes, user_addr: start, mmap_offset: 0 }
    };
    let accepted = |number: &u64| frontend.add_mem_region(&region(*number), file.as_fd()).is_ok();
    let count = (0..most).take_while(accepted).count();
    (frontend, count as u64)
}

/// Attaches `count` memory disks for greedy front-ends, and one for a neighbour.
fn attach(io: &Io, count: usize) {
    let mut caller = io.caller();
    let names = (0..count).map(|number| format!("g{number}")).chain(["neighbour".into()]);
    for name in names {
        caller.disk("disk.attach", io.spec(&name, json!({"memory": 1 << 20})));
    }
}

/// Lets `attack` run beside a neighbour under load, none of whose requests may be lost. Afterwards
/// another disk can be attached, exported and used, and no worker has died.
fn beside_a_neighbour<R>(io: &Io, attack: impl FnOnce() -> R) -> R {
    let shape = Shape { depth: 8, ..Shape::default() };
    let mut neighbour = ReconnectingGuest::connect(&io.socket("neighbour"), shape).unwrap();
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let ended = Ended(&stop);
        let loaded = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let until = Instant::now() + Duration::from_millis(20);
                assert_eq!(neighbour.run(until).unwrap(), End::Time);
            }
            neighbour.finish().unwrap();
        });
        let result = attack();
        let mut caller = io.caller();
        caller.disk("disk.attach", io.spec("late", json!({"memory": 1 << 20})));
        let socket = io.socket("late.nbd");
        caller
            .call("disk.export", json!({"id": "late", "socket": socket, "read_only": true}))
            .unwrap();
        let mut guest = Guest::start(&io.socket("late"), &Setup::default()).unwrap();
        let done = guest.run(0, &Request::write(0, &[7; 4096])).unwrap();
        assert_eq!(done.status, status::OK);
        drop(ended);
        loaded.join().unwrap();
        result
    });
    assert_eq!(io.caller().stats().keeper.unwrap().restarts, 0);
    result
}

#[test]
fn sparse_memory_does_not_exhaust_the_addresses() {
    let mut io = Io::start();
    attach(&io, 8);
    let file = sparse(16 * TIB);
    let taken: Vec<_> = beside_a_neighbour(&io, || {
        let greedy = |number| greedy(&io.socket(&format!("g{number}")), &file, TIB / 2, 32);
        (0..8).map(greedy).collect()
    });
    let sizes: Vec<_> = taken.iter().map(|(_, count)| count * TIB / 2).collect();
    assert!(sizes.iter().all(|size| *size >= TIB / 2), "each gets a part: {sizes:?}");
    assert!(sizes.iter().sum::<u64>() <= 48 * TIB, "{sizes:?}");
    drop(taken);
    assert!(io.process.terminate().unwrap().success());
    let log = io.process.stderr();
    assert!(log.contains("all front-ends of this process share"), "{log}");
}

/// `ulimit -n 4096`
#[test]
fn many_regions_do_not_exhaust_the_descriptors() {
    let mut io = Io::through(&["prlimit", "--nofile=4096"], &[]);
    attach(&io, 8);
    let file = sparse(4096);
    let taken: Vec<_> = beside_a_neighbour(&io, || {
        let greedy = |number| greedy(&io.socket(&format!("g{number}")), &file, 4096, 509);
        (0..8).map(greedy).collect()
    });
    let regions: Vec<_> = taken.iter().map(|(_, count)| *count).collect();
    assert!(regions.iter().all(|regions| *regions >= 60), "each gets a part: {regions:?}");
    assert!(regions.iter().sum::<u64>() < 2048, "{regions:?}");
    drop(taken);
    assert!(io.process.terminate().unwrap().success());
}

/// The guard against truncated memory has a slot for each mapping.
#[test]
fn many_regions_do_not_exhaust_the_guards() {
    let io = Io::start();
    attach(&io, 40);
    let file = sparse(4096);
    let taken: Vec<_> = beside_a_neighbour(&io, || {
        let greedy = |number| greedy(&io.socket(&format!("g{number}")), &file, 4096, 509);
        (0..40).map(greedy).collect()
    });
    let regions: Vec<_> = taken.iter().map(|(_, count)| *count).collect();
    assert!(regions.iter().all(|regions| *regions >= 100), "each gets a part: {regions:?}");
    assert!(regions.iter().sum::<u64>() <= 14336, "{regions:?}");
}
