//! Signals to the programs.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::*;
use rustix::process::Signal;
use serde_json::json;
use testkit::process::PROCESS_DEADLINE;
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

/// Signals without effect.
const WITHOUT_EFFECT: [Signal; 6] =
    [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::XFSZ, Signal::PIPE, Signal::TTOU];

#[test]
fn signals_without_a_meaning_have_no_effect() {
    let io = Io::through(&["env", "--ignore-signal=HUP"], &[]);
    io.caller().disk("disk.attach", io.spec("d", json!({"memory": 4096})));
    let worker = io.process.worker().unwrap().unwrap();
    for signal in [&WITHOUT_EFFECT[..], &[Signal::HUP]].concat() {
        io.process.signal(signal).unwrap();
        worker.signal(signal).unwrap();
        assert_eq!(io.caller().stats().pid, worker.id(), "{signal:?}");
    }
    let mut guest = Guest::start(&io.socket("d"), &Setup::default()).unwrap();
    assert_eq!(guest.run(0, &Request::read(0, 512)).unwrap().status, status::OK);
    let folder = folder();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let port = b.to_str().unwrap();
    let blk = blk(&a, &["--memory", "1M"]);
    let net = ready(NET, &["--port", port]);
    for signal in WITHOUT_EFFECT {
        blk.signal(signal).unwrap();
        net.signal(signal).unwrap();
    }
    for mut process in [blk, net] {
        assert!(process.terminate().unwrap().success(), "{}", process.stderr());
    }
}

#[test]
fn a_closed_terminal_ends_the_programs_in_order() {
    // The test itself may run with this signal ignored.
    let terminal = ["env", "--default-signal=HUP"];
    let mut io = Io::through(&terminal, &[]);
    io.caller().disk("disk.attach", io.spec("d", json!({"memory": 4096})));
    io.process.signal(Signal::HUP).unwrap();
    assert!(io.process.wait(PROCESS_DEADLINE).unwrap().success(), "{}", io.process.stderr());
    assert_eq!(names(&io.folder), [""; 0]);
    let folder = folder();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let start = |words: &[&str]| ready(terminal[0], &[&terminal[1..], words].concat());
    let blk = start(&[BLK, "--memory", "1M", "--socket-path", a.to_str().unwrap()]);
    let net = start(&[NET, "--port", b.to_str().unwrap()]);
    for mut process in [blk, net] {
        process.signal(Signal::HUP).unwrap();
        assert!(process.wait(PROCESS_DEADLINE).unwrap().success(), "{}", process.stderr());
    }
    assert_eq!(names(&folder), [""; 0]);
}

/// `prlimit --fsize=1048576 ringway-io`
#[test]
fn a_limit_of_file_sizes_is_an_error_and_ends_nothing() {
    let mut io = Io::through(&["prlimit", "--fsize=1048576"], &[]);
    let mut caller = io.caller();
    let path = image(&io.folder, "a.raw", 4 << 20);
    for (id, cache) in [("direct", "none"), ("cached", "writeback")] {
        let mut spec = io.spec(id, json!({"file": path}));
        spec["cache"] = json!(cache);
        caller.disk("disk.attach", spec);
        let mut guest = Guest::start(&io.socket(id), &Setup::default()).unwrap();
        let mut run = |request: &Request| guest.run(0, request).unwrap().status;
        assert_eq!(run(&Request::write(4096, &[1; 4096])), status::IOERR, "beyond the limit");
        assert_eq!(run(&Request::write(8, &[1; 4096])), status::OK, "below the limit");
        assert_eq!(run(&Request::read(4096, 4096)), status::OK);
        let refused = caller.call("disk.resize", json!({"id": id, "size": 8 << 20})).unwrap_err();
        assert!(refused.message.contains("File too large"), "{}", refused.message);
        caller.call("disk.detach", json!({"id": id})).unwrap();
    }
    let refused = caller.call("disk.attach", io.spec("m", json!({"memory": 4 << 20}))).unwrap_err();
    assert!(refused.message.contains("File too large"), "{}", refused.message);
    assert_eq!(caller.stats().keeper.unwrap().restarts, 0);
    assert!(io.process.terminate().unwrap().success());
}
