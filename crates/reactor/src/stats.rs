//! Counters of a reactor: one writer, any number of readers, no read-modify-write.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::OwnerId;

/// Counters of one reactor since its start.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ReactorCounters {
    sleeps: AtomicU64,
    syscalls: AtomicU64,
    wakeups: AtomicU64,
    pollers: AtomicU64,
    turns: AtomicU64,
    spun_ns: AtomicU64,
    serving: AtomicU32,
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl ReactorCounters {
    /// Returns how often the thread slept in the kernel.
    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Returns the number of system calls of the loop and of its pollers.
    pub fn syscalls(&self) -> u64 {
        self.syscalls.load(Ordering::Relaxed)
    }

    /// Returns how often an eventfd woke a poller or the mailbox.
    pub fn wakeups(&self) -> u64 {
        self.wakeups.load(Ordering::Relaxed)
    }

    /// Returns the number of pollers on this reactor now.
    pub fn pollers(&self) -> u64 {
        self.pollers.load(Ordering::Relaxed)
    }

    /// Returns the number of turns of the loop. If it does not change while [`Self::serving`] names
    /// an owner, the thread is stuck in that owner's poller.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Returns the owner that the thread serves now; 0 while it sleeps.
    pub fn serving(&self) -> OwnerId {
        self.serving.load(Ordering::Relaxed)
    }

    /// Returns the time in turns that found no work and were followed by another at once, in
    /// nanoseconds.
    pub fn spun_ns(&self) -> u64 {
        self.spun_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn add_spun(&self, ns: u64) {
        bump(&self.spun_ns, ns);
    }

    pub(crate) fn add_sleep(&self) {
        bump(&self.sleeps, 1);
        self.set_serving(0);
    }

    pub(crate) fn add_turn(&self) {
        bump(&self.turns, 1);
    }

    pub(crate) fn set_serving(&self, label: OwnerId) {
        self.serving.store(label, Ordering::Relaxed);
    }

    pub(crate) fn add_syscalls(&self, count: u64) {
        bump(&self.syscalls, count);
    }

    pub(crate) fn add_wakeup(&self) {
        bump(&self.wakeups, 1);
    }

    pub(crate) fn set_pollers(&self, count: u64) {
        self.pollers.store(count, Ordering::Relaxed);
    }
}
