//! Epochs: when does no request use an old word any more?
//!
//! A map has an epoch. The owner replaces a word, then ends the epoch. A channel publishes the epoch
//! of its oldest request that the kernel has, before it loads words. Space that the owner took out
//! of the map in epoch `e` has no user when every channel shows 0 or more than `e`.
//!
//! Both sides store, then fence, then load: the owner its word, then the slots; a channel its slot,
//! then the words. So at least one of them sees the other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::order;

/// Epoch of a map and the slots of its channels.
#[derive(Debug)]
pub struct Epochs {
    now: AtomicU64,
    slots: Mutex<Vec<Arc<AtomicU64>>>,
}

/// One channel's requests by epoch. A request that hangs holds its epoch, and with it the space,
/// for as long as it hangs.
#[derive(Debug)]
pub struct EpochSlot {
    epochs: Arc<Epochs>,
    published: Arc<AtomicU64>,
    /// Epoch of the newest requests in flight, and their number. Most requests end in the epoch in
    /// which they began.
    newest: (u64, u32),
    /// Other requests in flight: epoch and count, oldest first.
    older: VecDeque<(u64, u32)>,
}

/// One request's part in an epoch. It must go back to [`EpochSlot::leave`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an epoch that is not left is held for ever"]
pub struct Hold(u64);

impl Default for Epochs {
    fn default() -> Self {
        Self { now: AtomicU64::new(1), slots: Mutex::default() }
    }
}

impl Epochs {
    /// Adds a slot for a channel.
    pub fn open_slot(self: &Arc<Self>) -> EpochSlot {
        let published = Arc::new(AtomicU64::new(0));
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // A slot without a channel and without a request is not needed any more.
        slots.retain(|slot| Arc::strong_count(slot) > 1 || slot.load(Ordering::Acquire) > 0);
        slots.push(Arc::clone(&published));
        EpochSlot { epochs: Arc::clone(self), published, newest: (0, 0), older: VecDeque::new() }
    }

    /// Ends the epoch, after the owner has replaced words. Returns the epoch that ended.
    pub fn advance(&self) -> u64 {
        order::end_epoch(&self.now)
    }

    /// Returns the oldest epoch that a channel shows, `u64::MAX` if none shows one.
    pub fn oldest(&self) -> u64 {
        order::before_slots::<AtomicU64>();
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = slots.iter().map(|slot| slot.load(Ordering::Acquire)).filter(|one| *one > 0);
        shown.min().unwrap_or(u64::MAX)
    }
}

impl EpochSlot {
    /// Joins the present epoch. Words that are loaded after this call stay valid until
    /// [`Self::leave`].
    #[inline]
    pub fn enter(&mut self) -> Hold {
        let now = if self.newest.1 == 0 && self.older.is_empty() {
            order::publish_epoch(&self.epochs.now, &*self.published)
        } else {
            // An older epoch is shown, which holds everything that is removed from now on.
            self.epochs.now.load(Ordering::SeqCst)
        };
        if self.newest.0 != now {
            self.begin_epoch(now);
        }
        self.newest.1 += 1;
        Hold(now)
    }

    #[cold]
    #[inline(never)]
    fn begin_epoch(&mut self, now: u64) {
        let former = std::mem::replace(&mut self.newest, (now, 0));
        if former.1 > 0 {
            self.older.push_back(former);
        }
    }

    /// Leaves an epoch: the kernel has ended the request.
    #[inline]
    pub fn leave(&mut self, hold: Hold) {
        if hold.0 != self.newest.0 || !self.older.is_empty() {
            return self.leave_late(&hold);
        }
        self.newest.1 -= 1;
        if self.newest.1 == 0 {
            self.published.store(0, Ordering::Release);
        }
    }

    /// Leaves an epoch while there are requests of several.
    #[cold]
    #[inline(never)]
    fn leave_late(&mut self, hold: &Hold) {
        if hold.0 == self.newest.0 {
            self.newest.1 -= 1;
        } else if let Some((_, count)) = self.older.iter_mut().find(|(epoch, _)| *epoch == hold.0) {
            *count -= 1;
        }
        while self.older.front().is_some_and(|(_, count)| *count == 0) {
            self.older.pop_front();
        }
        let newest = if self.newest.1 > 0 { self.newest.0 } else { 0 };
        let oldest = self.older.front().map_or(newest, |(epoch, _)| *epoch);
        self.published.store(oldest, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_shows_its_oldest_request() {
        let epochs = Arc::new(Epochs::default());
        let (mut a, mut b) = (epochs.open_slot(), epochs.open_slot());
        assert_eq!(epochs.oldest(), u64::MAX);
        let first = a.enter();
        let ended = epochs.advance();
        assert!(epochs.oldest() <= ended, "a request may use what was removed");
        let second = a.enter();
        let other = b.enter();
        a.leave(first);
        assert!(epochs.oldest() > ended);
        let ended = epochs.advance();
        a.leave(second);
        assert!(epochs.oldest() <= ended);
        b.leave(other);
        assert_eq!(epochs.oldest(), u64::MAX);
    }

    #[test]
    fn requests_leave_in_any_order() {
        let epochs = Arc::new(Epochs::default());
        let mut slot = epochs.open_slot();
        let holds: Vec<_> = (0..4).map(|_| (slot.enter(), epochs.advance()).0).collect();
        let mut holds: Vec<_> = holds.into_iter().map(Some).collect();
        for (index, oldest) in [(1, 1), (0, 3), (3, 3), (2, u64::MAX)] {
            slot.leave(holds[index].take().unwrap());
            assert_eq!(epochs.oldest(), oldest);
        }
    }

    #[test]
    fn a_dropped_channel_with_a_request_keeps_its_epoch() {
        let epochs = Arc::new(Epochs::default());
        let mut slot = epochs.open_slot();
        let _held = slot.enter();
        drop(slot);
        let _other = epochs.open_slot();
        assert_eq!(epochs.oldest(), 1);
    }
}
