//! Tests of guests that break the rules, or try to.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::guest::*;
use net::Reason;
use net::frame::{FRAME_MAX, Frame};
use net::header::{Header, Offloads};
use net::port::PortId;
use nic::RingKind;
use virtq::driver::BUFFERS;

/// Returns the reasons for which a chain of these bytes is dropped.
fn refused(lan: &Lan, a: &mut Guest, bytes: &[u8]) -> Vec<Reason> {
    let before = lan.counts(1);
    a.tx.put(bytes, &[]);
    a.tx.publish();
    a.tx.left(1);
    let after = lan.counts(1);
    let more = |reason: &&Reason| after.refused(**reason) > before.refused(**reason);
    Reason::ALL.iter().filter(more).copied().collect()
}

#[test]
fn what_is_no_frame_is_refused_and_completed() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post(4, 2048);
    let with = |frame: &[u8]| [&NOTHING[..], frame].concat();
    let long = FRAME_MAX as usize + 1;
    for (bytes, reason) in [
        (vec![0], Reason::ShortHeader),
        (vec![0; 11], Reason::ShortHeader),
        (vec![0; 12], Reason::ShortFrame),
        (vec![0; 12 + 13], Reason::ShortFrame),
        (with(&plain(EVERYBODY, 1, 1515)), Reason::Oversize),
        (with(&plain(EVERYBODY, 1, long)), Reason::LongFrame),
        (with(&plain(EVERYBODY, EVERYBODY, 60)), Reason::BadSource),
        (
            [&[0, 1, 0, 0, 0xa8, 5][..], &[0; 6], &tcp(2, 1, &[0; 99])].concat(),
            Reason::GsoWithoutChecksum,
        ),
    ] {
        assert_eq!(refused(&lan, &mut a, &bytes), [reason], "{} bytes", bytes.len());
    }
    // Without any readable bytes.
    a.tx.offer(&[(BUFFERS, 100, true)]);
    a.tx.publish();
    a.tx.left(1);
    assert_eq!(lan.counts(1).refused(Reason::ShortHeader), 3);
    a.send(NOTHING, &plain(EVERYBODY, 1, 1514));
    assert_eq!(b.rx.receive().frame, plain(EVERYBODY, 1, 1514));
    assert_eq!(b.rx.got(), None);
}

#[test]
fn offloads_that_were_not_negotiated_are_refused() {
    let lan = Lan::new(1);
    let mut a = Guest::new(&lan, 1, 0, BARE);
    for header in [PARTIAL, cut(1000)] {
        let bytes = [&header[..], &tcp(EVERYBODY, 1, &data(3000))].concat();
        assert_eq!(refused(&lan, &mut a, &bytes), [Reason::NotNegotiated]);
    }
}

#[test]
fn garbage_in_headers_reaches_nobody_as_such() {
    let lan = Lan::new(2);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut near = Guest::new(&lan, 2, 0, all());
    let mut far = Guest::new(&lan, 3, 1, BARE);
    near.rx.post(RING, 70_000);
    far.rx.post(RING, 2048);
    let mut seed = 1u64;
    let mut random = move || {
        // Knuth's MMIX generator; its high bits are good.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u32
    };
    for _ in 0..3000 {
        let mut bytes =
            [&cut(500)[..], &tcp(EVERYBODY, 1, &data(random() as usize % 4000))].concat();
        for _ in 0..random() % 4 {
            let at = random() as usize % 70;
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random() as u8;
            }
        }
        a.tx.put(&bytes, &[random() as usize % 140]);
        a.tx.publish();
        a.tx.left(1);
        lan.settle();
        for (guest, takes) in [(&mut near, Offloads::KERNEL), (&mut far, Offloads::default())] {
            while let Some(got) = guest.rx.got() {
                let frame = Frame::parse(&got.frame, got.frame.len()).unwrap();
                Header::parse(&got.header, &frame, takes).unwrap();
                let bytes = if takes == Offloads::default() { 2048 } else { 70_000 };
                guest.rx.post(got.buffers, bytes);
            }
        }
    }
    let counts = lan.counts(1);
    let refused: u64 = Reason::ALL.iter().map(|reason| counts.refused(*reason)).sum();
    assert_eq!(counts.sent_frames, 3000);
    let got = [2, 3].map(|port| lan.counts(port).got_frames);
    assert!(refused > 100 && got.iter().all(|frames| *frames > 100), "{refused} refused, {got:?}");
}

#[test]
fn a_broken_ring_is_told_and_harms_nobody_else() {
    let lan = Lan::new(1);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|port| Guest::new(&lan, port, 0, all()));
    c.rx.post(8, 2048);
    let frame = plain(EVERYBODY, 1, 60);
    b.tx.driver.jump(RING + 1);
    b.tx.kick();
    b.tx.wait_for_error();
    b.rx.driver.jump(RING + 1);
    a.send(NOTHING, &frame);
    b.rx.wait_for_error();
    a.send(NOTHING, &frame);
    assert_eq!(lan.counts(2).missed(Reason::ReceiverClosed), 2);
    for _ in 0..2 {
        assert_eq!(c.rx.receive().frame, frame);
    }
    let broken = lan.fabric.broken_rings(PortId(2));
    let kinds: Vec<_> = broken.iter().map(|(index, kind, _)| (*index, *kind)).collect();
    assert_eq!(kinds, [(0, RingKind::Receive), (1, RingKind::Transmit)]);
    assert!(broken.iter().all(|(.., one)| one.cause.contains("jumped from 0 to")), "{broken:?}");
    assert_eq!(lan.fabric.broken_ring_count(PortId(2)), 2);
    assert_eq!((b.tx.stop(), b.rx.stop()), (0, 0));
    lan.fabric.clear_broken_rings(PortId(2), Some(0));
    assert_eq!(lan.fabric.broken_rings(PortId(2)).len(), 1);
    lan.fabric.clear_broken_rings(PortId(2), None);
    assert!(lan.fabric.broken_rings(PortId(2)).is_empty());
}

#[test]
fn a_bad_buffer_behind_good_ones_is_no_frame_that_came() {
    let lan = Lan::new(1);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|port| Guest::new(&lan, port, 0, all()));
    c.rx.post(8, 2048);
    b.rx.post(2, 2048);
    b.rx.post(1, 0);
    let frame = plain(EVERYBODY, 1, 60);
    a.send(NOTHING, &frame);
    b.rx.wait_for_error();
    assert_eq!(c.rx.receive().frame, frame);
    let counts = lan.counts(2);
    assert_eq!((counts.got_frames, counts.missed(Reason::ReceiverClosed)), (0, 1));
}

/// Guest address outside memory, as of a DIMM that was added later and is not shared.
const DIMM: u64 = 1 << 40;

#[test]
fn a_frame_outside_memory_is_dropped_and_the_next_one_goes() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post(8, 2048);
    let frame = plain(EVERYBODY, 1, 60);
    for chain in [
        &[(DIMM, 72, false)][..],
        &[(BUFFERS, 12, false), (DIMM, 60, false)],
        &[(DIMM, 12, false), (BUFFERS, 60, false)],
        &[(BUFFERS, 72, false), (DIMM, 60, true)],
    ] {
        a.tx.offer(chain);
        a.send(NOTHING, &frame);
        assert_eq!(a.tx.used().1, 0, "{chain:?}");
        assert_eq!(b.rx.receive().frame, frame);
    }
    let counts = lan.counts(1);
    assert_eq!((counts.refused(Reason::OutsideMemory), counts.sent_frames), (4, 8));
    assert_eq!(lan.fabric.queues(PortId(1))[0].sent.drops(Reason::OutsideMemory), 4);
    assert_eq!(lan.fabric.broken_ring_count(PortId(1)), 0);
}

#[test]
fn buffers_outside_memory_come_back_empty_and_others_are_filled() {
    for bits in [all(), BARE] {
        let lan = Lan::new(1);
        let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, bits));
        let frame = plain(EVERYBODY, 1, 60);
        // More than are popped at once.
        (0..40).for_each(|_| b.rx.offer_at(DIMM, 2048));
        b.rx.post(1, 2048);
        (0..3).for_each(|_| b.rx.offer_at(DIMM, 2048));
        b.rx.publish();
        a.send(NOTHING, &frame);
        (0..40).for_each(|_| assert_eq!(b.rx.used().1, 0));
        assert_eq!(b.rx.receive().frame, frame);
        // A frame that finds no others waits for one. The guest gets those back before.
        a.send(NOTHING, &frame);
        (0..3).for_each(|_| assert_eq!(b.rx.used().1, 0));
        b.rx.offer_at(DIMM, 2048);
        b.rx.publish();
        assert_eq!(b.rx.used().1, 0, "it comes back while the frame waits");
        b.rx.post(1, 2048);
        assert_eq!(b.rx.receive().frame, frame);
        let counts = lan.counts(2);
        assert_eq!((counts.got_frames, lan.fabric.broken_ring_count(PortId(2))), (2, 0));
        assert_eq!((b.rx.stop(), b.rx.driver.used_idx()), (46, 46));
    }
}

#[test]
fn a_buffer_outside_memory_between_those_of_a_frame_has_nothing_of_it() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post(1, 500);
    b.rx.offer_at(DIMM, 500);
    // Its last byte is in memory.
    b.rx.offer(&[(DIMM, 500, true), (BUFFERS, 1, true)]);
    b.rx.post(1, 2048);
    let frame = plain(EVERYBODY, 1, 1000);
    a.send(NOTHING, &frame);
    let got = b.rx.receive();
    assert_eq!((got.buffers, got.frame), (4, frame));
}

#[test]
fn memory_that_is_cut_off_ends_its_own_session_only() {
    let lan = Lan::new(1);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post(8, 2048);
    c.rx.post(8, 2048);
    let frame = plain(EVERYBODY, 1, 1000);
    a.send(NOTHING, &frame);
    assert_eq!(b.rx.receive().frame, frame);
    rustix::fs::ftruncate(b.rx.driver.mapping().fd().unwrap(), 0).unwrap();
    a.send(NOTHING, &frame);
    b.rx.wait_for_fault(&lan);
    assert!(a.tx.faults.lock().unwrap().is_empty() && c.rx.faults.lock().unwrap().is_empty());
    a.send(NOTHING, &frame);
    for _ in 0..3 {
        assert_eq!(c.rx.receive().frame, frame);
    }
}

#[test]
fn a_frame_does_not_become_any_number_of_segments() {
    let lan = Lan::new(1);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut b = Guest::new(&lan, 2, 0, BARE);
    b.rx.post(RING, 2048);
    // Flooded, as station B is unknown: 65 segments of 1,000 bytes, then 64.
    a.send(cut(1000), &tcp(EVERYBODY, 1, &data(65_000)));
    a.send(cut(1000), &tcp(EVERYBODY, 1, &data(64_000)));
    for _ in 0..64 {
        assert!(is_sound(&b.rx.receive().frame));
    }
    b.rx.post(64, 2048);
    b.send(NOTHING, &plain(EVERYBODY, 2, 60));
    // To B alone.
    a.send(cut(8), &tcp(2, 1, &data(1401 * 8)));
    a.send(cut(1000), &tcp(2, 1, &data(65_000)));
    for _ in 0..65 {
        assert!(is_sound(&b.rx.receive().frame));
    }
    assert_eq!(b.rx.got(), None);
    assert_eq!(lan.counts(2).missed(Reason::ManySegments), 2);
}

/// Neither guest can post more before it receives a frame: a driver whose ring is full, and one
/// that waits for a frame before it posts.
#[test]
fn a_frame_that_never_fits_holds_nobody_up() {
    for posted in [RING, RING / 2] {
        let lan = Lan::new(1);
        let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
        b.rx.post(posted, 500);
        let (large, small) = (tcp(EVERYBODY, 1, &data(65_000)), plain(EVERYBODY, 1, 60));
        a.send(cut(1000), &large);
        let began = Instant::now();
        for _ in 0..20 {
            a.send(NOTHING, &small);
        }
        for _ in 0..20 {
            assert_eq!(b.rx.receive().frame, small);
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        lan.settle();
        let reason = if posted == RING { Reason::SmallBuffer } else { Reason::NoBuffer };
        assert_eq!(lan.counts(2).missed(reason), 1, "of {posted} buffers");
    }
}

#[test]
fn buffers_of_a_byte_are_filled_when_there_are_enough() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post(40, 1);
    b.rx.post(1, 2048);
    for _ in 0..10 {
        a.send(NOTHING, &plain(EVERYBODY, 1, 60));
    }
    assert_eq!(lan.counts(2).got_frames, 10, "nine of them wait");
    let used: Vec<_> = (0..41).map(|_| b.rx.used().1).collect();
    assert_eq!(used, [vec![1; 40], vec![12 + 60 - 40]].concat());
    b.rx.post(9, 2048);
    for _ in 1..10 {
        assert_eq!(b.rx.receive().frame, plain(EVERYBODY, 1, 60));
    }
    assert_eq!(lan.counts(2).missed(Reason::NoBuffer), 0);
}

/// Otherwise other queues of its reactor would have to wait.
#[test]
fn a_frame_is_copied_to_so_many_pieces_and_no_more() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post_scattered(RING, 1024);
    let full = plain(EVERYBODY, 1, 1500);
    for _ in 0..3 {
        a.send(NOTHING, &full);
        let got = b.rx.receive();
        assert_eq!((got.buffers, got.frame), (2, full.clone()));
        // The frame needs 64 of those buffers, which are available.
        a.send(cut(1000), &tcp(EVERYBODY, 1, &data(65_000)));
    }
    a.send(NOTHING, &full);
    assert_eq!(b.rx.receive().frame, full);
    assert_eq!(lan.counts(2).missed(Reason::SmallBuffer), 3);
}

#[test]
fn what_waits_for_a_guest_that_posts_nothing_waits_for_ten_seconds() {
    let lan = Lan::new(1);
    let [mut a, _b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    (0..5).for_each(|_| a.send(NOTHING, &plain(EVERYBODY, 1, 60)));
    let waiting = || lan.fabric.queues(PortId(2))[0].waiting;
    assert_eq!(waiting(), 5);
    let until = Instant::now() + Duration::from_secs(60);
    while waiting() > 0 {
        assert!(Instant::now() < until, "they wait on");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(lan.counts(2).missed(Reason::NoBuffer), 5);
}

/// All of the chain's pieces are the same memory.
#[test]
fn a_chain_that_says_it_has_more_than_a_frame_may_counts_as_the_longest_one() {
    let lan = Lan::new(1);
    let mut a = Guest::new(&lan, 1, 0, all());
    a.tx.offer(&[(BUFFERS, 16 << 20, false); 4]);
    a.tx.publish();
    a.tx.left(1);
    let counts = lan.counts(1);
    assert_eq!(counts.refused(Reason::LongFrame), 1);
    assert_eq!(counts.sent_bytes, u64::from(FRAME_MAX));
    assert_eq!(lan.fabric.queues(PortId(1))[0].sent.bytes, u64::from(FRAME_MAX));
}
