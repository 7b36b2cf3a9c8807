//! Front-ends that take memory, descriptors and mappings from all others of their process.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use serde_json::json;
use testkit::raw::request::{Request, status};
use testkit::raw::{GreedyFrontend, Guest, Setup};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};

const TIB: u64 = 1 << 40;

/// Connects greedy front-ends to the first `count` disks.
fn connect(io: &Io, count: usize, bytes: u64, most: u64) -> Vec<GreedyFrontend> {
    let socket = |number| io.socket(&format!("g{number}"));
    (0..count)
        .map(|number| GreedyFrontend::connect(&socket(number), bytes, most).unwrap())
        .collect()
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
    let taken = beside_a_neighbour(&io, || connect(&io, 8, TIB / 2, 32));
    let sizes: Vec<_> = taken.iter().map(|one| one.regions * TIB / 2).collect();
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
    let taken = beside_a_neighbour(&io, || connect(&io, 8, 4096, 509));
    let regions: Vec<_> = taken.iter().map(|one| one.regions).collect();
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
    let taken = beside_a_neighbour(&io, || connect(&io, 40, 4096, 509));
    let regions: Vec<_> = taken.iter().map(|one| one.regions).collect();
    assert!(regions.iter().all(|regions| *regions >= 100), "each gets a part: {regions:?}");
    assert!(regions.iter().sum::<u64>() <= 14336, "{regions:?}");
}
