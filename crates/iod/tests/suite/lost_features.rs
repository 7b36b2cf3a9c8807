//! NIC front-ends that do not know which features their driver accepted.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::common::frames::*;
use crate::common::*;
use testkit::process::eventually;
use testkit::raw::nic::PLAIN;
use testkit::raw::{Guest, Setup};

/// Header of a driver that leaves the checksum of [`datagram`] to the receiver: the flag, the offset
/// of the UDP header in the frame, and that of the checksum in it.
const PARTIAL: [u8; 12] = [1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 0, 0];

/// Starts such a front-end, whose driver may use all features or none.
fn forgetful(io: &Io, id: &str) -> Guest {
    let setup = Setup { queues: 2, features: 0, ..Setup::default() };
    let mut guest = Guest::start(&io.socket(id), &setup).unwrap();
    guest.post_buffers(0, 64, 2048).unwrap();
    guest
}

/// Returns whether the device requests a kick for the next frame, by event and by flags.
fn is_armed(guest: &Guest) -> bool {
    let ring = &guest.queues[1].ring;
    let event = ring.avail_event(&guest.memory).unwrap();
    event == ring.avail_idx && ring.used_flags(&guest.memory).unwrap() == 0
}

#[test]
fn drivers_whose_features_are_lost_are_served() {
    let mut io = Io::start();
    (1..).zip(["a", "b"]).for_each(|(number, id)| attach(&io, id, "lan", number));
    let (mut a, mut b) = (forgetful(&io, "a"), guest(&io.socket("b"), 1));
    talk(&mut a, &mut b, |a| eventually("the ring rests", || is_armed(a)));
    // The driver may leave checksums to others. None are left to it.
    a.send_frame(0, &PARTIAL, &datagram(7)).unwrap();
    assert_eq!(b.receive_frame(0, SOON).unwrap().unwrap().bytes, datagram(7));
    b.send_frame(0, &PARTIAL, &datagram(7)).unwrap();
    let whole = a.receive_frame(0, SOON).unwrap().unwrap();
    assert_eq!(whole.header, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], "one buffer, nothing left");
    assert_ne!(whole.bytes[40..42], [0, 0], "the checksum is missing");
    a.send_frame(0, &PLAIN, &frame(2, 1, "it lives")).unwrap();
    let log = io.process.stderr();
    assert!(log.contains("does not know which features its driver accepted"), "{log}");
}
