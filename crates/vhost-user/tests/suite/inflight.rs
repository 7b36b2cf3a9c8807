//! In-flight regions: creation, adoption, refusal and reset.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::{AsFd, OwnedFd};

use crate::common::*;
use vhost_user::SessionEnd;
use vhost_user::features::PROTOCOL_FEATURES;

const GET: u32 = 31;
const SET: u32 = 32;

/// Encodes `mmap_size, mmap_offset, num_queues, queue_size`, with the padding of QEMU's compiler.
fn desc(size: u64, offset: u64, queues: u16, entries: u16) -> Vec<u8> {
    let mut bytes = words(&[size, offset]);
    bytes.extend([queues, entries, 0, 0].map(u16::to_ne_bytes).concat());
    bytes
}

/// Requests a region for all queues of 256 entries.
fn region(peer: &Peer) -> (Vec<u8>, OwnedFd) {
    peer.send(GET, PLAIN, &desc(0, 0, QUEUES, 256), &[]);
    let (code, payload, mut fds) = peer.receive_with_fds();
    assert_eq!((code, payload.len(), fds.len()), (GET, 24, 1));
    assert_eq!(payload[16..], desc(0, 0, QUEUES, 256)[16..]);
    (payload, fds.remove(0))
}

fn recorded(index: u16, next_avail: u16) -> [Event; 2] {
    [started(index, next_avail), Event::Recorded(index)]
}

#[test]
fn a_region_is_made_and_recorded_in_when_it_is_brought() {
    let peer = Peer::negotiated(FEATURES | PROTOCOL_FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    let (desc, fd) = region(&peer);
    let size = u64::from_ne_bytes(desc[..8].try_into().unwrap());
    assert!(rustix::fs::fstat(&fd).unwrap().st_size as u64 >= size && size >= 256 * 16);
    // The request only creates a region. It does not change the rings.
    peer.configure(0, &memory, &kick);
    peer.done(18, &state(0, 1), &[]);
    assert_eq!(peer.take(), [started(0, 5)]);
    // The session drains a running ring before it switches to another region.
    peer.done(SET, &desc, &[fd.as_fd()]);
    let [again, with_record] = recorded(0, 5 + SERVED);
    assert_eq!(peer.take(), [Event::Stop(0), again, with_record]);
    // This is the form of the specification, without padding.
    peer.done(SET, &desc[..20], &[fd.as_fd()]);
    peer.send(GET, PLAIN, &desc[..20], &[]);
    assert_eq!(peer.receive_with_fds().1.len(), 20);
}

#[test]
fn a_region_outlives_its_session() {
    let (memory, kick) = (memfd(0x1_0000), event());
    let first = Peer::negotiated(FEATURES | PROTOCOL_FEATURES);
    let (desc, fd) = region(&first);
    assert!(matches!(first.ended().0, Ok(SessionEnd::HungUp)));
    let second = Peer::negotiated(FEATURES | PROTOCOL_FEATURES);
    second.done(SET, &desc, &[fd.as_fd()]);
    second.configure(1, &memory, &kick);
    second.done(18, &state(1, 1), &[]);
    assert_eq!(second.take(), recorded(1, 5));
}

#[test]
fn a_region_that_the_device_has_no_use_for_is_not_made() {
    let peer = Peer::negotiated(FEATURES | PROTOCOL_FEATURES);
    for (queues, entries) in [(0, 256), (QUEUES + 1, 256), (u16::MAX, 1), (1, 0), (1, 1025)] {
        // QEMU and other front-ends read a region of no bytes as "there is none".
        assert_eq!(peer.ask(GET, &desc(0, 0, queues, entries)), [0; 24], "{queues} of {entries}");
    }
    assert_eq!(peer.ask(GET, &[0; 20]), [0; 20]);
    assert_eq!(peer.ask(GET, &[0; 23]), [0; 24]);
    assert_eq!(peer.ask(GET, &[]), [0; 24]);
    // The session continues.
    region(&peer);
}

#[test]
fn no_ring_starts_behind_a_record_that_was_refused() {
    let peer = Peer::negotiated(FEATURES | PROTOCOL_FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    let (good, fd) = region(&peer);
    let size = u64::from_ne_bytes(good[..8].try_into().unwrap());
    peer.configure(0, &memory, &kick);
    peer.done(18, &state(0, 1), &[]);
    peer.take();
    let short = memfd(64);
    let foreign = memfd(size);
    rustix::io::pwrite(&foreign, b"something else altogether", 0).unwrap();
    for (name, desc, fd) in [
        ("no queues", desc(size, 0, 0, 256), &fd),
        ("more queues than there are", desc(size, 0, QUEUES + 1, 256), &fd),
        ("queues too large", desc(size, 0, QUEUES, 2048), &fd),
        ("other queues than it was made for", desc(size, 0, 1, 256), &fd),
        ("not all of it", desc(size - 1, 0, QUEUES, 256), &fd),
        ("beyond its file", desc(size, 1 << 40, QUEUES, 256), &fd),
        ("at the end of all", desc(size, u64::MAX - 4, QUEUES, 256), &fd),
        ("of all bytes there are", desc(u64::MAX, 0, QUEUES, 256), &fd),
        ("a short file", desc(size, 0, QUEUES, 256), &short),
        ("somebody else's", desc(size, 0, QUEUES, 256), &foreign),
        ("no file", desc(size, 0, QUEUES, 256), &kick),
    ] {
        peer.refused(SET, &desc, &[fd.as_fd()]);
        peer.refused(18, &state(0, 1), &[]);
        assert!(peer.take().iter().all(|event| *event == Event::Stop(0)), "{name}");
    }
    // A usable region ends the refusal. A region without its descriptor starts it again.
    peer.done(SET, &good, &[fd.as_fd()]);
    assert_eq!(peer.take(), recorded(0, 5 + SERVED));
    for (bytes, fds) in [(24, &[][..]), (24, &[fd.as_fd(), fd.as_fd()]), (16, &[fd.as_fd()])] {
        peer.refused(SET, &good[..bytes], fds);
        peer.refused(18, &state(0, 1), &[]);
    }
    assert_eq!(peer.take(), [Event::Stop(0)]);
}

#[test]
fn a_reset_keeps_a_record_and_forgets_a_lost_one() {
    let peer = Peer::negotiated(FEATURES | PROTOCOL_FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    let (desc, fd) = region(&peer);
    let start = |peer: &Peer| {
        peer.done(34, &[], &[]);
        peer.done(2, &words(&[FEATURES | PROTOCOL_FEATURES]), &[]);
        peer.configure(0, &memory, &kick);
        peer.take();
        peer.done(18, &state(0, 1), &[]);
        peer.take()
    };
    peer.done(SET, &desc, &[fd.as_fd()]);
    assert_eq!(start(&peer), recorded(0, 5));
    assert_eq!(start(&peer), recorded(0, 5));
    peer.refused(SET, &desc, &[kick.as_fd()]);
    assert_eq!(start(&peer), [started(0, 5)]);
}

#[test]
fn no_ring_starts_that_the_region_is_not_for() {
    let peer = Peer::negotiated(FEATURES | PROTOCOL_FEATURES);
    let (memory, kick) = (memfd(0x1_0000), event());
    peer.send(GET, PLAIN, &desc(0, 0, 1, 256), &[]);
    let (_, small, mut fds) = peer.receive_with_fds();
    let fd = fds.remove(0);
    for index in [0, 1] {
        peer.configure(index, &memory, &kick);
    }
    // Without a region any queue starts.
    peer.done(18, &state(1, 1), &[]);
    assert_eq!(peer.take(), [started(1, 5)]);
    // Queues that the new region does not cover stop and do not start again.
    peer.done(SET, &small, &[fd.as_fd()]);
    peer.done(18, &state(0, 1), &[]);
    let [start, record] = recorded(0, 5);
    assert_eq!(peer.take(), [Event::Stop(1), start, record]);
    peer.refused(18, &state(1, 1), &[]);
    assert_eq!(peer.take(), []);
    // A region for all queues starts them.
    let (whole, fd) = region(&peer);
    peer.done(SET, &whole, &[fd.as_fd()]);
    let served = [recorded(0, 5 + SERVED), recorded(1, 5 + SERVED)].concat();
    assert_eq!(peer.take(), [&[Event::Stop(0)], &served[..]].concat());
}
