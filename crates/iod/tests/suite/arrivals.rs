//! Clients that connect during a handover: each is answered, by the source or the destination.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::nbd::{client, read};
use crate::common::*;
use serde_json::{Value, json};
use testkit::openmetrics::{Page, hear, scrape, value};
use testkit::process::eventually;
use testkit::process::{PROCESS_DEADLINE, Port, Worker};
use testkit::raw::guest::wait_readable;

/// Number of clients of each kind at the same time.
const COMERS: usize = 2;
/// Least time that a former worker waits for a connection without a request after the handover.
const FORMER_WAITS: Duration = Duration::from_secs(5);
const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";

fn upgrade(io: &Io, binary: Option<&str>) -> Result<Value, model::rpc::RpcError> {
    let params = binary.map_or(Value::Null, |binary| json!({"binary": binary}));
    io.caller().call("upgrade", params)
}

fn ends_by_itself(worker: &Worker) {
    assert_eq!(wait_readable(&[worker.ended().as_fd()], PROCESS_DEADLINE).unwrap(), Some(0));
}

/// Address type of the metrics.
enum Metrics {
    Tcp(Port),
    Unix(tempfile::TempDir),
}

impl Metrics {
    fn start(&self) -> Io {
        let address = match self {
            Self::Tcp(port) => port.number().to_string(),
            Self::Unix(folder) => format!("unix:{}", folder.path().join("m").display()),
        };
        let io = Io::start_with(&["--metrics", &address]);
        io.caller().disk("disk.attach", io.spec("d", json!({"memory": 1 << 20})));
        io
    }

    fn connect(&self) -> Box<dyn Both> {
        match self {
            Self::Tcp(port) => {
                let stream = TcpStream::connect(("127.0.0.1", port.number())).unwrap();
                stream.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
                Box::new(stream)
            }
            Self::Unix(folder) => {
                let stream = UnixStream::connect(folder.path().join("m")).unwrap();
                stream.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
                Box::new(stream)
            }
        }
    }
}

trait Both: std::io::Read + Write {}
impl<T: std::io::Read + Write> Both for T {}

fn start(page: &Page) -> f64 {
    value(page, "ringway_worker_start_time_seconds", "", &[])
}

/// Scrapers and callers connect all the time. Each is answered, through successful and cancelled
/// upgrades.
fn all_are_answered(metrics: &Metrics) {
    let mut io = metrics.start();
    let (done, scrapes, calls) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ended = Ended(&done);
        for _ in 0..COMERS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    scrape(metrics.connect());
                    scrapes.fetch_add(1, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    io.caller().stats();
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let more = |count: &AtomicU64| {
            let before = count.load(Ordering::Relaxed);
            eventually("they go on", || count.load(Ordering::Relaxed) > before + COMERS as u64);
        };
        for _ in 0..testkit::rounds(10, 100) {
            let before = start(&scrape(metrics.connect()));
            upgrade(&io, None).unwrap();
            // Not answered by the former worker, even if that ends late.
            assert!(start(&scrape(metrics.connect())) > before);
            more(&scrapes);
            more(&calls);
        }
        for _ in 0..testkit::rounds(3, 30) {
            upgrade(&io, Some("/bin/true")).unwrap_err();
            more(&scrapes);
            more(&calls);
        }
    });
    assert_eq!(io.caller().stats().keeper.unwrap().restarts, 0);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn scrapers_at_a_port_and_callers_are_answered_through_upgrades() {
    all_are_answered(&Metrics::Tcp(Port::hold().unwrap()));
}

#[test]
fn scrapers_at_a_socket_and_callers_are_answered_through_upgrades() {
    all_are_answered(&Metrics::Unix(folder()));
}

/// Process after an upgrade whose former worker waits for a client that sends nothing.
struct Parting {
    io: Io,
    former: Worker,
    /// Client that sends nothing.
    idle: Box<dyn Both>,
    /// Clients that the former worker has answered, before the upgrade and after it.
    answered: [Caller; 2],
}

/// Checks that the former worker answers clients that it accepted and that had sent no request yet.
fn part(metrics: &Metrics) -> Parting {
    let io = metrics.start();
    let export = json!({"id": "d", "socket": io.socket("d.nbd"), "read_only": true});
    io.caller().call("disk.export", export).unwrap();
    let former = io.process.worker().unwrap().unwrap();
    let mut early = metrics.connect();
    early.write_all(&GET[..9]).unwrap();
    let mut silent = io.caller();
    let idle = metrics.connect();
    // The former worker has accepted the earlier clients when it has answered later ones.
    scrape(metrics.connect());
    let mut known = io.caller();
    known.stats();
    upgrade(&io, None).unwrap();

    early.write_all(&GET[9..]).unwrap();
    assert_eq!(silent.stats().pid, former.id());
    let page = hear(early);
    assert_eq!(value(&page, "ringway_worker", "_info", &[("start_reason", "start")]), 1.0);
    Parting { io, former, idle, answered: [known, silent] }
}

/// The former worker waits at most some seconds for clients. A machine that takes as long just to
/// get here proves nothing, so the attempt is repeated.
fn part_in_time(metrics: impl Fn() -> Metrics) -> (Metrics, Parting) {
    for _ in 0..4 {
        let (metrics, began) = (metrics(), Instant::now());
        match catch_unwind(AssertUnwindSafe(|| part(&metrics))) {
            Ok(parting) => return (metrics, parting),
            Err(_) if began.elapsed() > FORMER_WAITS / 2 => {}
            Err(panic) => resume_unwind(panic),
        }
    }
    let metrics = metrics();
    let parting = part(&metrics);
    (metrics, parting)
}

/// The former worker answers the clients that it has accepted, and accepts no others of any kind.
fn the_former_worker_answers_and_takes_nobody(metrics: impl Fn() -> Metrics) {
    let (metrics, parting) = part_in_time(metrics);
    let Parting { mut io, former, idle, answered } = parting;
    // Clients that were answered must reconnect.
    assert!(answered.into_iter().all(|mut caller| caller.receive().is_none()));
    // While the former worker waits for a silent client, its successor serves all others.
    let comers: Vec<_> = (0..10).map(|_| client(&io.socket("d.nbd"))).collect();
    let pids: Vec<_> = (0..10).map(|_| io.caller().stats().pid).collect();
    assert!(!pids.contains(&former.id()), "{pids:?}");
    let page = scrape(metrics.connect());
    assert_eq!(value(&page, "ringway_worker", "_info", &[("start_reason", "upgrade")]), 1.0);
    drop(idle);
    ends_by_itself(&former);
    for mut stream in comers {
        assert_eq!(read(&mut stream, 0), [0; 512]);
    }
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}

#[test]
fn the_former_worker_answers_at_a_port_and_takes_nobody() {
    the_former_worker_answers_and_takes_nobody(|| Metrics::Tcp(Port::hold().unwrap()));
}

#[test]
fn the_former_worker_answers_at_a_socket_and_takes_nobody() {
    the_former_worker_answers_and_takes_nobody(|| Metrics::Unix(folder()));
}

#[test]
fn one_that_connects_and_says_nothing_keeps_no_worker() {
    let metrics = Metrics::Tcp(Port::hold().unwrap());
    let mut io = metrics.start();
    let former = io.process.worker().unwrap().unwrap();
    let _silent = (metrics.connect(), io.caller());
    scrape(metrics.connect());
    upgrade(&io, None).unwrap();
    ends_by_itself(&former);
    assert!(io.process.terminate().unwrap().success(), "{}", io.process.stderr());
}
