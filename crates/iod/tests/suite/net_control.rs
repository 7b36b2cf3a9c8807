//! `ringway-net` with front-ends that let it serve their control queue, as User-Mode Linux does.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use crate::common::*;
use tempfile::TempDir;
use testkit::process::{PROCESS_DEADLINE, Process};
use testkit::raw::frontend::Frontend;
use testkit::raw::hostile::{Hostile, HostileOutcome};
use testkit::raw::nic::PLAIN;
use testkit::raw::wire::Request;
use testkit::raw::{Guest, Setup};

/// Deadline for any frame.
const SOON: Duration = PROCESS_DEADLINE;
/// Acknowledgements of commands (virtio 1.2, 5.1.6.5).
const OK: u8 = 0;
const ERR: u8 = 1;
const PAIRS: u16 = 4;
/// Index of the control queue, after all pairs.
const CONTROL: usize = 2 * PAIRS as usize;
/// Number of flows that suffices to use every queue.
const FLOWS: u16 = 24;
/// Feature bit MQ.
const SEVERAL: u64 = 1 << 22;
/// Feature bit CTRL_VQ.
const CONTROLLED: u64 = 1 << 17;

/// Starts a switch with ports `a` and `b`.
fn switch() -> (Process, TempDir) {
    let folder = folder();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let ports = ["--port", a.to_str().unwrap(), "--port", b.to_str().unwrap()];
    (ready(NET, &[&ports[..], &["--queues", "4", "--reactors", "2"]].concat()), folder)
}

/// Starts a front-end with this many queues, and buffers in the receive queues.
fn guest(socket: &Path, queues: u16, without: u64) -> Guest {
    let mut guest = started(socket, queues, without).unwrap();
    for pair in 0..usize::from(queues / 2) {
        guest.post_buffers(pair, 128, 256).unwrap();
    }
    guest
}

/// Starts a front-end without buffers. Fails if the backend refuses its rings.
fn started(socket: &Path, queues: u16, without: u64) -> Result<Guest, testkit::Error> {
    let features = Setup::default().features & !without;
    let setup = Setup { queues, features, ..Setup::default() };
    let mut guest = Guest::start(socket, &setup)?;
    guest.frontend.barrier()?;
    Ok(guest)
}

fn station(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// Builds a UDP frame from station 1, with this source port.
fn flow(dst: [u8; 6], port: u16) -> Vec<u8> {
    let ip = [0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let udp = [port.to_be_bytes(), [0, 9], [0, 8], [0, 0]].concat();
    [&dst[..], &station(1), &[8, 0], &ip, &udp].concat()
}

/// Broadcasts a frame of each of many flows. Returns the number of queues on which `b` receives
/// them, counted from the first.
fn used(a: &mut Guest, b: &mut Guest) -> usize {
    for port in 0..FLOWS {
        a.send_frame(0, &PLAIN, &flow([0xff; 6], 1000 + port)).unwrap();
    }
    let mut received = [0; PAIRS as usize];
    while received.iter().sum::<u16>() < FLOWS {
        for (pair, count) in received.iter_mut().enumerate() {
            let soon = Duration::from_millis(1);
            *count += u16::from(b.receive_frame(pair, soon).unwrap().is_some());
        }
    }
    let used = received.iter().take_while(|count| **count > 0).count();
    assert!(received.iter().skip(used).all(|count| *count == 0), "{received:?}");
    used
}

/// Restarts the driver as User-Mode Linux does: rings start disabled, and features are negotiated.
fn begin_anew(guest: &mut Guest) {
    let queues = 0..guest.queues.len();
    let bases: Vec<_> = queues.map(|queue| guest.stop_queue(queue).unwrap()).collect();
    guest.frontend.set_u64(Request::SET_FEATURES, guest.negotiated.features).unwrap();
    for (queue, base) in bases.into_iter().enumerate() {
        guest.start_queue(queue, base).unwrap();
    }
    guest.frontend.barrier().unwrap();
}

#[test]
fn four_pairs_and_back() {
    let (mut switch, folder) = switch();
    let mut a = guest(&folder.path().join("a"), 2, 0);
    let mut b = guest(&folder.path().join("b"), 2 * PAIRS + 1, 0);
    assert_eq!(used(&mut a, &mut b), 1, "one pair is in use until more are asked for");
    for (pairs, answer, then) in [(4, OK, 4), (5, ERR, 4), (0, ERR, 4), (2, OK, 2), (1, OK, 1)] {
        assert_eq!(b.command(CONTROL, &[4, 0, pairs, 0]).unwrap(), answer, "{pairs} pairs");
        assert_eq!(used(&mut a, &mut b), then, "{pairs} pairs");
        // Each pair in use sends, too.
        for pair in 0..then {
            let frame = flow(station(1), pair as u16);
            b.send_frame(pair, &PLAIN, &[&frame[..6], &station(2), &frame[12..]].concat()).unwrap();
            assert!(a.receive_frame(0, SOON).unwrap().is_some());
        }
    }
    // A new driver starts with default settings, on the same connection or another one.
    assert_eq!(b.command(CONTROL, &[4, 0, 3, 0]).unwrap(), OK);
    assert_eq!(b.command(CONTROL, &[&[1, 1][..], &station(7)].concat()).unwrap(), OK);
    begin_anew(&mut b);
    assert_eq!(used(&mut a, &mut b), 1, "it has asked for nothing");
    assert_ne!(b.frontend.get_config(6).unwrap(), station(7));
    assert_eq!(b.command(CONTROL, &[4, 0, 4, 0]).unwrap(), OK);
    assert_eq!(used(&mut a, &mut b), 4);
    drop(b);
    let mut b = guest(&folder.path().join("b"), 2 * PAIRS, 0);
    assert_eq!(used(&mut a, &mut b), 4, "one that keeps its control queue uses what it starts");
    assert!(switch.terminate().unwrap().success());
}

/// As with QEMU, which serves the control queue itself and enables and disables rings.
#[test]
fn rings_that_are_disabled_get_nothing() {
    let (_switch, folder) = switch();
    let mut a = guest(&folder.path().join("a"), 2, 0);
    let mut b = guest(&folder.path().join("b"), 2 * PAIRS, 0);
    assert_eq!(used(&mut a, &mut b), 4);
    for (rings, enabled, then) in [(4..8, 0, 2), (2..4, 0, 1), (2..8, 1, 4)] {
        for ring in rings {
            b.frontend.set_vring(Request::SET_VRING_ENABLE, ring, enabled).unwrap();
        }
        b.frontend.barrier().unwrap();
        assert_eq!(used(&mut a, &mut b), then, "{then} pairs");
    }
}

#[test]
fn a_ring_beyond_what_was_negotiated_is_refused() {
    let (mut switch, folder) = switch();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    // Rings after the control queue of one pair, after that of four, and after four pairs without
    // one.
    for (rings, without) in [(4, SEVERAL), (2 * PAIRS + 2, 0), (2 * PAIRS + 1, CONTROLLED)] {
        let refused = started(&a, rings, without).unwrap_err();
        assert!(matches!(refused, testkit::Error::Refused { .. }), "{rings} rings: {refused}");
        assert!(started(&a, rings - 1, without).is_ok(), "{rings} rings");
        let mut all = guest(&b, 2 * PAIRS + 1, 0);
        assert_eq!(used(&mut guest(&a, 2, 0), &mut all), 1);
    }
    assert!(switch.terminate().unwrap().success());
    assert!(switch.stderr().contains("no such queue"), "{}", switch.stderr());
}

#[test]
fn hostile_front_ends_end_only_their_own_session() {
    let (mut switch, folder) = switch();
    let [socket, b] = ["a", "b"].map(|name| folder.path().join(name));
    for bad in Hostile::ALL {
        let mut frontend = Frontend::connect(&socket).unwrap();
        let hostile_outcome =
            bad.send(&mut frontend).unwrap_or_else(|error| panic!("{bad:?}: {error}"));
        assert_eq!(
            hostile_outcome == HostileOutcome::Closed,
            bad.breaks_framing(),
            "{bad:?}: {hostile_outcome:?}"
        );
        drop(frontend);
        let mut all = guest(&b, 2 * PAIRS + 1, 0);
        assert_eq!(used(&mut guest(&socket, 2, 0), &mut all), 1, "{bad:?}");
    }
    assert!(switch.terminate().unwrap().success());
}

#[test]
fn the_control_queue_is_where_the_features_say() {
    let (_switch, folder) = switch();
    let mut a = guest(&folder.path().join("a"), 3, SEVERAL);
    assert_eq!(a.command(2, &[0, 0, 1]).unwrap(), OK, "behind one pair without MQ");
    assert_eq!(a.command(2, &[4, 0, 1, 0]).unwrap(), ERR, "which was not negotiated");
    // With the feature, the control queue follows all pairs.
    let mut b = guest(&folder.path().join("b"), 2 * PAIRS + 1, 0);
    assert_eq!(b.command(CONTROL, &[0, 0, 0]).unwrap(), OK);
}

#[test]
fn filters_and_the_address() {
    let (_switch, folder) = switch();
    let mut a = guest(&folder.path().join("a"), 2, 0);
    let mut b = guest(&folder.path().join("b"), 2 * PAIRS + 1, 0);
    let own: [u8; 6] = b.frontend.get_config(6).unwrap().try_into().unwrap();
    // Returns whether frames to these addresses arrive before the broadcast that follows.
    let mut gets = |b: &mut Guest| {
        [own, station(7)].map(|dst| {
            [dst, [0xff; 6]].iter().for_each(|dst| {
                a.send_frame(0, &PLAIN, &flow(*dst, 1)).unwrap();
            });
            let mut next = || b.receive_frame(0, SOON).unwrap().unwrap().bytes;
            next()[..6] == dst && next()[..6] == [0xff; 6]
        })
    };
    assert_eq!(gets(&mut b), [true, true]);
    assert_eq!(b.command(CONTROL, &[0, 0, 0]).unwrap(), OK);
    assert_eq!(gets(&mut b), [true, false]);
    let table = [&[1, 0, 1, 0, 0, 0][..], &station(7), &[0; 4]].concat();
    assert_eq!(b.command(CONTROL, &table).unwrap(), OK);
    assert_eq!(gets(&mut b), [true, true]);
    assert_eq!(b.command(CONTROL, &[&[1, 1][..], &station(7)].concat()).unwrap(), OK);
    assert_eq!(b.frontend.get_config(6).unwrap(), station(7));
    assert_eq!(gets(&mut b), [false, true]);
    // A table that is shorter than its count, and an invalid table.
    for table in [&table[..table.len() - 1], &[1, 0, 255, 255, 255, 255, 0, 0, 0, 0][..]] {
        assert_eq!(b.command(CONTROL, table).unwrap(), ERR);
    }
    assert_eq!(gets(&mut b), [false, true]);
}
