//! Requests of a process that died by its own fault, which a successor executes one at a time.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};

use crate::guest::*;
use blk::{BlkDevice, TrialHandle, TrialStart};

const REQUESTS: u16 = 5;
const IOERR: u8 = 1;

/// A process that serves the guest's ring on a disk.
struct Life {
    gate: Gate,
    device: BlkDevice,
    trial: TrialHandle,
    ended: Receiver<()>,
}

/// Starts a process that tries the requests.
fn live(guest: &mut Guest, gate: Gate, fails_suspect: bool) -> Life {
    let device = device(Arc::new(gate.clone()), 1, false);
    let (sender, ended) = sync_channel(0);
    let reactor = guest.reactor.clone();
    let next = guest.driver.used_idx();
    let start = TrialStart { fails_suspect, ended: sender };
    guest.try_resume_on_trial(&device, &reactor, next, Some(start)).unwrap();
    let trial = guest.queue.as_ref().unwrap().trial_handle();
    Life { gate, device, trial, ended }
}

/// Lets the reactor run some turns.
fn turns(guest: &Guest) {
    (0..10).for_each(|_| guest.reactor.handle().call(|_| ()).unwrap());
}

/// Waits for this number of completions, and checks the status of all requests so far.
fn completions(guest: &mut Guest, count: u16, statuses: &[u8]) {
    for _ in 0..count {
        guest.used();
    }
    assert_eq!(guest.driver.used(), None, "each once");
    let seen: Vec<_> = (0..statuses.len() as u16).map(|slot| guest.status(slot)).collect();
    assert_eq!(seen, statuses);
}

#[test]
fn requests_of_a_trial_wait_for_their_turn_and_run_alone() {
    let mut guest = Guest::left_behind(REQUESTS);
    guest.put(REQUESTS, IN, 99, (512, true));
    guest.publish();
    let life = live(&mut guest, Gate::closed(), false);
    turns(&guest);
    assert_eq!(life.gate.sectors(), [0; 0], "it is not their turn");
    life.trial.begin();
    life.gate.wait_for(&guest.reactor, 1);
    turns(&guest);
    assert_eq!(life.gate.sectors(), [0], "the oldest is alone");
    assert_eq!(life.ended.try_recv(), Err(TryRecvError::Empty));
    life.gate.open();
    assert_eq!(life.ended.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
    completions(&mut guest, 6, &[0; 6]);
    assert_eq!(life.gate.sectors(), [0, 1, 2, 3, 4, 99]);
}

#[test]
fn one_that_was_alone_at_a_death_fails_and_no_other() {
    let mut guest = Guest::left_behind(REQUESTS);
    // Its process dies when the third request is alone.
    let life = live(&mut guest, Gate::hanging_at(2), false);
    life.trial.begin();
    life.gate.wait_for(&guest.reactor, 3);
    completions(&mut guest, 2, &[0, 0]);
    guest.lose_device();
    let life = live(&mut guest, Gate::hanging_at(2), true);
    life.trial.begin();
    completions(&mut guest, 3, &[0, 0, IOERR, 0, 0]);
    assert_eq!(life.gate.sectors(), [3, 4], "it is not executed again");
    let stats = life.device.stats();
    assert_eq!((stats.failed_suspects, stats.errors, stats.requests.read), (1, 1, 2));
    // The next request of this descriptor is not suspected.
    assert_eq!(guest.read(7, 512).0, 0);
}

#[test]
fn a_death_from_outside_condemns_nothing() {
    let mut guest = Guest::left_behind(REQUESTS);
    let life = live(&mut guest, Gate::hanging_at(0), false);
    life.trial.begin();
    life.gate.wait_for(&guest.reactor, 1);
    // This process was killed, so the next one suspects nothing, and dies, too.
    guest.lose_device();
    let device = device(Arc::new(Gate::closed()), 1, false);
    let reactor = guest.reactor.clone();
    guest.resume(&device, &reactor, 0);
    turns(&guest);
    guest.lose_device();
    let life = live(&mut guest, Gate::opened(), true);
    life.trial.begin();
    completions(&mut guest, 5, &[0; 5]);
    assert_eq!(life.device.stats().failed_suspects, 0);
}

#[test]
fn a_trial_that_takes_too_long_is_over() {
    let mut guest = Guest::left_behind(REQUESTS);
    let life = live(&mut guest, Gate::hanging_at(0), false);
    life.trial.begin();
    life.gate.wait_for(&guest.reactor, 1);
    life.trial.end();
    life.gate.wait_for(&guest.reactor, 5);
    assert_eq!(life.ended.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
    for _ in 1..REQUESTS {
        guest.used();
    }
    // The first one was not alone any more when its process died.
    guest.lose_device();
    let life = live(&mut guest, Gate::opened(), true);
    life.trial.begin();
    guest.used();
    assert_eq!((guest.status(0), life.device.stats().failed_suspects), (0, 0));
}

#[test]
fn a_stop_does_not_wait_for_a_turn() {
    let mut guest = Guest::left_behind(REQUESTS);
    let life = live(&mut guest, Gate::opened(), false);
    assert_eq!(guest.queue.take().unwrap().stop().unwrap(), REQUESTS);
    completions(&mut guest, 5, &[0; 5]);
    assert_eq!(life.ended.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
}
