//! Statistics of the NICs of `ringway-net`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::common::*;
use model::diagnosis::{NicCause, NicFacts, judge_nic};
use model::report::{PollReason, PortStats, Stats};
use model::rpc::code;
use serde_json::json;
use tempfile::TempDir;
use testkit::openmetrics::{read, scrape};
use testkit::process::eventually;
use testkit::process::{PROCESS_DEADLINE, Process};
use testkit::raw::nic::PLAIN;
use testkit::raw::{Guest, Setup};

/// Switch with ports `a` and `b`, and a control socket.
struct Switch {
    process: Process,
    folder: TempDir,
}

impl Switch {
    fn start(options: &[&str]) -> Self {
        let folder = folder();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (a, b, control) = (path("a.sock"), path("b.sock"), path("control"));
        let own = ["--port", &a, "--port", &b, "--control", &control];
        let process = ready(NET, &[&own[..], options].concat());
        Self { process, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn caller(&self) -> Caller {
        Caller::connect(&self.path("control"))
    }

    fn guest(&self, socket: &str) -> Guest {
        let setup = Setup { queues: 2, ..Setup::default() };
        Guest::start(&self.path(socket), &setup).unwrap()
    }
}

fn frame(number: u8) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x12, 0x34], &[number; 60]].concat()
}

fn port(stats: &Stats, id: &str) -> PortStats {
    stats.ports.iter().find(|port| port.id == id).unwrap().clone()
}

fn cause(earlier: &Stats, now: &Stats, id: &str) -> NicCause {
    judge_nic(&NicFacts::new(earlier, now, id).unwrap()).cause
}

#[test]
fn callers_see_what_nics_do_and_what_holds_them_back() {
    let mut switch = Switch::start(&["--poll", "off"]);
    let mut caller = switch.caller();
    let nobody = caller.stats();
    assert_eq!((nobody.ports.len(), nobody.disks.len()), (2, 0));
    assert_eq!(cause(&nobody, &nobody, "a"), NicCause::NoFrontEnd);
    let (mut a, mut b) = (switch.guest("a.sock"), switch.guest("b.sock"));
    b.post_buffers(0, 32, 2048).unwrap();
    eventually("both are served", || caller.stats().ports.iter().all(|one| one.pairs_started > 0));
    let idle = caller.stats();
    for number in 0..32 {
        a.send_frame(0, &PLAIN, &frame(number)).unwrap();
        b.receive_frame(0, PROCESS_DEADLINE).unwrap().unwrap();
    }
    // The guest sees a frame before its time is recorded.
    eventually("all of them are timed", || {
        port(&caller.stats(), "b").each_queue[0].residence.count == 32
    });
    let busy = caller.stats();
    let (sent, got) = (port(&busy, "a"), port(&busy, "b"));
    assert_eq!((sent.tx.frames, got.rx.frames), (32, 32));
    assert!(got.each_queue[0].residence_seconds > 0.0);
    assert_eq!(sent.polling.unwrap().queues.reason, PollReason::Off);
    // On a busy host, frames may wait for reactors.
    let flows = cause(&idle, &busy, "b");
    assert!(matches!(flows, NicCause::Healthy | NicCause::Reactor), "{flows:?}");
    // The guest has no more buffers, so frames wait.
    for number in 0..8 {
        a.send_frame(0, &PLAIN, &frame(number)).unwrap();
    }
    eventually("all of them are counted", || port(&caller.stats(), "b").each_queue[0].backlog == 8);
    let starved = caller.stats();
    assert_eq!(cause(&busy, &starved, "b"), NicCause::Buffers);
    b.post_buffers(0, 8, 2048).unwrap();
    for _ in 0..8 {
        b.receive_frame(0, PROCESS_DEADLINE).unwrap().unwrap();
    }
    eventually("none waits", || {
        let queue = port(&caller.stats(), "b").each_queue[0].clone();
        (queue.backlogged, queue.backlog, queue.rx.frames) == (8, 0, 40)
    });
    assert!(switch.process.terminate().unwrap().success());
    assert_eq!(names(&switch.folder), [""; 0], "sockets are left");
}

#[test]
fn metrics_and_refusals() {
    let folder = folder();
    let socket = folder.path().join("metrics");
    let mut switch = Switch::start(&["--metrics", &format!("unix:{}", socket.display())]);
    let mut caller = switch.caller();
    let scraped = scrape(UnixStream::connect(&socket).unwrap());
    let page = caller.call("metrics", json!({})).unwrap();
    let page = page["openmetrics"].as_str().unwrap();
    for part in [
        "ringway_nic_frames_total{nic=\"a\",direction=\"tx\"} 0",
        "ringway_nic_connected{nic=\"b\"} 0",
        "# TYPE ringway_nic_residence_seconds histogram",
        "# EOF",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    // A scraper gets the same.
    assert!(read(page).unwrap().keys().eq(scraped.keys()));
    let one: Stats =
        serde_json::from_value(caller.call("stats", json!({"id": "b"})).unwrap()).unwrap();
    assert_eq!(one.ports.len(), 1);
    let error = |answer: Result<serde_json::Value, model::rpc::RpcError>| answer.unwrap_err().code;
    assert_eq!(error(caller.call("stats", json!({"id": "c"}))), code::NO_SUCH_DISK);
    assert_eq!(error(caller.call("disk.detach", json!({"id": "a"}))), code::METHOD_NOT_FOUND);
    assert_eq!(error(caller.call("nonsense", json!({}))), code::METHOD_NOT_FOUND);
    let (_, refused) = caller.refused_line("what is this");
    assert_eq!(refused.code, code::PARSE);
    // A client that never reads, and one that disconnects in the middle of a line, do not block
    // others.
    let mut rude = switch.caller();
    rude.send_line(b"{\"jsonrpc\": \"2.0\", ");
    drop(rude);
    assert_eq!(caller.stats().ports.len(), 2);
    assert!(switch.process.terminate().unwrap().success());
    assert_eq!(names(&folder), [""; 0], "the socket is left");
}

#[test]
fn more_callers_than_may_be_are_told() {
    let switch = Switch::start(&[]);
    let mut all: Vec<_> = (0..16).map(|_| switch.caller()).collect();
    all.iter_mut().for_each(|caller| assert_eq!(caller.stats().ports.len(), 2));
    let answer = switch.caller().receive().unwrap();
    assert!(answer.error.unwrap().message.contains("16 callers"));
    all.pop();
    eventually("there is room", || {
        let mut caller = switch.caller();
        // A rejected client may be disconnected by now.
        let mut stream = caller.stream();
        let _ = stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"}\n");
        caller.receive().is_some_and(|answer| answer.error.is_none())
    });
}
