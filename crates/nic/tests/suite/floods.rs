//! Tests of a guest that invents stations, or floods requests that no station answers, while two
//! others communicate.
#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::sync::mpsc;

use crate::guest::*;
use net::Reason;
use net::port::PortId;

/// Port and station of the flooding guest.
const LOUD: u8 = 4;
/// Frames that are sent at once.
const BATCH: u16 = 32;
/// Stations that are invented before the others send: more than the table holds (8,192).
const MADE_UP: u32 = 10_000;
/// Frames in each direction that must be received, and frames of a flood meanwhile.
const ROUNDS: usize = 100;
const FLOOD: u64 = 5000;

/// Most frames that are consumed at once: more than wait for buffers.
const TAKEN: u64 = 2048;

/// Generator of a flood's frames, each with another number.
type Flood = fn(u32) -> Vec<u8>;

/// Returns a frame from one unknown station to another.
fn made_up(number: u32) -> Vec<u8> {
    let mut frame = plain(0, 0, 60);
    let [dst, src] = [6u8, 10].map(|kind| [&[kind, 0][..], &number.to_be_bytes()].concat());
    frame[..12].copy_from_slice(&[dst, src].concat());
    frame
}

/// Returns a request for one of the pair, from another address each time.
fn question(number: u32) -> Vec<u8> {
    arp(LOUD, Ipv4Addr::from(number))
}

/// Sends several frames at once.
fn send(guest: &mut Guest, frames: impl Iterator<Item = Vec<u8>>) {
    let mut count = 0;
    for frame in frames {
        guest.tx.put(&[&NOTHING[..], &frame].concat(), &[]);
        count += 1;
    }
    guest.tx.publish();
    guest.tx.left(count);
}

/// Frames that a guest has received.
#[derive(Default)]
struct Received {
    frames: u64,
}

impl Received {
    /// Consumes the available frames, and posts the buffers again; returns those that are not of a
    /// flood.
    fn take(&mut self, guest: &mut Guest) -> Vec<Vec<u8>> {
        let mut quiet = Vec::new();
        // More frames may come meanwhile.
        for _ in 0..TAKEN {
            let Some(got) = guest.rx.got() else { break };
            guest.rx.post(got.buffers, 2048);
            self.frames += 1;
            if [station(1), station(2)].iter().any(|one| got.frame[6..12] == *one) {
                quiet.push(got.frame);
            }
        }
        quiet
    }
}

/// Fills the table with invented stations before the others send for the first time.
fn fill_the_table(loud: &mut Guest) {
    send(loud, [plain(EVERYBODY, LOUD, 60)].into_iter());
    for first in (0..MADE_UP).step_by(BATCH.into()) {
        let to_itself = |number: u32| {
            let mut frame = made_up(number);
            frame[..6].copy_from_slice(&station(LOUD));
            frame
        };
        send(loud, (first..first + u32::from(BATCH)).map(to_itself));
    }
}

/// Fills the table, then floods between the signals to begin and to end.
fn make_noise(lan: &Lan, flood: Flood, filled: &mpsc::Sender<()>, end: &mpsc::Receiver<()>) {
    let mut loud = Guest::new(lan, LOUD.into(), 0, all());
    fill_the_table(&mut loud);
    filled.send(()).unwrap();
    if end.recv().is_err() {
        return;
    }
    let mut next = MADE_UP;
    while end.try_recv() == Err(mpsc::TryRecvError::Empty) {
        send(&mut loud, (next..next + u32::from(BATCH)).map(flood));
        next = next.wrapping_add(BATCH.into());
    }
}

/// The flooding guest is on the first reactor with one of the pair; the other one and a bystander
/// are on the last.
fn a_pair_is_reached(reactors: usize, flood: Flood) {
    let lan = Lan::new(reactors);
    let last = reactors - 1;
    let mut a = Guest::new(&lan, 1, 0, all());
    let [mut b, mut c] = [2, 3].map(|port| Guest::new(&lan, port, last, all()));
    [&mut a, &mut b, &mut c].into_iter().for_each(|guest| guest.rx.post(RING, 2048));
    let mut received: [Received; 3] = Default::default();
    let [by_a, by_b, by_c] = &mut received;
    let (filled_tx, filled_rx) = mpsc::channel();
    std::thread::scope(|scope| {
        // The thread ends when this is dropped, even if an assertion fails.
        let (begin, end) = mpsc::channel();
        let lan = &lan;
        scope.spawn(move || make_noise(lan, flood, &filled_tx, &end));
        filled_rx.recv().unwrap();
        a.send(NOTHING, &plain(EVERYBODY, 1, 60));
        b.send(NOTHING, &plain(EVERYBODY, 2, 60));
        lan.settle();
        assert_eq!(by_c.take(&mut c).len(), 2, "who they are");
        begin.send(()).unwrap();
        let mut rounds = 0;
        while rounds < ROUNDS || lan.counts(LOUD.into()).sent_frames < u64::from(MADE_UP) + FLOOD {
            let ask = plain(2, 1, 60 + rounds % 1000);
            reaches(lan, &mut a, (&mut b, by_b), &ask);
            reaches(lan, &mut b, (&mut a, by_a), &plain(1, 2, ask.len()));
            assert_eq!(by_c.take(&mut c), [[0; 0]; 0], "it was flooded");
            rounds += 1;
            assert!(rounds < 100_000, "there is no flood");
        }
    });
    for (guest, (port, received)) in [a, b, c].iter_mut().zip((1..).zip(&mut received)) {
        lan.settle();
        loop {
            let waits = lan.fabric.queues(PortId(port))[0].waiting > 0;
            received.take(guest);
            if !waits {
                break;
            }
            lan.settle();
        }
        is_accounted_for(&lan, port, received.frames);
    }
    assert_eq!(lan.counts(3).missed(Reason::ReceiverClosed), 0);
}

/// Sends the frame until it is received: under a flood it may be dropped among the others.
fn reaches(lan: &Lan, from: &mut Guest, (to, received): (&mut Guest, &mut Received), frame: &[u8]) {
    let mut tries = 0;
    loop {
        from.send(NOTHING, frame);
        lan.settle();
        if received.take(to).iter().any(|one| one == frame) {
            return;
        }
        tries += 1;
        assert!(tries < 10_000, "it does not arrive");
    }
}

/// Checks that all broadcasts and frames to this port were received or counted as dropped.
fn is_accounted_for(lan: &Lan, port: u16, received: u64) {
    let counts = lan.counts(port);
    let missed: u64 = Reason::ALL.iter().map(|reason| counts.missed(*reason)).sum();
    let others = [1, 2, 4].into_iter().filter(|other| *other != port);
    let passed = |other| {
        let counts = lan.counts(other);
        let refused: u64 = Reason::ALL.iter().map(|reason| counts.refused(*reason)).sum();
        counts.sent_frames - refused
    };
    let mut sent: u64 = others.map(passed).sum();
    if port == 3 {
        // The bystander does not receive the frames between the pair, only their first broadcasts.
        sent = passed(LOUD.into()) + 2;
    }
    assert_eq!((counts.got_frames, counts.got_frames + missed), (received, sent), "of port {port}");
}

#[test]
fn made_up_stations_take_nobodys_place() {
    [1, 2].into_iter().for_each(|reactors| a_pair_is_reached(reactors, made_up));
}

#[test]
fn questions_to_everybody_hold_up_nobody() {
    [1, 2].into_iter().for_each(|reactors| a_pair_is_reached(reactors, question));
}
