//! Descriptors that disks, NICs and their queues use in the serving process. They limit the number
//! of disks.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::*;
use serde_json::json;
use testkit::process::eventually;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

/// Kick, call and error of a queue. `limits` depends on it.
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
    // Descriptors that the very first disk opens for good do not count.
    taken(FEW);
    let ([few, few_kept], [many, many_kept]) = (taken(FEW), taken(MANY));
    assert_eq!(many - few, PER_QUEUE * usize::from(MANY - FEW));
    assert_eq!(many_kept, few_kept, "a keeper holds nothing of queues");
}

/// Descriptors of a NIC without its queues. `limits` depends on it.
const PER_NIC: usize = 40;

#[test]
fn a_nic_holds_no_more_than_is_counted_and_one_that_is_gone_none() {
    let io = Io::start();
    let mut caller = io.caller();
    let worker = caller.stats().pid;
    let count = || std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap().count();
    let keeper = || open_files(&io.process).len();
    let socket = io.socket("n");
    let spec = |pairs: u16| {
        let mac = "02:00:00:00:00:01";
        json!({"id": "n", "socket": socket, "network": "l", "mac": mac, "queues": pairs})
    };
    // Descriptors of the switch, which the very first NIC opens for good, do not count.
    caller.call("nic.attach", spec(1)).unwrap();
    caller.call("nic.detach", json!({"id": "n"})).unwrap();
    let mut taken = |pairs: u16| {
        let (before, kept) = (count(), keeper());
        caller.call("nic.attach", spec(pairs)).unwrap();
        let setup = Setup { queues: 2 * pairs, ..Setup::default() };
        let mut guest = Guest::start(&socket, &setup).unwrap();
        guest.frontend.get_config(24).unwrap();
        let taken = count() - before;
        drop(guest);
        caller.call("nic.detach", json!({"id": "n"})).unwrap();
        eventually("all are closed", || count() <= before && keeper() <= kept);
        taken
    };
    for pairs in [1, 9] {
        let (taken, most) = (taken(pairs), PER_NIC + 2 * PER_QUEUE * usize::from(pairs));
        assert!(taken <= most, "{taken} for {pairs} pairs");
    }
}
