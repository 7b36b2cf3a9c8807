//! Admission with a clock: starts ready steps, and checks again when a step becomes stuck.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use model::admission::{self, Admission, SlotUsage, StepKey, StepLimits};
use model::id::VmId;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep_until};

use super::run::Event;

/// All slots of the host.
#[derive(Debug)]
pub(super) struct Slots<E> {
    began: Instant,
    inner: Mutex<Inner<E>>,
    /// Notified when the time at which the next step becomes stuck changes, and on drop.
    bell: Arc<Notify>,
}

#[derive(Debug)]
struct Inner<E> {
    admission: Admission,
    next: u64,
    waiting: HashMap<StepKey, Waiter<E>>,
    wake_at: Option<Duration>,
}

/// Receiver of a step's start event.
#[derive(Debug)]
struct Waiter<E> {
    sender: UnboundedSender<Event<E>>,
    at: usize,
}

/// Slots of a running step. Dropping the guard frees them.
#[derive(Debug)]
pub(super) struct SlotGuard<E> {
    slots: Arc<Slots<E>>,
    key: StepKey,
}

impl<E> SlotGuard<E> {
    /// Returns since when the step's lane hangs, if it does.
    pub(super) fn hung_since(&self) -> Option<Instant> {
        self.slots.hung_since(self.key)
    }
}

impl<E> Drop for SlotGuard<E> {
    fn drop(&mut self) {
        self.slots.done(self.key);
    }
}

impl<E> Drop for Slots<E> {
    fn drop(&mut self) {
        self.bell.notify_one();
    }
}

impl<E> Slots<E> {
    pub(super) fn new(limits: StepLimits) -> Self {
        let admission = Admission::new(limits);
        let inner = Inner { admission, next: 0, waiting: HashMap::new(), wake_at: None };
        Self { began: Instant::now(), inner: Mutex::new(inner), bell: Arc::default() }
    }

    pub(super) fn bell(&self) -> Arc<Notify> {
        Arc::clone(&self.bell)
    }

    pub(super) fn set(self: &Arc<Self>, limits: StepLimits) {
        self.lock().admission.set(limits);
        self.admit();
    }

    pub(super) fn marks(&self) -> SlotUsage {
        self.lock().admission.marks()
    }

    /// Registers a ready step. Its run receives [`Event::Begin`] when the step may begin.
    pub(super) fn ready(
        self: &Arc<Self>,
        vm: VmId,
        (slots, begun): (admission::Slots, bool),
        (sender, at): (&UnboundedSender<Event<E>>, usize),
    ) -> StepKey {
        let mut inner = self.lock();
        let key = StepKey(inner.next);
        inner.next += 1;
        inner.waiting.insert(key, Waiter { sender: sender.clone(), at });
        inner.admission.ready(key, vm, slots, begun);
        key
    }

    /// Removes a step that has ended, or that need not begin any more.
    pub(super) fn done(self: &Arc<Self>, key: StepKey) {
        {
            let mut inner = self.lock();
            inner.waiting.remove(&key);
            inner.admission.done(key, self.began.elapsed());
        }
        self.admit();
    }

    /// Returns since when the step's lane hangs, if it does.
    pub(super) fn hung_since(&self, key: StepKey) -> Option<Instant> {
        let since = self.lock().admission.hung_since(key)?;
        self.began.checked_add(since)
    }

    /// Starts all steps that may begin now.
    pub(super) fn admit(self: &Arc<Self>) {
        let mut inner = self.lock();
        let begin = inner.admission.next(self.began.elapsed());
        let begin: Vec<_> =
            begin.into_iter().map(|key| (key, inner.waiting.remove(&key))).collect();
        let wake_at = inner.admission.wake_at();
        let changed = std::mem::replace(&mut inner.wake_at, wake_at) != wake_at;
        drop(inner);
        if changed {
            self.bell.notify_one();
        }
        for (key, waiter) in begin {
            let slot_guard = SlotGuard { slots: Arc::clone(self), key };
            // Without a waiter, dropping the guard frees the slots.
            if let Some(Waiter { sender, at }) = waiter {
                let _ = sender.send(Event::Begin { at, slot_guard });
            }
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        self.lock().wake_at.and_then(|at| self.began.checked_add(at))
    }

    fn lock(&self) -> MutexGuard<'_, Inner<E>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the slots whenever a step becomes stuck, until the slots are dropped.
pub(super) async fn alarm<E>(slots: Weak<Slots<E>>, bell: Arc<Notify>) {
    while let Some(at) = slots.upgrade().map(|slots| slots.wake_at()) {
        let rings = async {
            match at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = bell.notified() => {}
            () = rings => if let Some(slots) = slots.upgrade() { slots.admit() },
        }
    }
}
