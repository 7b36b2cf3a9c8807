//! The queue of each bucket, and moves that keep the order of frames.

use super::BUCKETS;
use super::balance::Load;

/// Most queues that frames are spread over.
pub const QUEUES_MAX: u8 = 128;
/// A bucket that has sent nothing for so long pauses. It may move then if nobody can tell whether its
/// last frames were taken. In nanoseconds.
pub const QUIET_NS: u64 = 10_000_000;
/// A move that could not be made for so long is given up: the guest is not seen to take all of the flow's
/// frames, and another one may be moved instead. In nanoseconds.
pub const PATIENCE_NS: u64 = 400_000_000;

/// One of a receiver's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket(u8);

impl Bucket {
    /// Of a flow.
    pub fn of(hash: u32) -> Self {
        Self((hash % BUCKETS as u32) as u8)
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..BUCKETS as u8).map(Self)
    }

    /// Its place in tables.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    queue: u8,
    wanted: u8,
    /// Since when another queue is wanted.
    asked_ns: u64,
    /// When its last frame was sent.
    sent_ns: u64,
    /// Which position that frame has in the queue; 0: none was sent there.
    sent: u64,
    /// What was sent since the last reading.
    units: u64,
}

/// The queues of one receiver's buckets, for the frames of one reactor.
#[derive(Debug)]
pub struct IndirectionTable {
    queues: u8,
    slots: [Slot; BUCKETS],
    unhashed: u64,
}

impl IndirectionTable {
    /// Buckets in turn over `queues`, which is taken for 1 to [`QUEUES_MAX`].
    pub fn new(queues: u8) -> Self {
        let mut indirection_table =
            Self { queues: 1, slots: [Slot::default(); BUCKETS], unhashed: 0 };
        indirection_table.set_queues(queues);
        indirection_table
    }

    /// The receiver has another number of queues, and none of them holds a frame: buckets are in
    /// turn over them again.
    pub fn set_queues(&mut self, queues: u8) {
        self.queues = queues.clamp(1, QUEUES_MAX);
        for (slot, queue) in self.slots.iter_mut().zip(in_turn(self.queues)) {
            *slot = Slot { queue, wanted: queue, units: slot.units, ..Slot::default() };
        }
    }

    /// The queue for a frame with this hash. A move that waits for its bucket is made now if
    /// nothing is on its way: `taken` tells whether the guest has taken all frames of a queue up to
    /// a position; `None`: nobody can tell. It is asked for nothing but a move.
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

    /// A frame with this hash went to the queue that [`Self::pick`] has told, at `position`, from 1
    /// on. It counts `units` of work.
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

    /// A frame with this hash was lost on its way to its queue. It counts `units` of work all the
    /// same: a queue that is too busy to take frames is not an idle one.
    pub fn lost(&mut self, hash: Option<u32>, units: u64) {
        let slot = hash.and_then(|hash| self.slots.get_mut(Bucket::of(hash).index()));
        let sum = slot.map_or(&mut self.unhashed, |slot| &mut slot.units);
        *sum = sum.saturating_add(units);
    }

    /// A bucket shall go to another queue when it can. A queue that there is not is ignored.
    pub fn want(&mut self, bucket: Bucket, queue: u8, now_ns: u64) {
        if let Some(slot) = self.slots.get_mut(bucket.index())
            && queue < self.queues
            && queue != slot.wanted
        {
            slot.wanted = queue;
            slot.asked_ns = now_ns;
        }
    }

    /// Where a bucket's frames go now.
    pub fn queue(&self, bucket: Bucket) -> u8 {
        self.slots.get(bucket.index()).map_or(0, |slot| slot.queue)
    }

    /// Buckets that have waited for their move for [`PATIENCE_NS`], whether they pause or not: what a guest
    /// does not tell of is not known to be taken.
    pub fn overdue(&self, now_ns: u64) -> impl Iterator<Item = Bucket> {
        let late = move |slot: &Slot| {
            slot.queue != slot.wanted && now_ns.saturating_sub(slot.asked_ns) >= PATIENCE_NS
        };
        Bucket::all().zip(&self.slots).filter(move |(_, slot)| late(slot)).map(|(bucket, _)| bucket)
    }

    /// Adds what was sent since the last reading to `load`.
    pub fn read(&mut self, load: &mut Load) {
        for (slot, sum) in self.slots.iter_mut().zip(&mut load.buckets) {
            *sum = sum.saturating_add(std::mem::take(&mut slot.units));
        }
        load.unhashed = load.unhashed.saturating_add(std::mem::take(&mut self.unhashed));
    }
}

/// Queues for buckets, one after the other.
pub(super) fn in_turn(queues: u8) -> impl Iterator<Item = u8> {
    (0..queues.clamp(1, QUEUES_MAX)).cycle().take(BUCKETS)
}

#[cfg(test)]
mod tests;
