//! Both sides of a ring in every order in which their steps can be visible.
//!
//! The device runs the functions of this module; the driver does what virtio requires. A side that
//! sleeps while there is work for it, and no signal on its way, sleeps for ever: the wake-up is
//! lost. The tests show that no order loses a wake-up. They also show that without the fence some
//! order does, which proves that the search finds such orders.

use std::sync::Arc as StdArc;
use std::sync::atomic::AtomicBool as StdBool;

use loom::model::Builder;
use loom::sync::atomic::{AtomicU16, AtomicUsize, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;

/// First index of each test, so that the indices wrap in each.
const FIRST: u16 = u16::MAX;

/// Signals that driver and device use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signals {
    Flags,
    Events,
    /// The driver uses events, and the device does not know it.
    UnknownEvents,
}

impl Signals {
    const ALL: [Self; 3] = [Self::Flags, Self::Events, Self::UnknownEvents];

    /// Returns whether the driver uses events.
    fn driver(self) -> bool {
        self != Self::Flags
    }

    /// Returns whether the device uses events.
    fn device(self) -> bool {
        self == Self::Events
    }
}

/// A ring under `loom`.
struct Ring {
    words: [AtomicU16; 6],
    /// Contents of the entries, by the low bits of their index.
    entries: [AtomicU16; 4],
    signals: Signals,
    /// True if the device's fence is a fence.
    fenced: bool,
}

impl RingMemory for Ring {
    fn load(&self, ring_field: RingField, order: Ordering) -> u16 {
        self.words[ring_field as usize].load(order)
    }

    fn store(&self, ring_field: RingField, value: u16, order: Ordering) {
        self.words[ring_field as usize].store(value, order);
    }

    fn full_fence(&self) {
        if self.fenced {
            fence(Ordering::SeqCst);
        }
    }
}

impl Ring {
    /// Creates an empty ring in which no side has requested a signal.
    fn new(signals: Signals, fenced: bool) -> Arc<Self> {
        let word = |value| AtomicU16::new(value);
        let behind = FIRST.wrapping_sub(1);
        // A driver with EVENT_IDX leaves its flags 0 (virtio 1.2, 2.7.7.1).
        let flags = if signals.driver() { 0 } else { AVAIL_NO_INTERRUPT };
        // In the order of `RingField`.
        let words = [
            word(FIRST),
            word(flags),
            word(behind),
            word(FIRST),
            word(USED_NO_NOTIFY),
            word(behind),
        ];
        let entries = [0; 4].map(AtomicU16::new);
        Arc::new(Self { words, entries, signals, fenced })
    }

    fn entry(&self, index: u16) -> &AtomicU16 {
        &self.entries[usize::from(index % 4)]
    }

    /// Makes request `index` as the driver. Returns whether the device wants a kick.
    fn offer(&self, index: u16) -> bool {
        self.entry(index).store(index, Ordering::Relaxed);
        let new = index.wrapping_add(1);
        self.store(RingField::AvailIdx, new, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.signals.driver() {
            passed(self.load(RingField::AvailEvent, Ordering::Relaxed), new, index)
        } else {
            self.load(RingField::UsedFlags, Ordering::Relaxed) & USED_NO_NOTIFY == 0
        }
    }

    /// Completes request `index` as the device. Returns whether the driver wants a call.
    fn complete(&self, index: u16) -> bool {
        let new = index.wrapping_add(1);
        show(self, new);
        wants_call(self, self.signals.device(), index, new)
    }

    /// Requests a call for completion `next` as the driver. Returns whether it is there already.
    fn driver_arms(&self, next: u16) -> bool {
        if self.signals.driver() {
            self.store(RingField::UsedEvent, next, Ordering::Relaxed);
        } else {
            self.store(RingField::AvailFlags, 0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.load(RingField::UsedIdx, Ordering::Acquire) != next
    }

    fn driver_suppresses(&self) {
        if !self.signals.driver() {
            self.store(RingField::AvailFlags, AVAIL_NO_INTERRUPT, Ordering::Relaxed);
        }
    }

    /// Returns whether the device sees request `next`, and checks its contents.
    fn device_sees(&self, next: u16) -> bool {
        let there = available(self) != next;
        if there {
            assert_eq!(self.entry(next).load(Ordering::Relaxed), next, "an entry too early");
        }
        there
    }

    fn device_arms(&self, next: u16) -> bool {
        arm(self, self.signals.device(), next);
        let found = self.device_sees(next);
        if found {
            self.device_suppresses(next);
        }
        found
    }

    fn device_suppresses(&self, next: u16) {
        suppress(self, self.signals.device(), next);
    }
}

/// Runs one side until it has seen all `count` steps of the other side, or sleeps. If it sleeps,
/// returns the number of the step that it waits for, and the number of signals received.
fn serve(
    count: u16,
    rings: &AtomicUsize,
    sees: impl Fn(u16) -> bool,
    arms: impl Fn(u16) -> bool,
    suppresses: impl Fn(u16),
) -> Option<(u16, usize)> {
    let mut received = 0;
    let mut next = FIRST;
    let end = FIRST.wrapping_add(count);
    suppresses(next);
    while next != end {
        if sees(next) {
            next = next.wrapping_add(1);
            continue;
        }
        if arms(next) {
            continue;
        }
        let rung = rings.load(Ordering::Acquire);
        if rung == received {
            return Some((next, received));
        }
        received = rung;
        suppresses(next);
    }
    None
}

/// Explores every order. With more than one step a side: all orders with at most three preemptions
/// of threads.
fn search(count: u16, each: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = (count > 1).then_some(3);
    builder.check(each);
}

/// Returns whether some order loses a kick of `count` requests.
fn loses_a_kick(signals: Signals, fenced: bool, count: u16) -> bool {
    let lost = StdArc::new(StdBool::new(false));
    let found = StdArc::clone(&lost);
    search(count, move || {
        let (ring, kicks) = (Ring::new(signals, fenced), Arc::new(AtomicUsize::new(0)));
        let device = {
            let (ring, kicks) = (Arc::clone(&ring), Arc::clone(&kicks));
            thread::spawn(move || {
                let sees = |next| ring.device_sees(next);
                let arms = |next| ring.device_arms(next);
                serve(count, &kicks, sees, arms, |next| ring.device_suppresses(next))
            })
        };
        for index in 0..count {
            if ring.offer(FIRST.wrapping_add(index)) {
                kicks.fetch_add(1, Ordering::AcqRel);
            }
        }
        // The device sleeps with work in the ring, and no signal will come.
        if let Some((_, received)) = device.join().expect("the device")
            && kicks.load(Ordering::Acquire) == received
        {
            found.store(true, Ordering::Relaxed);
        }
    });
    lost.load(Ordering::Relaxed)
}

/// Returns whether some order loses a call for `count` completions.
fn loses_a_call(signals: Signals, fenced: bool, count: u16) -> bool {
    let lost = StdArc::new(StdBool::new(false));
    let found = StdArc::clone(&lost);
    search(count, move || {
        let (ring, calls) = (Ring::new(signals, fenced), Arc::new(AtomicUsize::new(0)));
        let driver = {
            let (ring, calls) = (Arc::clone(&ring), Arc::clone(&calls));
            thread::spawn(move || {
                let sees = |next| ring.load(RingField::UsedIdx, Ordering::Acquire) != next;
                let arms = |next| ring.driver_arms(next);
                serve(count, &calls, sees, arms, |_| ring.driver_suppresses())
            })
        };
        for index in 0..count {
            if ring.complete(FIRST.wrapping_add(index)) {
                calls.fetch_add(1, Ordering::AcqRel);
            }
        }
        if let Some((_, received)) = driver.join().expect("the driver")
            && calls.load(Ordering::Acquire) == received
        {
            found.store(true, Ordering::Relaxed);
        }
    });
    lost.load(Ordering::Relaxed)
}

#[test]
fn no_kick_is_lost() {
    for (signals, most) in Signals::ALL.into_iter().zip([2, 3, 3]) {
        for count in 1..=most {
            assert!(!loses_a_kick(signals, true, count), "{signals:?}, {count}");
        }
    }
}

#[test]
fn no_call_is_lost() {
    for (signals, most) in Signals::ALL.into_iter().zip([2, 3, 3]) {
        for count in 1..=most {
            assert!(!loses_a_call(signals, true, count), "{signals:?}, {count}");
        }
    }
}

#[test]
fn without_its_fence_either_is_lost() {
    for signals in Signals::ALL {
        assert!(loses_a_kick(signals, false, 1), "{signals:?}");
        // A device that does not know of events calls for each completion.
        let may_lose = signals != Signals::UnknownEvents;
        assert_eq!(loses_a_call(signals, false, 1), may_lose, "{signals:?}");
    }
}

/// A signal on which a sleeping side waits.
struct Bell {
    rung: Mutex<bool>,
    condvar: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self { rung: Mutex::new(false), condvar: Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock().expect("rings") = true;
        self.condvar.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().expect("sleeps");
        while !*rung {
            rung = self.condvar.wait(rung).expect("sleeps");
        }
        *rung = false;
    }
}

/// Runs a guest with one request at a time, so that both sides sleep in turn. A lost wake-up leaves
/// no runnable thread, which `loom` reports.
#[test]
fn two_sleepers_wake_each_other() {
    for signals in Signals::ALL {
        search(2, move || {
            let ring = Ring::new(signals, true);
            let (kick, call) = (Arc::new(Bell::new()), Arc::new(Bell::new()));
            let device = {
                let (ring, kick, call) = (Arc::clone(&ring), Arc::clone(&kick), Arc::clone(&call));
                thread::spawn(move || {
                    for next in [FIRST, FIRST.wrapping_add(1)] {
                        while !ring.device_sees(next) {
                            if !ring.device_arms(next) {
                                kick.sleep();
                                ring.device_suppresses(next);
                            }
                        }
                        if ring.complete(next) {
                            call.ring();
                        }
                    }
                })
            };
            for next in [FIRST, FIRST.wrapping_add(1)] {
                if ring.offer(next) {
                    kick.ring();
                }
                while !ring.driver_arms(next) {
                    call.sleep();
                }
            }
            device.join().expect("the device");
        });
    }
}
