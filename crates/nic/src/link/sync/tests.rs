//! Explores both sides of a link in every order in which their steps can be seen.

use std::sync::Arc as StdArc;
use std::sync::atomic::AtomicBool as StdBool;

use loom::model::Builder;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;

/// Slots of the ring under test: fewer than are sent, so that slots are reused.
const PLACES: u64 = 2;
/// Number of sent values: the numbers from 1 on.
const SENT: u64 = 3;

/// Link under `loom`.
struct Model {
    words: [AtomicU64; 3],
    places: [AtomicU64; PLACES as usize],
    bell: (Mutex<bool>, Condvar),
    /// True if the fence is a real fence.
    fenced: bool,
}

impl LinkMemory for Model {
    fn load(&self, word: LinkWord, order: Ordering) -> u64 {
        self.words[word as usize].load(order)
    }

    fn store(&self, word: LinkWord, value: u64, order: Ordering) {
        self.words[word as usize].store(value, order);
    }

    fn full_fence(&self) {
        if self.fenced {
            fence(Ordering::SeqCst);
        }
    }
}

impl Model {
    fn new(fenced: bool) -> Arc<Self> {
        let word = |_| AtomicU64::new(0);
        let bell = (Mutex::new(false), Condvar::new());
        Arc::new(Self { words: [0; 3].map(word), places: [0; 2].map(word), bell, fenced })
    }

    fn place(&self, position: u64) -> &AtomicU64 {
        &self.places[(position % PLACES) as usize]
    }

    fn ring(&self) {
        *self.bell.0.lock().unwrap() = true;
        self.bell.1.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.bell.0.lock().unwrap();
        while !*rung {
            rung = self.bell.1.wait(rung).unwrap();
        }
        *rung = false;
    }

    /// Sends as many values as there is room for; the rest is dropped, as frames are. Returns the
    /// number sent.
    fn write(&self) -> u64 {
        let mut at = 0;
        for value in 1..=SENT {
            if at - released(self) < PLACES {
                self.place(at).store(value, Ordering::Relaxed);
                at += 1;
                if publish(self, at) {
                    self.ring();
                }
            }
        }
        at
    }

    /// Receives `count` values and sleeps whenever there is none.
    fn read(&self, count: u64) -> Vec<u64> {
        let (mut at, mut got) = (0, Vec::new());
        while at < count {
            if written(self) == at {
                prepare_sleep(self);
                if written(self) == at {
                    self.sleep();
                }
                cancel_sleep(self);
            }
            while at < written(self) {
                got.push(self.place(at).load(Ordering::Relaxed));
                at += 1;
                release(self, at);
            }
        }
        got
    }
}

/// The first two values always have room, so the reader waits for these.
fn explore(fenced: bool) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let model = Model::new(fenced);
        let writer = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.write())
        };
        let got = model.read(PLACES);
        assert_eq!(&got[..2], [1, 2], "in order, and whole");
        assert!(got.get(2).is_none_or(|last| *last == 3));
        let sent = writer.join().unwrap();
        assert!((PLACES..=SENT).contains(&sent));
    });
}

#[test]
fn nothing_is_lost_torn_or_slept_through() {
    explore(true);
}

#[test]
fn without_the_fence_a_wake_up_is_lost() {
    let found = StdArc::new(StdBool::new(false));
    let seen = StdArc::clone(&found);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| explore(false)));
    // `loom` reports threads that sleep for ever by a panic.
    seen.store(outcome.is_err(), Ordering::Relaxed);
    assert!(found.load(Ordering::Relaxed));
}
