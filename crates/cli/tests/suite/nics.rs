//! Tests of `ringway top` and `ringway why NIC` with a switch and simulated guests.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;
use testkit::process::{PROCESS_DEADLINE, RingwayNet};
use testkit::raw::nic::PLAIN;
use testkit::raw::{Guest, Setup};

/// Bytes that are too short for a frame.
const SHORT: [u8; 13] = [7; 13];
/// Maximum number of frames in a queue's backlog.
const KEPT: usize = 1024;

/// A `ringway-net` with the ports `a`, `b` and `c`.
struct Switch {
    _net: RingwayNet,
    dir: TempDir,
}

impl Switch {
    fn start(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let sockets = ["a.sock", "b.sock", "c.sock"].map(path);
        let control = path("control");
        let all = [&["--control", control.to_str().unwrap()], options].concat();
        let net = RingwayNet::start(&sockets, &all).unwrap();
        Self { _net: net, dir }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Connects a front-end with `pairs` queue pairs, and `buffers` buffers in the first one.
    fn guest(&self, name: &str, pairs: u16, buffers: u16) -> Guest {
        let setup = Setup { queues: 2 * pairs, ..Setup::default() };
        let mut guest = Guest::start(&self.socket(&format!("{name}.sock")), &setup).unwrap();
        guest.frontend.barrier().unwrap();
        guest.post_buffers(0, buffers, 2048).unwrap();
        guest
    }

    /// Returns the output of `ringway` about it after a tenth of a second.
    fn stdout(&self, words: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
        command.args(words).args(["--seconds", "0.1"]).stdin(Stdio::null());
        let output = command.arg("--control").arg(self.socket("control")).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Returns a frame from one station to another.
fn frame(dst: u8, src: u8, rest: &[u8]) -> Vec<u8> {
    let station = |number: u8| [2, 0, 0, 0, 0, number];
    [&station(dst)[..], &station(src), rest].concat()
}

/// Returns a datagram from station 1 to station 2.
fn datagram() -> Vec<u8> {
    let ip = [8, 0, 0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let udp = [0x3, 0xe8, 0, 9, 0, 8, 0, 0];
    frame(2, 1, &[&ip[..], &udp].concat())
}

/// Makes station 2 known, so that its frames are not flooded any more.
fn introduce(a: &mut Guest, b: &mut Guest) {
    b.send_frame(0, &PLAIN, &frame(1, 2, &[0x12, 0x34])).unwrap();
    a.take_frame(0, PROCESS_DEADLINE).unwrap().expect("no frame came");
}

/// Sends datagrams from `a` and invalid frames from `b` until `end` receives.
fn speak(a: &mut Guest, b: &mut Guest, end: &Receiver<()>) {
    while end.try_recv() == Err(TryRecvError::Empty) {
        a.pass_frame(0, &datagram()).unwrap();
        b.take_frame(0, PROCESS_DEADLINE).unwrap().expect("no frame came");
        b.pass_frame(0, &SHORT).unwrap();
    }
}

fn cells(row: &str) -> Vec<String> {
    row.trim_matches('│').split('┆').map(|cell| cell.trim().to_owned()).collect()
}

/// Returns the cells of the table whose header row begins with this first column.
fn table(text: &str, first: &str) -> Vec<Vec<String>> {
    let rows = text.lines().skip_while(|line| !line.starts_with('│') || cells(line)[0] != first);
    let rows = rows.take_while(|line| !line.starts_with('└'));
    rows.filter(|line| line.starts_with('│')).map(cells).collect()
}

/// Returns the cell of a row below a header; the first one of this name.
fn cell<'a>(table: &'a [Vec<String>], row: &str, head: &str) -> &'a str {
    let at = table[0].iter().position(|one| one == head).unwrap();
    let row = table.iter().find(|cells| cells[0] == row);
    &row.unwrap_or_else(|| panic!("no {row:?} in {table:?}"))[at]
}

/// Splits a cell into frames a second and the reason.
fn rate(cell: &str) -> (u64, &str) {
    let (count, rest) = cell.split_once(' ').unwrap_or((cell, ""));
    (count.parse().unwrap(), rest)
}

#[test]
fn top_shows_what_is_sent_and_lost_now() {
    let switch = Switch::start(&["--poll", "off"]);
    let (mut a, mut b) = (switch.guest("a", 1, 64), switch.guest("b", 1, 64));
    introduce(&mut a, &mut b);
    std::thread::scope(|scope| {
        let (end, ended) = channel();
        scope.spawn(move || speak(&mut a, &mut b, &ended));
        let began = Instant::now();
        // On a busy host no frame may be sent within a tenth of a second.
        let shown = loop {
            let text = switch.stdout(&["top", "--once"]);
            let nics = table(&text, "nic");
            let of = |nic: &str, head: &str| rate(cell(&nics, nic, head)).0;
            if of("a", "sent/s") > 0 && of("b", "got/s") > 0 && of("b", "lost/s") > 0 {
                break nics;
            }
            assert!(began.elapsed() < 3 * PROCESS_DEADLINE, "{text}");
        };
        drop(end);
        let cell = |nic: &str, head: &str| cell(&shown, nic, head);
        assert_eq!(["a", "b", "c"].map(|nic| cell(nic, "state")), ["active", "active", "no guest"]);
        assert_eq!(rate(cell("b", "lost/s")).1, "short-frame");
        assert_eq!((cell("a", "lost/s"), cell("c", "got/s")), ("0", "0"));
        assert_eq!(cell("a", "largest flow"), "10.0.0.1:1000 > 10.0.0.2:9 100%");
        assert_eq!((cell("b", "largest flow"), cell("a", "queues")), ("-", "1"));
        assert_eq!(cell("a", "polled"), "off");
        assert_ne!(cell("b", "ring to ring"), "-");
    });
}

#[test]
fn why_says_what_a_nic_waits_for_and_what_each_queue_lost() {
    let switch = Switch::start(&["--queues", "2", "--reactors", "1"]);
    let (mut a, mut b) = (switch.guest("a", 1, 64), switch.guest("b", 2, 0));
    introduce(&mut a, &mut b);
    // Its guest receives nothing, and sends invalid frames through its second queue.
    for _ in 0..KEPT + 5 {
        a.pass_frame(0, &datagram()).unwrap();
    }
    b.send_frame(1, &PLAIN, &SHORT).unwrap();

    let text = switch.stdout(&["why", "b"]);
    let sentence = text.lines().next().unwrap();
    assert!(sentence.starts_with("b waits for its guest: "), "{text}");
    assert!(sentence.ends_with(&format!(", {KEPT} wait now.")), "{text}");
    let queues = table(&text, "queue");
    let lost = |head: &str| ["0", "1"].map(|queue| cell(&queues, queue, head));
    assert_eq!(lost("lost of sent"), ["", "1 short-frame"], "{text}");
    // All frames belong to one flow.
    let mut missed = lost("lost for it");
    missed.sort_unstable();
    assert_eq!(missed, ["", "5 no-buffer"], "{text}");

    let report: Value =
        serde_json::from_str(&switch.stdout(&["why", "a", "--format", "json"])).unwrap();
    assert_eq!(report["verdict"]["cause"], "idle", "{report}");
    let flow = &report["nic"]["flows"][0];
    assert_eq!((&flow["from"], &flow["nic"]), (&"10.0.0.1:1000".into(), &"b".into()), "{report}");
    let text = switch.stdout(&["why", "a"]);
    assert_eq!(cell(&table(&text, "from"), "10.0.0.1:1000", "part"), "100%", "{text}");
    let text = switch.stdout(&["why", "c"]);
    assert!(text.starts_with("c has no front-end"), "{text}");
}
