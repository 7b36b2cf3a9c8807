//! A lock whose holders hear something from those who do not wait for it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// What is under the lock, and that it was told of a change.
#[derive(Debug)]
pub(crate) struct Told<T> {
    inner: Mutex<T>,
    told: AtomicBool,
    /// What it does about it.
    hear: fn(&T),
}

/// Whoever lets go of it hears what came meanwhile.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    of: &'a Told<T>,
    /// Always there until it is dropped.
    inner: Option<MutexGuard<'a, T>>,
}

impl<T> Told<T> {
    pub(crate) fn new(value: T, hear: fn(&T)) -> Self {
        Self { inner: Mutex::new(value), told: AtomicBool::new(false), hear }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        // Changed in whole steps, so a panic elsewhere leaves it whole.
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Guard { of: self, inner: Some(inner) }
    }

    /// Tells of a change, and never waits: if somebody holds the lock, it is heard when they let
    /// go.
    pub(crate) fn tell(&self) {
        self.told.store(true, Ordering::Relaxed);
        self.settle();
    }

    fn settle(&self) {
        // Whoever tells looks at the lock after the flag, and whoever lets go at the flag after
        // the lock: one of the two sees the other.
        fence(Ordering::SeqCst);
        while self.told.load(Ordering::Relaxed) {
            let value = match self.inner.try_lock() {
                Ok(value) => value,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            if self.told.swap(false, Ordering::AcqRel) {
                (self.hear)(&value);
            }
            drop(value);
            fence(Ordering::SeqCst);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("it is held until it is dropped")
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("it is held until it is dropped")
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        drop(self.inner.take());
        self.of.settle();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// What was changed, and what was heard of it last.
    #[derive(Debug, Default)]
    struct Heard {
        now: AtomicU64,
        last: AtomicU64,
    }

    fn hear(heard: &&Heard) {
        heard.last.store(heard.now.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    #[test]
    fn what_is_told_while_it_is_held_is_heard_when_it_is_let_go() {
        let heard = Heard::default();
        let told = Told::new(&heard, hear);
        let held = told.lock();
        heard.now.store(1, Ordering::SeqCst);
        told.tell();
        assert_eq!(heard.last.load(Ordering::SeqCst), 0);
        drop(held);
        assert_eq!(heard.last.load(Ordering::SeqCst), 1);
        heard.now.store(2, Ordering::SeqCst);
        told.tell();
        assert_eq!(heard.last.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn the_last_change_is_heard_however_it_meets_those_who_hold_the_lock() {
        for _ in 0..testkit::rounds(300, 10_000) {
            let heard = Heard::default();
            let told = Told::new(&heard, hear);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| (0..20).for_each(|_| drop(told.lock())));
                }
                for _ in 0..20 {
                    heard.now.fetch_add(1, Ordering::SeqCst);
                    told.tell();
                }
            });
            assert_eq!(heard.last.load(Ordering::SeqCst), 20);
        }
    }
}
