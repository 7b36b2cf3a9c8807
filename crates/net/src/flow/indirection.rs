//! Assignment of buckets to queues, and moves that preserve the order of frames.

use super::BUCKETS;
use super::balance::Load;

/// Most queues that frames are spread over.
pub const QUEUES_MAX: u8 = 128;
/// Silence, in nanoseconds, after which a bucket may move if it is unknown whether the guest
/// consumed its last frames.
pub const QUIET_NS: u64 = 10_000_000;
/// Time, in nanoseconds, after which a move that could not be made is cancelled. The guest did not
/// visibly consume all frames of the flow, and another flow may be moved instead.
pub const PATIENCE_NS: u64 = 400_000_000;

/// Bucket of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(u8);

impl Bucket {
    /// Returns the bucket of a flow's hash.
    pub fn of(hash: u32) -> Self {
        Self((hash % BUCKETS as u32) as u8)
    }

    /// Returns all buckets.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..BUCKETS as u8).map(Self)
    }

    /// Returns the index of the bucket in tables.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    queue: u8,
    wanted: u8,
    /// Time since which another queue is wanted.
    asked_ns: u64,
    /// Time at which the last frame was sent.
    sent_ns: u64,
    /// Position of the last frame in the queue; 0 if none was sent there.
    sent: u64,
    /// Work sent since the last reading.
    units: u64,
}

/// Queues of one receiver's buckets, for the frames of one reactor.
#[derive(Debug)]
pub struct IndirectionTable {
    queues: u8,
    slots: [Slot; BUCKETS],
    unhashed: u64,
}

impl IndirectionTable {
    /// Creates a table with the buckets distributed round-robin over `queues`, clamped to 1 to
    /// [`QUEUES_MAX`].
    pub fn new(queues: u8) -> Self {
        let mut indirection_table =
            Self { queues: 1, slots: [Slot::default(); BUCKETS], unhashed: 0 };
        indirection_table.set_queues(queues);
        indirection_table
    }

    /// Changes the number of queues and distributes the buckets round-robin again. No queue may
    /// contain a frame.
    pub fn set_queues(&mut self, queues: u8) {
        self.queues = queues.clamp(1, QUEUES_MAX);
        for (slot, queue) in self.slots.iter_mut().zip(in_turn(self.queues)) {
            *slot = Slot { queue, wanted: queue, units: slot.units, ..Slot::default() };
        }
    }

    /// Returns the queue for a frame with this hash. A move that waits for its bucket is made now
    /// if no frame of the bucket is in flight. `taken` returns whether the guest has consumed all
    /// frames of a queue up to a position, or `None` if that is unknown. It is called only for a
    /// pending move.
    pub fn pick(
        &mut self,
        hash: Option<u32>,
        now_ns: u64,
        taken: impl FnOnce(u8, u64) -> Option<bool>,
    ) -> u8 {
        let Some(slot) = hash.and_then(|hash| self.slots.get_mut(Bucket::of(hash).index())) else {
            return 0;
        };
        if slot.queue != slot.wanted {
            let pauses = || now_ns.saturating_sub(slot.sent_ns) >= QUIET_NS;
            if slot.sent == 0 || taken(slot.queue, slot.sent).unwrap_or_else(pauses) {
                slot.queue = slot.wanted;
                slot.sent = 0;
            }
        }
        slot.queue
    }

    /// Records that a frame with this hash went to the queue that [`Self::pick`] returned, at
    /// `position` (from 1 on). The frame counts `units` of work.
    pub fn sent(&mut self, hash: Option<u32>, position: u64, units: u64, now_ns: u64) {
        match hash.and_then(|hash| self.slots.get_mut(Bucket::of(hash).index())) {
            Some(slot) => {
                slot.sent = position;
                slot.sent_ns = now_ns;
                slot.units = slot.units.saturating_add(units);
            }
            None => self.unhashed = self.unhashed.saturating_add(units),
        }
    }

    /// Records that a frame with this hash was dropped before its queue. It counts `units` of work
    /// all the same: a queue that is too busy to accept frames is not idle.
    pub fn lost(&mut self, hash: Option<u32>, units: u64) {
        let slot = hash.and_then(|hash| self.slots.get_mut(Bucket::of(hash).index()));
        let sum = slot.map_or(&mut self.unhashed, |slot| &mut slot.units);
        *sum = sum.saturating_add(units);
    }

    /// Requests a move of a bucket to another queue. A queue that does not exist is ignored.
    pub fn want(&mut self, bucket: Bucket, queue: u8, now_ns: u64) {
        if let Some(slot) = self.slots.get_mut(bucket.index())
            && queue < self.queues
            && queue != slot.wanted
        {
            slot.wanted = queue;
            slot.asked_ns = now_ns;
        }
    }

    /// Returns the queue that receives a bucket's frames now.
    pub fn queue(&self, bucket: Bucket) -> u8 {
        self.slots.get(bucket.index()).map_or(0, |slot| slot.queue)
    }

    /// Returns the buckets that have waited [`PATIENCE_NS`] for their move. Silence does not
    /// matter: frames that a guest does not report may still wait.
    pub fn overdue(&self, now_ns: u64) -> impl Iterator<Item = Bucket> {
        let late = move |slot: &Slot| {
            slot.queue != slot.wanted && now_ns.saturating_sub(slot.asked_ns) >= PATIENCE_NS
        };
        Bucket::all().zip(&self.slots).filter(move |(_, slot)| late(slot)).map(|(bucket, _)| bucket)
    }

    /// Adds the work sent since the last reading to `load`.
    pub fn read(&mut self, load: &mut Load) {
        for (slot, sum) in self.slots.iter_mut().zip(&mut load.buckets) {
            *sum = sum.saturating_add(std::mem::take(&mut slot.units));
        }
        load.unhashed = load.unhashed.saturating_add(std::mem::take(&mut self.unhashed));
    }
}

/// Returns the queues for all buckets, round-robin.
pub(super) fn in_turn(queues: u8) -> impl Iterator<Item = u8> {
    (0..queues.clamp(1, QUEUES_MAX)).cycle().take(BUCKETS)
}

#[cfg(test)]
mod tests;
