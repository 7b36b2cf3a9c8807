//! Reactors on real threads.

use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use super::*;

/// Requests of each reactor, and its outstanding ones.
const REQUESTS: u32 = 200_000;
const DEPTH: u32 = 16;

/// Wakes a reactor.
#[derive(Default)]
struct Signal(Mutex<bool>, Condvar);

impl Signal {
    fn wake(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn wait(&self) {
        let limit = Duration::from_secs(30);
        let woken = self.0.lock().unwrap();
        let (mut woken, _) = self.1.wait_timeout_while(woken, limit, |woken| !*woken).unwrap();
        assert!(*woken, "a reactor sleeps for ever");
        *woken = false;
    }
}

/// Returns what may be sent, and wakes others.
fn dispatch(queue: &mut Queue, signals: &[Signal], now: u64) -> Vec<Permit> {
    let sent = std::iter::from_fn(|| queue.next(now)).map(|dispatch| dispatch.permit).collect();
    while let Some(reactor) = queue.take_kick() {
        signals[reactor.slot()].wake();
    }
    sent
}

/// Sends requests of both disks until all have completed. Half of those in flight complete in each
/// turn. A reactor with nothing in flight sleeps without a deadline.
fn run(queue: &mut Queue, disks: [DiskId; 2], signals: &[Signal]) {
    let mut permits: Vec<Permit> = Vec::new();
    let (mut submitted, mut completed, mut now) = (0, 0, 1);
    while completed < REQUESTS {
        // The clock is slow, so that no reactor is passed over.
        now += 1;
        while submitted < REQUESTS && submitted - completed < DEPTH {
            match queue.submit(disks[submitted as usize % 2], READ, submitted, now) {
                Submitted::Send(permit) => permits.push(permit),
                Submitted::Held => {}
                Submitted::Full => break,
            }
            submitted += 1;
        }
        permits.extend(dispatch(queue, signals, now));
        if permits.is_empty() {
            signals[queue.reactor().slot()].wait();
        }
        let left = permits.len() / 2;
        for permit in permits.drain(left..) {
            queue.complete(permit, now);
            completed += 1;
        }
    }
    assert!(dispatch(queue, signals, now).is_empty());
}

#[test]
fn reactors_on_threads_lose_no_token_and_no_wake_up() {
    for reactors in [2, 3] {
        let share = open(&memory(), 1);
        let disks = [add(&share), add(&share)];
        share.update_disk(disks[0], DiskConfig { weight: 300, ..DiskConfig::default() }).unwrap();
        let signals: Vec<_> = (0..reactors).map(|_| Signal::default()).collect();
        let mut queues: Vec<_> = (0..reactors).map(|_| Queue::open(&share).unwrap()).collect();
        thread::scope(|scope| {
            for queue in &mut queues {
                scope.spawn(|| run(queue, disks, &signals));
            }
        });
        assert_eq!(share.stats().in_flight, 0);
        for disk in disks {
            let stats = share.disk_stats(disk);
            assert_eq!((stats.held, stats.in_flight, stats.in_flight_ns), (0, 0, 0));
            assert!(stats.dispatches > 0);
        }
        let state = share.state();
        for (_, slot) in state.reactors() {
            for cell in [ReactorCell::Tokens, ReactorCell::Costs] {
                assert_eq!(slot.reactor(cell).load(Relaxed), 0, "{cell:?}");
            }
        }
    }
}
