//! Counts of kicks, calls and system calls per request, which do not depend on the host's speed.
//!
//! A batch of 32 reads becomes available by one store of the index, so a backend sees none or all
//! of it. The backend sleeps before (`--poll off`), so each batch needs a kick.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test reports what it saw")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use model::report::Stats;
use model::rpc::{Request as Call, Response};
use serde_json::{Value, json};
use testkit::process::{PROCESS_DEADLINE, Process, find_binary};
use testkit::raw::guest::{WaitEvent, drain, wait_readable};
use testkit::raw::request::{Request, status};
use testkit::raw::wire::feature;
use testkit::raw::{Guest, Setup};

const DEPTH: usize = 32;
const BATCHES: u64 = 50;
const DISK_BYTES: u64 = 1 << 20;

/// Most system calls of a reactor for one batch: the call, and the wait that the next kick ends.
/// The limit is twice that, for kicks that arrive after their batch was found.
const SYSCALLS_PER_BATCH_MAX: u64 = 4;

/// Most system calls for starting and stopping a queue.
const SYSCALLS_BESIDES_MAX: u64 = 20;

/// A running `ringway-io` with one reactor.
struct Io {
    control: BufReader<UnixStream>,
    calls: u64,
    _process: Process,
    dir: tempfile::TempDir,
}

impl Io {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let control = dir.path().join("control");
        let mut command = Command::new(find_binary("ringway-io").unwrap());
        command.arg("--control").arg(&control);
        command
            .args(["--reactors", "1", "--poll", "off", "--ready-fd", "1"])
            .stdout(Stdio::piped());
        let mut process = Process::start(&mut command).unwrap();
        let ready = process.child().stdout.take().unwrap();
        assert_eq!(wait_readable(&[ready.as_fd()], PROCESS_DEADLINE).unwrap(), Some(0));
        let stream = UnixStream::connect(&control)
            .unwrap_or_else(|_| panic!("{}", process.error("does not take calls")));
        stream.set_read_timeout(Some(PROCESS_DEADLINE)).unwrap();
        Self { control: BufReader::new(stream), calls: 0, _process: process, dir }
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut line = serde_json::to_vec(&Call::new(self.calls, method, params)).unwrap();
        line.push(b'\n');
        self.control.get_mut().write_all(&line).unwrap();
        let mut reply = String::new();
        self.control.read_line(&mut reply).unwrap();
        serde_json::from_str::<Response>(&reply).unwrap().outcome().unwrap()
    }

    fn attach(&mut self, backend: Value) -> std::path::PathBuf {
        let socket = self.dir.path().join("d.sock");
        let spec = json!({"id": "d", "socket": &socket, "backend": backend, "queues": 1});
        self.call("disk.attach", spec);
        socket
    }

    fn stats(&mut self) -> Stats {
        serde_json::from_value(self.call("stats", json!({}))).unwrap()
    }
}

/// Counts of all batches of a run.
#[derive(Debug)]
struct Counts {
    kicks: u64,
    calls: u64,
    syscalls: u64,
}

/// Runs all batches and sleeps until the call of each. `features` select how both sides suppress
/// notifications.
fn count(backend: Value, features: u64) -> Counts {
    let mut io = Io::start();
    let socket = io.attach(backend);
    let mut guest = start(&socket, features);
    for _ in 0..BATCHES {
        batch(&mut guest);
    }
    // Counters lag behind while the queue runs, and are final after it stops.
    guest.stop_queue(0).unwrap();
    let (stats, queue) = (io.stats(), &guest.queues[0]);
    let disk = &stats.disks[0];
    assert_eq!(disk.requests.read, BATCHES * DEPTH as u64);
    // If the reactor finds a batch before its kick, it reads that kick with the next one.
    assert!(disk.kicks <= queue.kicks, "{} kicks received, {} sent", disk.kicks, queue.kicks);
    assert_eq!(disk.calls, queue.calls, "calls as the backend counts them");
    let per = |events: u64| Some((BATCHES * DEPTH as u64) as f64 / events as f64);
    assert_eq!(disk.requests_per_call, per(disk.calls));
    assert_eq!(disk.requests_per_publish, per(disk.publishes));
    assert!(disk.publishes >= disk.calls, "{} publishes, {} calls", disk.publishes, disk.calls);
    Counts { kicks: queue.kicks, calls: queue.calls, syscalls: stats.reactors[0].syscalls }
}

fn start(socket: &Path, features: u64) -> Guest {
    Guest::start(socket, &Setup { features, ..Setup::default() }).unwrap()
}

fn batch(guest: &mut Guest) {
    let mark = guest.memory.mark();
    let requests: Vec<Request> = (0..DEPTH as u64).map(|i| Request::read(i * 8, 4096)).collect();
    let seen = guest.queues[0].ring.used_seen;
    guest.queues[0].ring.set_used_event(&guest.memory, seen).unwrap();
    let pending = guest.submit_all(0, &requests).unwrap();
    guest.kick(0).unwrap();
    let call = guest.queues[0].call.as_fd();
    assert_eq!(wait_readable(&[call], Duration::from_secs(10)).unwrap(), Some(0));
    guest.queues[0].calls += drain(&guest.queues[0].call).unwrap();
    for pending in &pending {
        let WaitEvent::Used(used) = guest.wait(0, Duration::from_secs(10)).unwrap() else {
            panic!("a batch did not complete");
        };
        assert_eq!(used.id, u32::from(pending.head));
        assert_eq!(pending.placed.status(&guest.memory).unwrap(), status::OK);
    }
    guest.memory.release(mark);
}

/// Checks the counts of a run. `calls_max` is the largest number of calls for one batch.
fn check(counts: &Counts, calls_max: u64) {
    println!("{counts:?}");
    assert!(counts.kicks <= BATCHES, "32 requests per kick: {counts:?}");
    let calls = BATCHES..=BATCHES * calls_max;
    assert!(calls.contains(&counts.calls), "32 requests for {calls_max} calls: {counts:?}");
    let most = BATCHES * SYSCALLS_PER_BATCH_MAX + SYSCALLS_BESIDES_MAX;
    assert!(counts.syscalls <= most, "{counts:?}");
    assert!(counts.syscalls >= BATCHES, "nothing was counted: {counts:?}");
}

#[test]
fn a_batch_on_a_null_disk_costs_one_kick_and_few_calls_and_system_calls() {
    // The first call comes before the batch ends. A driver that has taken all that it found, and
    // sleeps before the rest is there, wants another one.
    check(&count(json!({"null": DISK_BYTES}), !feature::RING_PACKED), 2);
}

#[test]
fn the_same_in_memory_and_without_event_idx() {
    let features = !(feature::RING_PACKED | feature::RING_EVENT_IDX);
    check(&count(json!({"memory": DISK_BYTES}), features), 1);
}
