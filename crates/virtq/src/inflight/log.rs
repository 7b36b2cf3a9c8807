//! In-flight records of one ring: written while it is served, read once when it starts.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::region::{Entry, Part};
use super::{Inflight, InflightError};
use crate::crash::stored;

/// State of the ring when it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingState {
    pub(crate) size: u16,
    pub(crate) used: u16,
    pub(crate) avail: u16,
}

/// In-flight records of one ring.
pub(crate) struct InflightLog {
    /// Owner of the memory behind the pointers.
    inflight: Inflight,
    part: NonNull<Part>,
    entries: NonNull<Entry>,
    /// Number of entries in the region, and so behind `entries`.
    size: u16,
    counter: u64,
    /// True if another process recorded something before the start.
    lived: bool,
    /// Heads that are pushed and not published, in order.
    batch: Vec<u16>,
    /// Heads that the predecessor had not completed, the oldest last.
    recovered: Vec<u16>,
}

impl InflightLog {
    /// Reads what the predecessor recorded, and clears the requests that it had completed.
    pub(crate) fn recover(inflight: Inflight, ring: RingState) -> Result<Self, InflightError> {
        let size = inflight.size();
        if ring.size > size {
            return Err(InflightError::TooSmall { ring: ring.size, size });
        }
        let (part, entries) = inflight.parts()?;
        let mut inflight_log = Self {
            inflight,
            part,
            entries,
            size,
            counter: 0,
            lived: false,
            batch: Vec::with_capacity(ring.size.into()),
            recovered: Vec::new(),
        };
        inflight_log.lived = (0..size).any(|head| inflight_log.counter_of(head) != 0);
        let mut recorded = inflight_log.read_recorded(ring.size)?;
        let completed =
            if recorded.is_empty() { Vec::new() } else { inflight_log.read_completed(ring)? };
        let mut done = vec![false; ring.size.into()];
        for head in &completed {
            let what = "the list of the last batch loops";
            let damaged = InflightError::Damaged { what, value: (*head).into() };
            match done.get_mut(usize::from(*head)) {
                Some(done) if !*done => *done = true,
                _ => return Err(damaged),
            }
        }
        recorded.retain(|(_, head)| done.get(usize::from(*head)) != Some(&true));
        let open = ring.avail.wrapping_sub(ring.used);
        if recorded.len() > usize::from(open.min(ring.size)) {
            return Err(InflightError::Stale { recorded: recorded.len() as u16, open });
        }
        inflight_log.counter = newest(&mut recorded)?;
        inflight_log.recovered = recorded.iter().rev().map(|(_, head)| *head).collect();
        inflight_log.clear(&completed, ring.used);
        Ok(inflight_log)
    }

    /// Begins to record a ring whose requests in flight are `heads`. All completions are published.
    pub(crate) fn begin(
        inflight: Inflight,
        ring: RingState,
        heads: impl Iterator<Item = u16>,
    ) -> Result<Self, InflightError> {
        let mut inflight_log = Self::recover(inflight, ring)?;
        heads.for_each(|head| inflight_log.popped(head));
        Ok(inflight_log)
    }

    /// Reads counters and heads of all recorded requests.
    fn read_recorded(&self, ring: u16) -> Result<Vec<(u64, u16)>, InflightError> {
        let mut recorded = Vec::new();
        for head in 0..self.size {
            let entry = self.entry(head);
            match entry.inflight.load(Ordering::Acquire) {
                0 => {}
                1 if head >= ring => {
                    let what = "a request is recorded outside the ring";
                    return Err(InflightError::Damaged { what, value: head.into() });
                }
                1 => recorded.push((self.counter_of(head), head)),
                other => {
                    let what = "a mark is neither 0 nor 1";
                    return Err(InflightError::Damaged { what, value: other.into() });
                }
            }
        }
        Ok(recorded)
    }

    /// Reads the heads that the predecessor had completed and may not have cleared.
    fn read_completed(&self, ring: RingState) -> Result<Vec<u16>, InflightError> {
        let region = self.part().used_idx.load(Ordering::Acquire);
        let count = ring.used.wrapping_sub(region);
        if count > ring.size {
            return Err(InflightError::OtherRing { region, ring: ring.used });
        }
        let mut completed = Vec::with_capacity(count.into());
        let mut head = self.part().last_batch_head.load(Ordering::Relaxed);
        for _ in 0..count {
            if head >= ring.size {
                let what = "the list of the last batch leaves the ring";
                return Err(InflightError::Damaged { what, value: head.into() });
            }
            completed.push(head);
            head = self.entry(head).next.load(Ordering::Relaxed);
        }
        Ok(completed)
    }

    fn counter_of(&self, head: u16) -> u64 {
        self.entry(head).counter.load(Ordering::Relaxed)
    }

    /// Returns whether another process recorded something here before.
    pub(crate) fn has_history(&self) -> bool {
        self.lived
    }

    /// Returns the number of heads to submit again.
    pub(crate) fn heads_to_resubmit(&self) -> u16 {
        self.recovered.len() as u16
    }

    /// Returns the next head to submit again, which is recorded already.
    pub(crate) fn next_resubmit(&self) -> Option<u16> {
        self.recovered.last().copied()
    }

    /// Removes the head that [`next_resubmit`](Self::next_resubmit) returned from the list.
    pub(crate) fn mark_resubmitted(&mut self) {
        self.recovered.pop();
    }

    /// Records a head popped from the available ring.
    pub(crate) fn popped(&mut self, head: u16) {
        self.counter = self.counter.wrapping_add(1);
        let counter = self.counter;
        let entry = self.entry(head);
        entry.counter.store(counter, Ordering::Release);
        stored();
        entry.inflight.store(1, Ordering::Release);
        stored();
    }

    /// Adds a head to the batch that is published next.
    pub(crate) fn pushed(&mut self, head: u16) {
        self.batch.push(head);
    }

    /// Records which heads the next store of the ring's used index completes.
    pub(crate) fn link(&self) {
        let mut last = 0;
        for head in &self.batch {
            self.entry(*head).next.store(last, Ordering::Release);
            stored();
            last = *head;
        }
        self.part().last_batch_head.store(last, Ordering::Release);
        stored();
    }

    /// Clears the batch after the used index was published, and returns its heads.
    pub(crate) fn batch_published(&mut self, used: u16) -> std::vec::Drain<'_, u16> {
        self.clear(&self.batch, used);
        self.batch.drain(..)
    }

    fn clear(&self, heads: &[u16], used: u16) {
        for head in heads {
            self.entry(*head).inflight.store(0, Ordering::Release);
            stored();
        }
        self.part().used_idx.store(used, Ordering::Release);
        stored();
    }

    /// Returns whether the region was truncated. If so, nothing is recorded any more.
    pub(crate) fn faulted(&self) -> bool {
        self.inflight.faulted()
    }

    fn part(&self) -> &Part {
        // SAFETY: found in `recover` inside the mapping that `inflight` keeps alive; atomics only.
        unsafe { self.part.as_ref() }
    }

    pub(super) fn entry(&self, head: u16) -> &Entry {
        debug_assert!(head < self.size);
        // SAFETY: `entries` has `size` entries in the mapping that `inflight` keeps alive. Heads
        // come from a ring that is no larger, checked by it or by `recover`; atomics only.
        unsafe { self.entries.add(head.into()).as_ref() }
    }
}

/// Sorts the requests by age and returns the newest counter.
fn newest(recorded: &mut [(u64, u16)]) -> Result<u64, InflightError> {
    recorded.sort_unstable();
    let twice = recorded.windows(2).find_map(|pair| match pair {
        [(first, _), (second, head)] if first == second => Some(*head),
        _ => None,
    });
    if let Some(head) = twice {
        let what = "two requests have the same counter";
        return Err(InflightError::Damaged { what, value: head.into() });
    }
    match recorded.last() {
        // No ring reaches this value, and a ring that starts there would wrap.
        Some((counter, _)) if *counter > u64::MAX / 2 => {
            Err(InflightError::Damaged { what: "a counter is out of range", value: *counter })
        }
        last => Ok(last.map_or(0, |(counter, _)| *counter)),
    }
}
