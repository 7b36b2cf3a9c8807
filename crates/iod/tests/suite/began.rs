//! Reported start reasons of workers, and the metrics socket, which outlives workers.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::common::*;
use model::report::{StartReason, WorkerStart};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::openmetrics::{Page, scrape, value};
use testkit::process::eventually;
use testkit::process::{PROCESS_DEADLINE, Port, Worker};

fn began(io: &Io) -> WorkerStart {
    io.caller().stats().start.unwrap()
}

/// Returns the worker that serves, also just after an upgrade.
fn worker(io: &Io) -> Worker {
    let serves = io.caller().stats().pid;
    let mut found = None;
    eventually("the worker is the only one", || {
        found = io.process.worker().unwrap().filter(|one| one.id() == serves);
        found.is_some()
    });
    found.unwrap()
}

/// Kills the worker and waits for the new one.
fn kill(io: &mut Io) {
    let worker = worker(io);
    worker.kill().unwrap();
    io.process.next_worker(Some(worker.id())).unwrap();
}

fn upgrade(io: &Io) {
    io.caller().call("upgrade", Value::Null).unwrap();
}

#[test]
fn how_a_worker_came_to_serve_is_told() {
    let mut io = Io::lasting(&[]);
    let started = began(&io);
    assert_eq!((started.reason, &started.previous_exit), (StartReason::Start, &None));
    upgrade(&io);
    let upgraded = began(&io);
    assert_eq!((upgraded.reason, &upgraded.previous_exit), (StartReason::Upgrade, &None));
    kill(&mut io);
    let restarted = began(&io);
    let after = Some("was killed by SIGKILL".to_owned());
    assert_eq!((restarted.reason, &restarted.previous_exit), (StartReason::Restart, &after));
    // An upgrade long after a restart is reported as an upgrade.
    upgrade(&io);
    let last = began(&io);
    assert_eq!((last.reason, &last.previous_exit), (StartReason::Upgrade, &None));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let all = [&started, &upgraded, &restarted, &last].map(|one| one.unix_seconds);
    assert!(all.is_sorted() && all[3] <= now, "{all:?} {now}");

    // A new keeper has not started this worker.
    assert_eq!(io.caller().stats().keeper.unwrap().adopted_seconds_ago, None);
    io.process.kill().unwrap();
    let mut keeper = ready(IO, &["--control", io.socket("control").to_str().unwrap()]);
    let stats = io.caller().stats();
    assert_eq!(stats.start.unwrap(), last);
    assert!(stats.keeper.unwrap().adopted_seconds_ago.unwrap() >= 0.0);
    keeper.terminate().unwrap();
}

fn counting_since(page: &Page, how: &str) -> f64 {
    assert_eq!(value(page, "ringway_worker", "_info", &[("start_reason", how)]), 1.0);
    value(page, "ringway_disk_kicks", "_created", &[("disk", "d1")])
}

/// Runs starts, upgrades, crashes and adoptions. All scrapes succeed.
fn outlives(address: &str, scrape: impl Fn() -> Page, taken: impl Fn() -> bool) {
    let mut io = Io::lasting(&["--metrics", address]);
    io.caller().disk("disk.attach", io.spec("d1", json!({"null": 1 << 20})));
    let first = counting_since(&scrape(), "start");
    upgrade(&io);
    let second = counting_since(&scrape(), "upgrade");
    // While no worker serves, a scraper waits, and no other process can take the address.
    let worker = worker(&io);
    io.process.signal(Signal::STOP).unwrap();
    worker.kill().unwrap();
    assert!(taken());
    io.process.signal(Signal::CONT).unwrap();
    let page = scrape();
    assert_eq!(
        value(&page, "ringway_worker", "_info", &[("previous_exit", "was killed by SIGKILL")]),
        1.0
    );
    eventually("the disk is back", || {
        io.caller().stats().disks.iter().any(|disk| disk.counting_since_unix_seconds.is_some())
    });
    let third = counting_since(&scrape(), "restart");
    assert!(first < second && second < third, "{first} {second} {third}: counts begin anew");
    // Scrape without a keeper, and with another one.
    let worker = self::worker(&io);
    io.process.kill().unwrap();
    scrape();
    let control = io.socket("control");
    let mut keeper = ready(IO, &["--control", control.to_str().unwrap(), "--metrics", address]);
    assert_eq!(counting_since(&scrape(), "restart"), third);
    // The exit status of another process's child is unknown.
    worker.kill().unwrap();
    keeper.next_worker(None).unwrap();
    scrape();
    keeper.terminate().unwrap();
    assert!(!taken(), "it is given back");
}

#[test]
fn a_port_for_metrics_outlives_workers_and_keepers() {
    let held = Port::hold().unwrap();
    let port = held.number();
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
        scrape(stream)
    };
    let taken = || TcpListener::bind(("127.0.0.1", port)).is_err();
    outlives(&port.to_string(), connect, taken);
}

#[test]
fn a_socket_for_metrics_outlives_workers_and_keepers() {
    let folder = folder();
    let path = folder.path().join("metrics");
    let connect = || {
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
        scrape(stream)
    };
    outlives(&format!("unix:{}", path.display()), connect, || path.exists());
}

#[test]
fn a_socket_that_the_options_no_longer_name_is_given_back() {
    let folder = folder();
    let [first, second] = ["one", "two"].map(|name| folder.path().join(name));
    let option = |path: &std::path::Path| format!("unix:{}", path.display());
    let mut io = Io::lasting(&["--metrics", &option(&first)]);
    scrape(UnixStream::connect(&first).unwrap());
    let worker = worker(&io);
    io.process.kill().unwrap();
    let control = io.socket("control");
    let options = ["--control", control.to_str().unwrap(), "--metrics", &option(&second)];
    let mut keeper = ready(IO, &options);
    // The adopted worker still has the former options.
    scrape(UnixStream::connect(&first).unwrap());
    worker.kill().unwrap();
    keeper.next_worker(None).unwrap();
    eventually("the other socket is there", || UnixStream::connect(&second).is_ok());
    scrape(UnixStream::connect(&second).unwrap());
    assert!(!first.exists());
    keeper.terminate().unwrap();
    assert!(names(&folder).is_empty(), "{:?}", names(&folder));
}
