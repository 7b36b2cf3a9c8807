//! Who wakes whom, and when: every store, load and fence by which driver and device tell each other
//! that they look at the ring, or are about to sleep.
//!
//! Both directions are one protocol (virtio 1.2, 2.7.7 and 2.7.10). Whoever wants to sleep says so,
//! and then looks once more; whoever has made work shows it, and then looks whether the other one
//! sleeps. Between the two steps of each stands a full fence, so that at least one of them sees the
//! other.
//!
//! ```text
//! to sleep:     wish for a signal      fence   look for work     none: sleep
//! to give work: show the work          fence   look at the wish  wished: signal
//! ```
//!
//! The functions work on any [`RingMemory`]. In the program these are the guest's memory; in the tests
//! they are memory under `loom`, which walks through every order in which the steps of both sides
//! can be seen.

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;

/// In `avail.flags`: do not call.
const AVAIL_NO_INTERRUPT: u16 = 1;
/// In `used.flags`: do not kick.
const USED_NO_NOTIFY: u16 = 1;

/// The words of a ring by which its two sides meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingField {
    /// Requests that the driver has made.
    AvailIdx,
    /// The driver's wish, without EVENT_IDX.
    AvailFlags,
    /// The driver's wish, with EVENT_IDX: a call when the used index passes this.
    UsedEvent,
    /// Requests that the device has completed.
    UsedIdx,
    /// The device's wish, without EVENT_IDX.
    UsedFlags,
    /// The device's wish, with EVENT_IDX: a kick when the available index passes this.
    AvailEvent,
}

/// Memory that both sides see.
pub(crate) trait RingMemory {
    /// What is there.
    fn load(&self, ring_field: RingField, order: Ordering) -> u16;
    /// Puts it there.
    fn store(&self, ring_field: RingField, value: u16, order: Ordering);
    /// Whatever was stored before is seen by whoever is not seen by what is loaded after.
    fn full_fence(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// The driver wants a signal when `event` is passed on the way from `old` to `new`
/// (virtio 1.2, 2.7.7.2).
fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The driver's available index; entries below it are visible after this.
pub(crate) fn available(ring_memory: &impl RingMemory) -> u16 {
    ring_memory.load(RingField::AvailIdx, Ordering::Acquire)
}

/// Asks the driver not to kick: somebody looks at the ring anyway. Request `next` is the one that
/// [`arm`] has asked for a kick on.
pub(crate) fn suppress(ring_memory: &impl RingMemory, event_idx: bool, next: u16) {
    if !event_idx {
        ring_memory.store(RingField::UsedFlags, USED_NO_NOTIFY, Ordering::Relaxed);
    } else if available(ring_memory) == next {
        // Woken by something else than that request, which is still to come. An event that is
        // passed already brings no kick until the index has gone round once.
        ring_memory.store(RingField::AvailEvent, next.wrapping_sub(1), Ordering::Relaxed);
    }
}

/// Asks for a kick on request `next`. Whoever sleeps must look at [`available`] after this.
pub(crate) fn arm(ring_memory: &impl RingMemory, event_idx: bool, next: u16) {
    if event_idx {
        ring_memory.store(RingField::AvailEvent, next, Ordering::Relaxed);
    } else {
        ring_memory.store(RingField::UsedFlags, 0, Ordering::Relaxed);
    }
    // The wish must be visible before the index is read: the driver does the reverse.
    ring_memory.full_fence();
}

/// Of what was completed up to used index `idx` of a ring of `size`, how much the driver may not have
/// taken yet by what it has made available: it has no more chains than entries, so what is beyond them it
/// has had back.
pub(crate) fn unoffered(ring_memory: &impl RingMemory, size: u16, idx: u16) -> u16 {
    size.wrapping_sub(available(ring_memory).wrapping_sub(idx).min(size))
}

/// Up to where the driver wants no call: it has EVENT_IDX. See [`crate::UsedEventTracker`].
pub(crate) fn event(ring_memory: &impl RingMemory) -> u16 {
    ring_memory.load(RingField::UsedEvent, Ordering::Acquire)
}

/// Shows the driver every completion below `idx`. [`wants_call`] says whether it sleeps.
pub(crate) fn show(ring_memory: &impl RingMemory, idx: u16) {
    ring_memory.store(RingField::UsedIdx, idx, Ordering::Release);
}

/// The driver must be called, now that the used index has gone from `old` to `new`.
pub(crate) fn wants_call(
    ring_memory: &impl RingMemory,
    event_idx: bool,
    old: u16,
    new: u16,
) -> bool {
    // The index must be visible before the driver's wish is read (virtio 1.2, 2.7.7.2).
    ring_memory.full_fence();
    if event_idx {
        passed(ring_memory.load(RingField::UsedEvent, Ordering::Relaxed), new, old)
    } else {
        ring_memory.load(RingField::AvailFlags, Ordering::Relaxed) & AVAIL_NO_INTERRUPT == 0
    }
}
