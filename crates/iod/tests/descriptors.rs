//! Descriptors that queues hold in the process that serves them: what decides how many disks fit.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::*;
use serde_json::json;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

/// Kick, call and error of a queue. `limits` counts on it.
const PER_QUEUE: usize = 3;
const FEW: u16 = 1;
const MANY: u16 = 17;

#[test]
fn a_queue_holds_so_many_and_a_disk_that_is_gone_none() {
    let io = Io::start();
    let mut caller = io.caller();
    let worker = caller.stats().pid;
    let count = || std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap().count();
    let keeper = || open_files(&io.process).len();
    let mut taken = |queues: u16| {
        let (before, kept) = (count(), keeper());
        let mut spec = io.spec("d", json!({"memory": 1 << 20}));
        spec["queues"] = json!(queues);
        caller.disk("disk.attach", spec);
        let setup = Setup { queues, ..Setup::default() };
        let mut guest = Guest::start(&io.socket("d"), &setup).unwrap();
        for queue in 0..queues.into() {
            let done = guest.run(queue, &Request::write(0, &[1; 512])).unwrap();
            assert_eq!(done.status, status::OK);
        }
        let taken = [count() - before, keeper() - kept];
        drop(guest);
        caller.call("disk.detach", json!({"id": "d"})).unwrap();
        eventually("all are closed", || count() <= before && keeper() <= kept);
        taken
    };
    // What the first disk of all has opened for good does not count.
    taken(FEW);
    let ([few, few_kept], [many, many_kept]) = (taken(FEW), taken(MANY));
    assert_eq!(many - few, PER_QUEUE * usize::from(MANY - FEW));
    assert_eq!(many_kept, few_kept, "a keeper holds nothing of queues");
}
