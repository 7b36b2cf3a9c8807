//! Mutex that threads can notify without waiting for it, and that can be locked with a deadline.
//! Its owner may wait for storage.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// Mutex with its value and a pending notification.
#[derive(Debug)]
pub(crate) struct NotifyMutex<T> {
    inner: Mutex<T>,
    notified: AtomicBool,
    /// Handler of a notification.
    handler: fn(&T),
    /// Signalled at each unlock, for threads that wait with a deadline.
    free: (Mutex<()>, Condvar),
}

/// Guard that handles pending notifications after it unlocks.
#[derive(Debug)]
pub(crate) struct NotifyGuard<'a, T> {
    of: &'a NotifyMutex<T>,
    /// `Some` until the guard is dropped.
    inner: Option<MutexGuard<'a, T>>,
}

impl<T> NotifyMutex<T> {
    pub(crate) fn new(value: T, handler: fn(&T)) -> Self {
        Self {
            inner: Mutex::new(value),
            notified: AtomicBool::new(false),
            handler,
            free: Default::default(),
        }
    }

    pub(crate) fn lock(&self) -> NotifyGuard<'_, T> {
        // The value changes in complete steps, so a panic elsewhere cannot leave it inconsistent.
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        NotifyGuard { of: self, inner: Some(inner) }
    }

    /// Locks the mutex like [`Self::lock`], but waits only until `deadline`.
    pub(crate) fn lock_until(&self, deadline: Instant) -> Option<NotifyGuard<'_, T>> {
        let (gate, free) = &self.free;
        let mut waiting = gate.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Check under the gate, where each unlock signals, so that no unlock is missed.
            if let Some(inner) = self.try_inner() {
                return Some(NotifyGuard { of: self, inner: Some(inner) });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            waiting = free.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn try_inner(&self) -> Option<MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn let_go(&self, inner: MutexGuard<'_, T>) {
        drop(inner);
        let (gate, free) = &self.free;
        drop(gate.lock().unwrap_or_else(PoisonError::into_inner));
        free.notify_all();
    }

    /// Notifies the value of a change, and never waits. If another thread has the lock, it handles
    /// the notification when it unlocks.
    pub(crate) fn notify(&self) {
        self.notified.store(true, Ordering::Relaxed);
        self.settle();
    }

    fn settle(&self) {
        // The notifier sets the flag, then tries the lock. The owner unlocks, then checks the flag.
        // With the fence, at least one of the two sees the other.
        fence(Ordering::SeqCst);
        while self.notified.load(Ordering::Relaxed) {
            let Some(value) = self.try_inner() else { return };
            if self.notified.swap(false, Ordering::AcqRel) {
                (self.handler)(&value);
            }
            self.let_go(value);
            fence(Ordering::SeqCst);
        }
    }
}

impl<T> Deref for NotifyGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("it is held until it is dropped")
    }
}

impl<T> DerefMut for NotifyGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("it is held until it is dropped")
    }
}

impl<T> Drop for NotifyGuard<'_, T> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            self.of.let_go(inner);
        }
        self.of.settle();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;

    /// Changed value, and the value seen by the last notification.
    #[derive(Debug, Default)]
    struct Observed {
        now: AtomicU64,
        last: AtomicU64,
    }

    fn observe(observed: &&Observed) {
        observed.last.store(observed.now.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    #[test]
    fn what_is_told_while_it_is_held_is_heard_when_it_is_let_go() {
        let observed = Observed::default();
        let notify_mutex = NotifyMutex::new(&observed, observe);
        let held = notify_mutex.lock();
        observed.now.store(1, Ordering::SeqCst);
        notify_mutex.notify();
        assert_eq!(observed.last.load(Ordering::SeqCst), 0);
        drop(held);
        assert_eq!(observed.last.load(Ordering::SeqCst), 1);
        observed.now.store(2, Ordering::SeqCst);
        notify_mutex.notify();
        assert_eq!(observed.last.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn the_last_change_is_heard_however_it_meets_those_who_hold_the_lock() {
        for _ in 0..testkit::rounds(300, 10_000) {
            let observed = Observed::default();
            let notify_mutex = NotifyMutex::new(&observed, observe);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| (0..20).for_each(|_| drop(notify_mutex.lock())));
                }
                for _ in 0..20 {
                    observed.now.fetch_add(1, Ordering::SeqCst);
                    notify_mutex.notify();
                }
            });
            assert_eq!(observed.last.load(Ordering::SeqCst), 20);
        }
    }

    #[test]
    fn it_is_waited_for_until_the_deadline() {
        let notify_mutex = NotifyMutex::new(0u64, |_| ());
        let held = notify_mutex.lock();
        assert!(notify_mutex.lock_until(Instant::now()).is_none());
        assert!(notify_mutex.lock_until(Instant::now() + Duration::from_millis(5)).is_none());
        drop(held);
        // A waiter with a deadline is woken, whatever the other threads do.
        let far = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..testkit::rounds(2000, 100_000) {
                        *notify_mutex.lock_until(far).unwrap() += 1;
                        notify_mutex.notify();
                    }
                });
            }
        });
        assert_eq!(*notify_mutex.lock(), 3 * testkit::rounds(2000, 100_000) as u64);
        assert!(Instant::now() < far, "nobody is forgotten");
    }
}
