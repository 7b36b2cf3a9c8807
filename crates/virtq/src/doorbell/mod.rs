//! Notifications between driver and device: all stores, loads and fences with which one side shows
//! the other that it polls the ring, or is about to sleep.
//!
//! Both directions use one protocol (virtio 1.2, 2.7.7 and 2.7.10). A side that is about to sleep
//! requests a signal, and then polls for work once more. A side that has made work publishes it,
//! and then checks whether the other side requested a signal. Each side has a full fence between
//! its two steps, so at least one side sees the store of the other.
//!
//! ```text
//! to sleep:     request a signal       fence   poll for work          none: sleep
//! to give work: publish the work       fence   check for the request  requested: signal
//! ```
//!
//! The functions work on any [`RingMemory`]. In the program this is guest memory. In the tests it
//! is memory under `loom`, which explores every order in which the steps of both sides can be
//! visible.

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;

/// Flag in `avail.flags`: do not call.
const AVAIL_NO_INTERRUPT: u16 = 1;
/// Flag in `used.flags`: do not kick.
const USED_NO_NOTIFY: u16 = 1;

/// Fields of a ring that notifications read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingField {
    /// Available index: number of requests from the driver.
    AvailIdx,
    /// Flags of the driver, which request or suppress calls without EVENT_IDX.
    AvailFlags,
    /// Event of the driver, with EVENT_IDX: requests a call when the used index passes it.
    UsedEvent,
    /// Used index: number of requests that the device has completed.
    UsedIdx,
    /// Flags of the device, which request or suppress kicks without EVENT_IDX.
    UsedFlags,
    /// Event of the device, with EVENT_IDX: requests a kick when the available index passes it.
    AvailEvent,
}

/// Memory that driver and device share.
pub(crate) trait RingMemory {
    /// Loads a field.
    fn load(&self, ring_field: RingField, order: Ordering) -> u16;
    /// Stores a field.
    fn store(&self, ring_field: RingField, value: u16, order: Ordering);
    /// Orders all stores before it ahead of all loads after it. Of two sides that store, fence and
    /// load, at least one sees the other's store.
    fn full_fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Returns whether the index passed `event` between `old` and `new`, so that the other side wants
/// a signal (virtio 1.2, 2.7.7.2).
fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Loads the driver's available index. Entries below it are visible after this.
pub(crate) fn available(ring_memory: &impl RingMemory) -> u16 {
    ring_memory.load(RingField::AvailIdx, Ordering::Acquire)
}

/// Asks the driver not to kick, because the device polls the ring. `next` is the request for which
/// [`arm`] requested a kick.
pub(crate) fn suppress(ring_memory: &impl RingMemory, event_idx: bool, next: u16) {
    if !event_idx {
        ring_memory.store(RingField::UsedFlags, USED_NO_NOTIFY, Ordering::Relaxed);
    } else if available(ring_memory) == next {
        // Something else woke the device, and that request is still to come. An event that the
        // index has already passed causes no kick until the index has wrapped around once.
        ring_memory.store(RingField::AvailEvent, next.wrapping_sub(1), Ordering::Relaxed);
    }
}

/// Requests a kick for request `next`. Before it sleeps, the caller must check [`available`].
///
/// Without EVENT_IDX, the event is set beside the flags. The field exists in every used ring, and a
/// driver without EVENT_IDX does not read it (virtio 1.2, 2.7.8). A driver with EVENT_IDX reads
/// nothing else: so its kicks come even if the front-end has lost its features.
pub(crate) fn arm(ring_memory: &impl RingMemory, event_idx: bool, next: u16) {
    ring_memory.store(RingField::AvailEvent, next, Ordering::Relaxed);
    if !event_idx {
        ring_memory.store(RingField::UsedFlags, 0, Ordering::Relaxed);
    }
    // The request must be visible before the index is read. The driver does the reverse.
    ring_memory.full_fence();
}

/// Returns how many completions below used index `idx` the driver may not have taken, judging by
/// the available index. A driver has at most `size` chains, so each request beyond that proves that
/// it has taken a completion.
pub(crate) fn unoffered(ring_memory: &impl RingMemory, size: u16, idx: u16) -> u16 {
    size.wrapping_sub(available(ring_memory).wrapping_sub(idx).min(size))
}

/// Loads the driver's event: it wants no call up to there. Only with EVENT_IDX. See
/// [`crate::UsedEventTracker`].
pub(crate) fn event(ring_memory: &impl RingMemory) -> u16 {
    ring_memory.load(RingField::UsedEvent, Ordering::Acquire)
}

/// Publishes every completion below `idx`. [`wants_call`] returns whether the driver must be
/// called.
pub(crate) fn show(ring_memory: &impl RingMemory, idx: u16) {
    ring_memory.store(RingField::UsedIdx, idx, Ordering::Release);
}

/// Returns whether the driver must be called after the used index went from `old` to `new`.
pub(crate) fn wants_call(
    ring_memory: &impl RingMemory,
    event_idx: bool,
    old: u16,
    new: u16,
) -> bool {
    // The index must be visible before the driver's event is read (virtio 1.2, 2.7.7.2).
    ring_memory.full_fence();
    if event_idx {
        passed(ring_memory.load(RingField::UsedEvent, Ordering::Relaxed), new, old)
    } else {
        ring_memory.load(RingField::AvailFlags, Ordering::Relaxed) & AVAIL_NO_INTERRUPT == 0
    }
}
