//! Disks that make an upgrade fail before it quiesces anything.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use crate::common::*;
use model::report::Stage;
use serde_json::json;
use testkit::process::eventually;
use testkit::raw::guest::WaitEvent;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};
use testkit::storage::Hanging;

/// Time after which storage counts as hung.
const LONG: Duration = Duration::from_millis(1500);

#[test]
fn a_request_that_hangs_is_found_behind_an_older_one_that_waits_elsewhere() {
    let hanging = Hanging::new().unwrap();
    let device = hanging.device("a", 1 << 20).unwrap();
    let io = Io::start();
    let mut caller = io.caller();
    let mut spec = io.spec("d1", json!({"file": device}));
    spec["cache"] = json!("writeback");
    spec["queues"] = json!(2);
    spec["stop_deadline_ms"] = json!(400);
    // This cap lets one of the writes below pass in 16 s.
    spec["caps"] = json!({"bytes_per_second": 4096});
    caller.disk("disk.attach", spec);
    let setup = Setup { queues: 2, ..Setup::default() };
    let mut guest = Guest::start(&io.socket("d1"), &setup).unwrap();
    hanging.hang().unwrap();
    // This write ends in the page cache. The next one waits for the cap, and is the oldest request
    // from now on.
    assert_eq!(guest.run(0, &Request::write(0, &[1; 65536])).unwrap().status, status::OK);
    guest.submit(0, &Request::write(128, &[2; 4096])).unwrap();
    guest.kick(0).unwrap();
    eventually("it waits", || {
        let oldest = caller.stats().disks.swap_remove(0).oldest;
        oldest.is_some_and(|oldest| oldest.stage == Stage::Cap)
    });
    // A flush is never capped.
    guest.submit(1, &Request::flush()).unwrap();
    guest.kick(1).unwrap();
    assert_eq!(guest.wait(1, LONG).unwrap(), WaitEvent::Silent);
    // The upgrade is refused at once, even before it checks whether the program exists.
    let upgrade = json!({"binary": io.folder.path().join("none")});
    let error = caller.call("upgrade", upgrade.clone()).unwrap_err();
    assert!(error.message.contains("has not ended the requests in flight"), "{error}");
    hanging.answer().unwrap();
    assert!(matches!(guest.wait(1, LONG * 10).unwrap(), WaitEvent::Used(_)));
    // The write that waited for the cap may just be in flight.
    eventually("nothing is in flight any more", || {
        let error = caller.call("upgrade", upgrade.clone()).unwrap_err();
        !error.message.contains("in flight")
    });
}
