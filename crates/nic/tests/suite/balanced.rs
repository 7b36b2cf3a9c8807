//! Tests that flows that collide on a guest's queue move to other queues, in order and without
//! loss.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::guest::*;
use net::features::AcceptedFeatures;
use net::port::PortId;
use nic::PortIncarnation;

const QUEUES: u16 = 4;
const FLOWS: u64 = 8;
/// Frames in flight when a device is reset.
const UNDER_WAY: u16 = 24;
/// Rounds between two checks.
const ROUNDS: u64 = 64;
const SOON: Duration = Duration::from_secs(60);
/// Behaviour of a guest after each burst.
struct Habit {
    /// Bursts between two checks.
    bursts: u64,
    /// Frames of each flow in a burst: less than 1 MiB in 100 ms is not worth a move.
    frames: u64,
    /// Delay before the guest consumes them.
    late: Duration,
    /// Pause after that, without frames.
    pause: Duration,
}
const HABITS: [Habit; 2] = [
    Habit { bursts: ROUNDS, frames: 1, late: Duration::ZERO, pause: Duration::from_millis(4) },
    Habit {
        bursts: 4,
        frames: 3,
        late: Duration::from_millis(50),
        pause: Duration::from_millis(150),
    },
];

/// Returns a large frame of the flow with this source port, with a number in its data.
fn frame(port: u16, number: u64) -> Vec<u8> {
    let mut frame = tcp(2, 1, &data(60_000));
    frame[TCP_AT..TCP_AT + 2].copy_from_slice(&port.to_be_bytes());
    frame[DATA_AT..DATA_AT + 8].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Returns source ports of flows with different buckets, all of the first queue.
fn colliding() -> Vec<u16> {
    let mut buckets = Vec::new();
    let all = (33_000..60_000).filter(|port| {
        let bucket = bucket(&frame(*port, 0));
        let fits = bucket.is_multiple_of(usize::from(QUEUES)) && !buckets.contains(&bucket);
        if fits {
            buckets.push(bucket);
        }
        fits
    });
    all.take(FLOWS as usize).collect()
}

/// Guest with several queues, spread over the reactors.
struct Receiver {
    queues: Vec<Ring>,
    features: AcceptedFeatures,
    /// Last number of each flow.
    seen: HashMap<u16, u64>,
    /// Frames of each queue since the last check.
    counts: Vec<u64>,
}

impl Receiver {
    fn new(lan: &Lan) -> Self {
        let mut guest = Guest::new(lan, 2, 0, all());
        // The switch learns the station's port.
        guest.send(NOTHING, &plain(EVERYBODY, 2, 60));
        let Guest { features, port_incarnation, rx, .. } = guest;
        let mut queues = vec![rx];
        for pair in 1..QUEUES {
            let mut ring = Ring::new(2 * pair, true);
            ring.start(lan, usize::from(pair) % lan.reactors.len(), port_incarnation);
            queues.push(ring);
        }
        queues.iter_mut().for_each(|ring| ring.post(RING, 70_000));
        let counts = vec![0; queues.len()];
        Self { queues, features, seen: HashMap::new(), counts }
    }

    /// Resets the device: all queues stop, and start again at their current index.
    fn reset(&mut self, lan: &Lan) {
        let next: Vec<_> = self.queues.iter_mut().map(Ring::stop).collect();
        let port_incarnation = PortIncarnation::driver(PortId(2), self.features);
        for (pair, (ring, next)) in self.queues.iter_mut().zip(next).enumerate() {
            ring.start_at(lan, pair % lan.reactors.len(), port_incarnation, next);
        }
    }

    /// Consumes the remaining frames of the former incarnation without checks.
    fn forget(&mut self) {
        self.seen.clear();
        for ring in &mut self.queues {
            while ring.got().is_some() {
                ring.post(1, 70_000);
            }
        }
        self.counts.fill(0);
    }

    /// Consumes the received frames, and reports that to the device.
    fn take(&mut self) {
        for (ring, count) in self.queues.iter_mut().zip(&mut self.counts) {
            while let Some(got) = ring.got() {
                let port = u16::from_be_bytes([got.frame[TCP_AT], got.frame[TCP_AT + 1]]);
                let number = got.frame[DATA_AT..].first_chunk().unwrap();
                let number = u64::from_be_bytes(*number);
                let last = self.seen.insert(port, number);
                assert!(last.is_none_or(|last| last < number), "{port}: {number} after {last:?}");
                *count += 1;
                ring.post(1, 70_000);
            }
        }
    }

    /// Returns whether the most loaded queue is within a quarter of the mean.
    fn is_even(&mut self) -> bool {
        let most = *self.counts.iter().max().unwrap();
        let all: u64 = self.counts.iter().sum();
        self.counts.fill(0);
        all > 0 && most * u64::from(QUEUES) * 4 <= all * 5
    }
}

/// Sends rounds of frames of all flows until they are even at the receiver. Never sends more than
/// the link between the reactors holds, in case the second one does not run for a while.
fn part_ways(lan: &Lan, a: &mut Guest, b: &mut Receiver, ports: &[u16], number: &mut u64) {
    let until = Instant::now() + SOON;
    loop {
        for _ in 0..ROUNDS {
            for port in ports {
                *number += 1;
                a.send(cut(1448), &frame(*port, *number));
                b.take();
            }
            lan.settle();
        }
        if b.is_even() {
            break;
        }
        assert!(Instant::now() < until, "they stay where they collide");
    }
}

#[test]
fn elephants_leave_the_queue_on_which_they_collide() {
    for reactors in [1, 2] {
        let lan = Lan::new(reactors);
        let mut a = Guest::new(&lan, 1, 0, all());
        let mut b = Receiver::new(&lan);
        let ports = colliding();
        assert_eq!(ports.len() as u64, FLOWS);
        let mut number = 0;
        part_ways(&lan, &mut a, &mut b, &ports, &mut number);
        assert!(lan.fabric.moves(PortId(2)) >= 4);
        lan.settle();
        b.take();
        assert_eq!(lan.counts(2).got_frames, number, "some were lost: {:?}", lan.counts(2));
    }
}

#[test]
fn a_receiver_of_flows_that_were_moved_is_reset_under_load() {
    for reactors in [1, 2] {
        let lan = Lan::new(reactors);
        let mut a = Guest::new(&lan, 1, 0, all());
        let mut b = Receiver::new(&lan);
        let ports = colliding();
        let (mut number, mut sent, mut before, mut moved) = (0, 0, 0, 0);
        for life in 0..4 {
            part_ways(&lan, &mut a, &mut b, &ports, &mut number);
            lan.settle();
            b.take();
            sent += number - before;
            assert_eq!(b.seen.len() as u64, FLOWS, "life {life}");
            // Each driver begins with flows that collide.
            let moves = lan.fabric.moves(PortId(2));
            assert!(moves >= moved + 4, "life {life}: {moves} moves, {moved} before");
            moved = moves;
            let counts = lan.counts(2);
            // Frames of all flows are in flight when the queues stop, and some may be lost with
            // them.
            for port in ports.iter().cycle().take(UNDER_WAY.into()) {
                number += 1;
                a.tx.put(&[&cut(1448)[..], &frame(*port, number)].concat(), &[]);
            }
            a.tx.publish();
            b.reset(&lan);
            a.tx.left(UNDER_WAY);
            lan.settle();
            b.forget();
            assert_eq!(counts.got_frames, sent, "life {life}: some were lost");
            // The outcome of those in flight is undefined.
            sent = lan.counts(2).got_frames;
            before = number;
        }
    }
}

/// Each burst is one batch, followed by a pause. No later delivery notices what the guest consumes
/// during the pause.
#[test]
fn flows_that_come_in_bursts_leave_too() {
    for (reactors, habit) in [1, 2].into_iter().flat_map(|n| HABITS.map(|habit| (n, habit))) {
        let lan = Lan::new(reactors);
        let mut a = Guest::new(&lan, 1, 0, all());
        let mut b = Receiver::new(&lan);
        let (ports, mut number) = (colliding(), 0);
        let until = Instant::now() + SOON;
        while !(number >= FLOWS * habit.bursts * habit.frames && b.is_even()) {
            assert!(Instant::now() < until, "they stay where they collide: {:?}", habit.late);
            for _ in 0..habit.bursts {
                for port in ports.iter().cycle().take((FLOWS * habit.frames) as usize) {
                    number += 1;
                    a.tx.put(&[&cut(1448)[..], &frame(*port, number)].concat(), &[]);
                }
                a.tx.publish();
                a.tx.left((FLOWS * habit.frames) as u16);
                lan.settle();
                std::thread::sleep(habit.late);
                b.take();
                std::thread::sleep(habit.pause);
            }
        }
        lan.settle();
        b.take();
        assert_eq!(lan.counts(2).got_frames, number, "some were lost: {:?}", lan.counts(2));
    }
}
