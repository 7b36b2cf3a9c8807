//! Tests of frames between guests on one reactor.
#![allow(clippy::unwrap_used)]

use crate::guest::*;
use net::Reason;
use net::features::feature;
use net::header::HEADER_BYTES;
use net::port::{PortId, PortPolicy, Vlan, VlanId};

#[test]
fn frames_go_to_whom_they_are_for() {
    let lan = Lan::new(1);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|port| Guest::new(&lan, port, 0, all()));
    [&mut a, &mut b, &mut c].into_iter().for_each(|guest| guest.rx.post(8, 2048));
    let hello = plain(EVERYBODY, 1, 100);
    a.send(NOTHING, &hello);
    for guest in [&mut b, &mut c] {
        let got = guest.rx.receive();
        assert_eq!((got.frame, got.buffers), (hello.clone(), 1));
        assert_eq!(got.header[..10], [0; 10]);
    }
    assert_eq!(a.rx.got(), None);
    let answer = plain(1, 2, 1400);
    b.send(NOTHING, &answer);
    assert_eq!(a.rx.receive().frame, answer);
    a.send(NOTHING, &plain(2, 1, 60));
    assert_eq!(b.rx.receive().frame, plain(2, 1, 60));
    // Frames are published to the receivers before the sender's chains complete.
    assert_eq!(c.rx.got(), None);
    let counts = lan.counts(1);
    assert_eq!((counts.sent_frames, counts.sent_bytes), (2, 160));
    assert_eq!((counts.got_frames, counts.got_bytes), (1, 1400));
}

#[test]
fn chains_may_be_cut_anywhere() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    for cuts in [&[][..], &[1], &[12], &[5, 12, 26], &[13, 139, 141], &[140], &[12, 140, 700]] {
        b.rx.post(1, 2048);
        let frame = plain(EVERYBODY, 1, 1000);
        a.tx.put(&[&NOTHING[..], &frame].concat(), cuts);
        a.tx.publish();
        a.tx.left(1);
        assert_eq!(b.rx.receive().frame, frame, "{cuts:?}");
    }
}

#[test]
fn a_large_frame_is_spread_over_small_buffers() {
    let lan = Lan::new(1);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|port| Guest::new(&lan, port, 0, all()));
    for (header, large) in [
        (cut(1448), tcp(EVERYBODY, 1, &data(30_000))),
        (cut6(1428), tcp6(EVERYBODY, 1, &data(65_000))),
    ] {
        b.rx.post(44, 1526);
        c.rx.post(1, 70_000);
        a.send(header, &large);
        let got = b.rx.receive();
        assert_eq!(usize::from(got.buffers), (HEADER_BYTES + large.len()).div_ceil(1526));
        assert_eq!((&got.header[..10], &got.frame), (&header[..10], &large));
        // Frames that one guest has consumed are still there for the other.
        let got = c.rx.receive();
        assert_eq!((got.buffers, got.frame), (1, large));
    }
}

#[test]
fn headers_are_cut_where_buffers_end() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.post(1, 13);
    b.rx.post(40, 7);
    a.send(NOTHING, &plain(EVERYBODY, 1, 60));
    let got = b.rx.receive();
    assert_eq!((got.buffers, got.frame), (1 + 59u16.div_ceil(7), plain(EVERYBODY, 1, 60)));
}

#[test]
fn without_mergeable_buffers_a_frame_needs_a_whole_one() {
    let lan = Lan::new(1);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut b = Guest::new(&lan, 2, 0, BARE);
    for bytes in [2048, 60, 2048] {
        b.rx.post(1, bytes);
    }
    let large = plain(EVERYBODY, 1, 1000);
    a.send(NOTHING, &large);
    assert_eq!(b.rx.receive().frame, large);
    a.send(NOTHING, &large);
    assert_eq!((b.rx.got(), lan.counts(2).missed(Reason::SmallBuffer)), (None, 1));
    for frame in [&plain(EVERYBODY, 1, 40), &large] {
        a.send(NOTHING, frame);
        let got = b.rx.receive();
        assert_eq!((&got.frame, got.buffers), (frame, 1));
    }
}

/// Most frames that wait for buffers.
const WAITING: u64 = 1024;

#[test]
fn who_posts_no_buffers_loses_his_own_frames() {
    for reactor in [0, 1] {
        let lan = Lan::new(2);
        let mut a = Guest::new(&lan, 1, 0, all());
        let [mut b, mut c] = [2, 3].map(|port| Guest::new(&lan, port, reactor, all()));
        let missed = |port| lan.counts(port).missed(Reason::NoBuffer);
        let frame = |number: u64| plain(EVERYBODY, 1, 60 + number as usize % 900);
        for number in 0..WAITING + 50 {
            assert!(!c.rx.post_and_kick(1, 2048), "a kick although nothing waits");
            a.send(NOTHING, &frame(number));
            assert_eq!(c.rx.receive().frame, frame(number));
        }
        lan.settle();
        assert_eq!((missed(2), missed(3)), (50, 0));
        let queue = || lan.fabric.queues(PortId(2)).swap_remove(0);
        assert_eq!((queue().waited, queue().waiting, queue().got.frames), (WAITING, WAITING, 0));
        // Waiting frames come in order, and later frames are not lost.
        assert!(b.rx.post_and_kick(8, 2048), "no kick for what waits");
        for number in 0..WAITING {
            let got = b.rx.receive();
            assert_eq!(got.frame, frame(number), "frame {number}");
            b.rx.post(1, 2048);
        }
        a.send(NOTHING, &frame(7));
        assert_eq!(b.rx.receive().frame, frame(7));
        assert_eq!((missed(2), lan.counts(2).got_frames), (50, WAITING + 1));
        lan.settle();
        assert_eq!((queue().waiting, queue().got.frames), (0, WAITING + 1));
    }
}

#[test]
fn what_waits_is_first_and_may_be_spread() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    let [large, small] = [500, 60].map(|bytes| plain(EVERYBODY, 1, bytes));
    a.send(NOTHING, &large);
    a.send(NOTHING, &small);
    lan.settle();
    assert!(b.rx.post_and_kick(7, 100));
    assert_eq!((b.rx.receive().frame, b.rx.receive().frame), (large, small));
    assert!(!b.rx.post_and_kick(1, 100), "nothing waits any more");
}

#[test]
fn what_waits_for_a_queue_without_kicks_is_lost() {
    let lan = Lan::new(1);
    let [mut a, mut b] = [1, 2].map(|port| Guest::new(&lan, port, 0, all()));
    b.rx.stop();
    b.rx.start_deaf(&lan, 0, b.port_incarnation);
    a.send(NOTHING, &plain(EVERYBODY, 1, 60));
    assert_eq!(lan.counts(2).missed(Reason::NoBuffer), 1);
    b.rx.post(1, 2048);
    a.send(NOTHING, &plain(EVERYBODY, 1, 61));
    assert_eq!(b.rx.receive().frame, plain(EVERYBODY, 1, 61));
}

#[test]
fn a_batch_is_one_call_for_each_queue() {
    let small = |more: usize| (NOTHING, plain(EVERYBODY, 1, 60 + more));
    // Each takes several buffers, and together they are below the budget of a turn.
    let large = |more: usize| (cut(1448), tcp(EVERYBODY, 1, &data(5000 + more)));
    let frames = |one: &dyn Fn(usize) -> _| (0..30).map(one).collect::<Vec<_>>();
    for reactors in [1, 2] {
        is_one_batch(reactors, &frames(&small), 1);
        is_one_batch(reactors, &frames(&large), 3);
    }
}

/// Sends frames that take `buffers` buffers each at once, to a guest on the last reactor.
fn is_one_batch(reactors: usize, frames: &[([u8; HEADER_BYTES], Vec<u8>)], buffers: u16) {
    let lan = Lan::new(reactors);
    // Without event indices each publication is a call.
    let [mut a, mut b] = [(1, 0), (2, reactors - 1)]
        .map(|(port, reactor)| Guest::new(&lan, port, reactor, all() & !feature::EVENT_IDX));
    b.rx.post(RING, 2048);
    for (header, frame) in frames {
        a.tx.put(&[&header[..], frame].concat(), &[]);
    }
    a.tx.publish();
    a.tx.left(frames.len() as u16);
    for (_, frame) in frames {
        let got = b.rx.receive();
        assert_eq!((&got.frame, got.buffers), (frame, buffers));
    }
    lan.settle();
    let calls = (a.tx.calls(), b.rx.calls(), a.rx.calls(), b.tx.calls());
    assert_eq!(calls, (1, 1, 0, 0), "{reactors} reactors, {buffers} buffers a frame");
}

#[test]
fn what_a_receiver_does_not_take_is_finished() {
    let lan = Lan::new(1);
    let mut a = Guest::new(&lan, 1, 0, all());
    let mut b = Guest::new(&lan, 2, 0, BARE | feature::MRG_RXBUF);
    b.rx.post(64, 2048);
    let (sent, sent6) = (data(5000), data(65_000));
    a.send(cut(1448), &tcp(EVERYBODY, 1, &sent));
    comes_in_segments(&mut b, DATA_AT, 1448, &sent);
    a.send(cut6(1428), &tcp6(EVERYBODY, 1, &sent6));
    comes_in_segments(&mut b, DATA6_AT, 1428, &sent6);
    assert_eq!(b.rx.got(), None);
    for (header, small, sum_at) in [
        (PARTIAL, tcp(EVERYBODY, 1, &data(333)), TCP_AT + 16),
        (PARTIAL6, tcp6(EVERYBODY, 1, &data(333)), TCP6_AT + 16),
    ] {
        a.send(header, &small);
        let got = b.rx.receive();
        assert!(is_sound(&got.frame) && !is_sound(&small));
        let others = |frame: &[u8]| [&frame[..sum_at], &frame[sum_at + 2..]].concat();
        assert_eq!((&got.header[..10], others(&got.frame)), (&[0; 10][..], others(&small)));
    }
    assert_eq!(lan.counts(2).got_frames, 4 + 46 + 2);
}

/// Checks that a guest without offloads receives this data in valid segments of this size.
fn comes_in_segments(guest: &mut Guest, data_at: usize, bytes: usize, data: &[u8]) {
    for part in data.chunks(bytes) {
        let got = guest.rx.receive();
        assert_eq!((&got.header[..10], &got.frame[data_at..]), (&[0; 10][..], part));
        assert!(is_sound(&got.frame));
    }
}

#[test]
fn one_kind_of_tcp_may_be_taken_whole_and_the_other_cut() {
    let lan = Lan::new(1);
    let mut a = Guest::new(&lan, 1, 0, all());
    let [tso4, tso6] = [feature::GUEST_TSO4, feature::GUEST_TSO6];
    let some = |port, kind| {
        Guest::new(&lan, port, 0, BARE | feature::MRG_RXBUF | feature::GUEST_CSUM | kind)
    };
    let (mut four, mut six) = (some(2, tso4), some(3, tso6));
    [&mut four, &mut six].into_iter().for_each(|guest| guest.rx.post(64, 2048));
    let (sent, sent6) = (data(5000), data(6000));
    a.send(cut(1448), &tcp(EVERYBODY, 1, &sent));
    a.send(cut6(1428), &tcp6(EVERYBODY, 1, &sent6));
    assert_eq!(four.rx.receive().frame, tcp(EVERYBODY, 1, &sent));
    comes_in_segments(&mut four, DATA6_AT, 1428, &sent6);
    comes_in_segments(&mut six, DATA_AT, 1448, &sent);
    assert_eq!(six.rx.receive().frame, tcp6(EVERYBODY, 1, &sent6));
}

/// Returns the policy of an access port for that VLAN.
fn access(number: u16) -> PortPolicy {
    PortPolicy { vlan: Vlan::Access(VlanId::try_from(number).unwrap()), ..PortPolicy::open(LAN) }
}

#[test]
fn a_frame_is_cut_for_a_trunk_with_a_tag_in_each_piece() {
    let lan = Lan::new(1);
    let mut a = Guest::with(&lan, 1, 0, all(), &access(7));
    let mut b = Guest::new(&lan, 2, 0, all());
    let mut bare = Guest::new(&lan, 3, 0, BARE);
    [&mut b, &mut bare].into_iter().for_each(|guest| guest.rx.post(16, 2048));
    let tag = [0x81, 0, 0, 7];
    let (sent, sent6) = (data(5000), data(3000));
    for (header, frame, data_at, size, sent) in [
        (cut(1448), tcp(EVERYBODY, 1, &sent), DATA_AT, 1448, &sent),
        (cut6(1428), tcp6(EVERYBODY, 1, &sent6), DATA6_AT, 1428, &sent6),
    ] {
        a.send(header, &frame);
        let whole = b.rx.receive();
        assert_eq!(whole.frame, [&frame[..12], &tag, &frame[12..]].concat());
        let moved = [2, 6].map(|at| whole.header[at] - header[at]);
        assert_eq!(moved, [4, 4], "headers are longer by the tag, and the checksum later");
        for part in sent.chunks(size) {
            let got = bare.rx.receive();
            assert_eq!((&got.header[..10], &got.frame[12..16]), (&[0; 10][..], &tag[..]));
            let untagged = [&got.frame[..12], &got.frame[16..]].concat();
            assert!(is_sound(&untagged) && untagged[data_at..] == *part);
        }
    }
    assert_eq!(bare.rx.got(), None);
}

#[test]
fn tags_are_put_in_and_taken_out() {
    let lan = Lan::new(1);
    let mut a = Guest::with(&lan, 1, 0, all(), &access(7));
    let mut b = Guest::new(&lan, 2, 0, all());
    let mut bare = Guest::new(&lan, 3, 0, BARE);
    let mut other = Guest::with(&lan, 4, 0, all(), &access(8));
    [&mut a, &mut b, &mut bare, &mut other].into_iter().for_each(|guest| guest.rx.post(8, 2048));
    let frame = tcp(EVERYBODY, 1, &data(300));
    a.send(PARTIAL, &frame);
    let got = b.rx.receive();
    let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
    // The checksum is four bytes later.
    assert_eq!((&got.frame, got.header[6]), (&tagged, TCP_AT as u8 + 4));
    let finished = bare.rx.receive().frame;
    assert!(is_sound(&[&finished[..12], &finished[16..]].concat()));
    assert_eq!(other.rx.got(), None);
    // In the other direction.
    let answer = [&station(1)[..], &station(2), &[0x81, 0, 0, 7], &plain(1, 2, 90)[12..]].concat();
    b.send(NOTHING, &answer);
    assert_eq!(a.rx.receive().frame, plain(1, 2, 90));
}
