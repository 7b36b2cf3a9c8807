//! `ringway-net` with front-ends that do exactly what a test says.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::switch::Switch;
use crate::common::*;
use rustix::process::Signal;
use testkit::process::PROCESS_DEADLINE;
use testkit::raw::nic::PLAIN;
use testkit::raw::wire::{Request, protocol};
use testkit::raw::{Guest, Setup};

/// Deadline for any frame.
const SOON: Duration = PROCESS_DEADLINE;

impl Switch {
    /// Starts a switch with ports `a`, `b` and `c`.
    fn with_three_ports(options: &[&str]) -> Self {
        Self::with(&["a", "b", "c"], options)
    }

    /// Starts a guest with this many queue pairs, and buffers in each.
    fn guest(&self, name: &str, pairs: u16) -> Guest {
        let mut guest = guest(&self.port(name), pairs);
        for pair in 0..pairs.into() {
            guest.post_buffers(pair, 64, 2048).unwrap();
        }
        guest
    }
}

fn guest(socket: &Path, pairs: u16) -> Guest {
    Guest::start(socket, &Setup { queues: 2 * pairs, ..Setup::default() }).unwrap()
}

/// Builds a frame from one station to another. 0xff is the broadcast address.
fn frame(dst: u8, src: u8, text: &str) -> Vec<u8> {
    let station = |number: u8| if number == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, number] };
    [&station(dst)[..], &station(src), &[0x12, 0x34], text.as_bytes()].concat()
}

fn received(guest: &mut Guest, pair: usize) -> Vec<u8> {
    guest.receive_frame(pair, SOON).unwrap().expect("no frame came").bytes
}

#[test]
fn frames_go_between_sockets() {
    let mut switch = Switch::with_three_ports(&[]);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| switch.guest(name, 1));
    let hello = frame(0xff, 1, "is anybody there");
    a.send_frame(0, &PLAIN, &hello).unwrap();
    assert_eq!([&mut b, &mut c].map(|guest| received(guest, 0)), [hello.clone(), hello]);
    for round in 0..100 {
        let (ask, answer) = (frame(2, 1, &format!("{round}")), frame(1, 2, &format!("-{round}")));
        b.send_frame(0, &PLAIN, &answer).unwrap();
        assert_eq!(received(&mut a, 0), answer);
        a.send_frame(0, &PLAIN, &ask).unwrap();
        assert_eq!(received(&mut b, 0), ask);
        if round % 32 == 31 {
            [&mut a, &mut b].into_iter().for_each(|guest| guest.post_buffers(0, 32, 2048).unwrap());
        }
    }
    assert!(switch.process.terminate().unwrap().success());
    assert_eq!(names(&switch.folder), [""; 0], "sockets are left");
}

#[test]
fn both_pairs_of_a_guest_carry_frames() {
    let switch = Switch::with_three_ports(&["--queues", "2", "--reactors", "2"]);
    let [mut a, mut b] = ["a", "b"].map(|name| switch.guest(name, 2));
    for number in 0..20 {
        let frame = frame(0xff, 1, &format!("{number}"));
        a.send_frame(number % 2, &PLAIN, &frame).unwrap();
        // Frames without ports go to the first queue.
        assert_eq!(received(&mut b, 0), frame);
    }
    // A guest that uses only one of its pairs is served as well.
    let mut c = switch.guest("c", 1);
    let last = frame(0xff, 3, "one pair is enough");
    c.send_frame(0, &PLAIN, &last).unwrap();
    assert_eq!([&mut a, &mut b].map(|guest| received(guest, 0)), [last.clone(), last]);
}

#[test]
fn what_a_driver_reads_and_is_offered() {
    let switch = Switch::with_three_ports(&["--queues", "3", "--mtu", "9000"]);
    let mut a = guest(&switch.port("a"), 1);
    let config = a.frontend.get_config(24).unwrap();
    assert_eq!(config[0] & 3, 2, "a local address of one interface: {config:?}");
    assert_eq!(config[6..12], [1, 0, 3, 0, 0x28, 0x23], "link, pairs, MTU");
    assert_eq!(a.frontend.get_u64(Request::GET_QUEUE_NUM).unwrap(), 7, "and a control queue");
    // CTRL_VQ, CTRL_RX, MQ, CTRL_MAC_ADDR.
    let control = [17, 18, 22, 23].map(|bit| 1 << bit);
    assert_eq!(control.map(|bit| a.negotiated.offered & bit), control);
    // QEMU before 8.0 adds each region once for each pair.
    assert_eq!(a.negotiated.protocol_offered & protocol::CONFIGURE_MEM_SLOTS, 0);
    let one = Switch::with_three_ports(&["--queues", "3", "--no-mq"]);
    let mut a = guest(&one.port("a"), 1);
    assert_eq!(control.map(|bit| a.negotiated.offered & bit), [0; 4]);
    assert_eq!(a.frontend.get_u64(Request::GET_QUEUE_NUM).unwrap(), 2);
}

#[test]
fn front_ends_come_and_go_under_load() {
    let mut switch = Switch::with_three_ports(&["--reactors", "2"]);
    let mut a = switch.guest("a", 1);
    for round in 0..20 {
        let mut b = switch.guest("b", 1);
        let frame = frame(0xff, 1, &format!("{round}"));
        a.send_frame(0, &PLAIN, &frame).unwrap();
        assert_eq!(received(&mut b, 0), frame);
        // Some front-ends disconnect in order, and some do not.
        if round % 2 == 0 {
            assert_eq!(b.stop_queue(0).unwrap(), 1);
            assert_eq!(b.stop_queue(1).unwrap(), 0);
        }
        for _ in 0..4 {
            a.offer_frame(0, &PLAIN, &frame).unwrap();
        }
        drop(b);
        for _ in 0..4 {
            assert!(matches!(a.wait(1, SOON), Ok(testkit::raw::WaitEvent::Used(_))));
        }
    }
    // A front-end that restarts its ring continues from its position.
    let mut b = switch.guest("b", 1);
    let next = b.stop_queue(0).unwrap();
    b.start_queue(0, next).unwrap();
    a.send_frame(0, &PLAIN, &frame(0xff, 1, "again")).unwrap();
    assert_eq!(received(&mut b, 0), frame(0xff, 1, "again"));
    assert!(switch.process.terminate().unwrap().success());
}

#[test]
fn one_guest_cannot_hold_up_the_others() {
    let switch = Switch::with_three_ports(&[]);
    let [mut a, mut b] = ["a", "b"].map(|name| switch.guest(name, 1));
    // This guest never posts a buffer, and breaks its ring.
    let mut c = guest(&switch.port("c"), 1);
    c.queues[1].ring.set_avail_idx(&c.memory, 1000).unwrap();
    c.kick(1).unwrap();
    for round in 0..50 {
        let frame = frame(0xff, 1, &format!("{round}"));
        a.send_frame(0, &PLAIN, &frame).unwrap();
        assert_eq!(received(&mut b, 0), frame);
    }
    assert!(matches!(c.wait(1, SOON), Ok(testkit::raw::WaitEvent::QueueError)));
}

#[test]
fn either_signal_ends_it_with_front_ends_connected() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut switch = Switch::with_three_ports(&[]);
        let _a = switch.guest("a", 1);
        switch.process.signal(signal).unwrap();
        assert!(switch.process.wait(PROCESS_DEADLINE).unwrap().success());
        assert_eq!(names(&switch.folder), [""; 0]);
    }
}

#[test]
fn what_is_wrong_is_named() {
    let (code, stderr) = ends(NET, &["--queues", "2"]);
    assert!(code == 2 && stderr.contains("--port"), "{stderr}");
    let (code, stderr) = ends(NET, &["--port", "/nowhere/a"]);
    assert!(code == 1 && stderr.contains("`mkdir -p /nowhere`"), "{stderr}");
    let switch = Switch::with_three_ports(&[]);
    let taken = switch.port("a");
    let (code, stderr) = ends(NET, &["--socket-path", taken.to_str().unwrap()]);
    assert!(code == 1 && stderr.contains("running process"), "{stderr}");
    let output = Command::new(NET).args(["--what", "--print-capabilities"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["type"], "net");
}
