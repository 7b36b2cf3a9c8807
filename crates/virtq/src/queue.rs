//! A split ring, owned by one thread.

use std::sync::Arc;

use memory::{Table, View};

use crate::inflight::{InflightLog, RingState};
use crate::ring::{DescTable, Rings};
use crate::{Chain, Inflight, QueueConfig, RingError, Suspect, UsedEventTracker, doorbell};

/// Most completed chains that are stored for reuse. Further ones are freed.
const MAX_SPARE: usize = 256;
/// Chains whose lists have space for more pieces are freed. A request of Linux has at most 128.
const SPARE_PIECES: usize = 256;

/// Distance in requests at which a descriptor is prefetched: the descriptors of two cache lines.
const DESCS_AHEAD: u16 = 8;

/// A split ring that is served.
pub struct Queue {
    pub(crate) config: QueueConfig,
    pub(crate) view: View,
    pub(crate) table: DescTable,
    pub(crate) rings: Rings,
    pub(crate) next_avail: u16,
    /// Available index as last read. Entries below it need no access to the shared index.
    pub(crate) avail_seen: u16,
    pub(crate) next_used: u16,
    /// Used index that the driver can see.
    pub(crate) published: u16,
    /// Used index up to which it is decided whether the driver is called.
    decided: u16,
    /// Available index at the last [`Queue::waiting`] or [`Queue::looks_active`].
    looked_at: u16,
    /// True until the first call. The driver may wait for a call of a process that died.
    first_call: bool,
    /// True if the last completion was called: the driver does not poll.
    called: bool,
    /// True if the driver places a request's answer beside the request. Disk drivers put the status
    /// byte beside the header (Linux, virtio-driver).
    status_beside_header: bool,
    /// One bit for each head: in flight, or with an in-flight log also pushed but not published.
    pub(crate) busy: Box<[u64]>,
    pub(crate) in_flight: u16,
    /// Number of chains that a process which died left in flight.
    resubmitted: u16,
    /// Used index at the start.
    started_used: u16,
    pub(crate) inflight_log: Option<InflightLog>,
    spare: Vec<Chain>,
    pub(crate) failed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("config", &self.config)
            .field("next_avail", &self.next_avail)
            .field("next_used", &self.next_used)
            .field("in_flight", &self.in_flight)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// Marks the head as no longer in flight.
#[inline]
pub(crate) fn free(busy: &mut [u64], head: u16) {
    if let Some(word) = busy.get_mut(usize::from(head / 64)) {
        *word &= !(1u64 << (head % 64));
    }
}

impl Queue {
    /// Finds the ring in guest memory and continues at `config.next_avail`. Kicks are suppressed at
    /// first: serve the ring, then call [`Queue::arm`].
    ///
    /// With `inflight`, the queue records requests in flight there. Chains that a process which
    /// died has recorded are popped first. The ring then continues at its used index plus their
    /// number. `config.next_avail` is ignored.
    ///
    /// # Errors
    /// [`RingError::BadSize`], [`RingError::Memory`], [`RingError::Inflight`].
    pub fn new(
        config: QueueConfig,
        memory: Arc<Table>,
        inflight: Option<Inflight>,
    ) -> Result<Self, RingError> {
        let view = View::new(memory);
        let (table, rings) = Rings::new(&view, &config)?;
        let next_used = rings.used_idx();
        let state =
            RingState { size: config.size, used: next_used, avail: doorbell::available(&rings) };
        let inflight_log =
            inflight.map(|inflight| InflightLog::recover(inflight, state)).transpose()?;
        let resubmitted = inflight_log.as_ref().map_or(0, InflightLog::heads_to_resubmit);
        let next_avail = match &inflight_log {
            Some(_) => next_used.wrapping_add(resubmitted),
            None => config.next_avail,
        };
        let queue = Self {
            config,
            view,
            table,
            rings,
            next_avail,
            avail_seen: next_avail,
            next_used,
            published: next_used,
            decided: next_used,
            looked_at: next_avail,
            first_call: true,
            called: false,
            status_beside_header: true,
            busy: vec![0; usize::from(config.size).div_ceil(64)].into(),
            in_flight: 0,
            resubmitted,
            started_used: next_used,
            inflight_log,
            spare: Vec::new(),
            failed: false,
        };
        queue.suppress();
        Ok(queue)
    }

    /// Starts a queue like [`Queue::new`], for a device that completes chains in the order in which
    /// they became available. Its used index shows how many chains were served, so the queue
    /// ignores `config.next_avail` and needs no record of requests in flight.
    ///
    /// # Errors
    /// [`RingError::BadSize`], [`RingError::Memory`].
    pub fn in_order(config: QueueConfig, memory: Arc<Table>) -> Result<Self, RingError> {
        let mut queue = Self::new(config, memory, None)?;
        (queue.next_avail, queue.avail_seen) = (queue.next_used, queue.next_used);
        queue.status_beside_header = false;
        queue.suppress();
        Ok(queue)
    }

    /// Continues the ring in a new memory table. Chains in flight keep the old table alive.
    ///
    /// # Errors
    /// [`RingError::Memory`] if the new table does not contain the ring. The queue has then failed.
    pub fn set_memory(&mut self, memory: Arc<Table>) -> Result<(), RingError> {
        let view = View::new(memory);
        match Rings::new(&view, &self.config) {
            Ok((table, rings)) => {
                (self.view, self.table, self.rings) = (view, table, rings);
                // Spare lists are empty and unpinned, so they fit any view.
                Ok(())
            }
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        }
    }

    /// Returns the memory table in use.
    pub fn memory(&self) -> &Arc<Table> {
        self.view.table()
    }

    /// Returns the number of entries in the ring.
    pub fn size(&self) -> u16 {
        self.config.size
    }

    /// Returns the available index to serve next. With nothing in flight, a successor continues
    /// there.
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Returns the number of chains popped and not yet pushed.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Returns the number of chains that the queue took over from a process that died.
    pub fn resubmitted(&self) -> u16 {
        self.resubmitted
    }

    /// Returns whether another process may have served this ring before. It may have died before it
    /// called the driver, so call the driver once, whether or not anything is published.
    pub fn continued(&self) -> bool {
        // The used index may have wrapped to 0. A driver that still waits has then set its event.
        let wished = || self.config.event_idx && doorbell::event(&self.rings) != 0;
        let lived = || self.inflight_log.as_ref().is_some_and(InflightLog::has_history);
        self.started_used != 0 || wished() || lived()
    }

    /// Returns whether chains of a process that died are still to be popped. They count as taken
    /// from the ring ([`Queue::next_avail`]), so a queue that is drained pops them first.
    pub fn recovering(&self) -> bool {
        !self.failed
            && self
                .inflight_log
                .as_ref()
                .is_some_and(|inflight_log| inflight_log.heads_to_resubmit() > 0)
    }

    /// Returns whether the requests in flight are recorded in an in-flight region.
    pub fn is_recorded(&self) -> bool {
        self.inflight_log.is_some()
    }

    /// Records the chains in flight in a region, for a successor in another process. The queue must
    /// have no region so far, and must have published all completions.
    ///
    /// # Errors
    /// [`RingError::Inflight`] if the region cannot be used.
    pub fn record_in(&mut self, inflight: Inflight) -> Result<(), RingError> {
        let (size, used) = (self.config.size, self.published);
        let ring = RingState { size, used, avail: self.next_avail };
        let is_busy = |head: &u16| {
            let word = self.busy.get(usize::from(head / 64)).copied().unwrap_or(0);
            word & (1u64 << (head % 64)) != 0
        };
        self.inflight_log = Some(InflightLog::begin(inflight, ring, (0..size).filter(is_busy))?);
        Ok(())
    }

    /// Returns whether the front-end truncated the memory of the ring or of its in-flight region.
    pub fn faulted(&self) -> bool {
        self.memory().faulted() || self.inflight_log.as_ref().is_some_and(InflightLog::faulted)
    }

    /// Returns whether the ring has failed and is no longer served.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Marks the ring as failed for an external reason, such as truncated memory.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Pops the next request, if there is one. A failed queue yields none.
    ///
    /// # Errors
    /// The driver broke a rule. The error is reported once, and the queue has failed.
    pub fn pop(&mut self) -> Result<Option<Chain>, RingError> {
        if self.failed || !self.has_work() {
            return Ok(None);
        }
        let popped = match self.inflight_log.as_ref().and_then(InflightLog::next_resubmit) {
            Some(head) => self.pop_again(head, Suspect::AmongOthers),
            None => self.pop_next(),
        };
        self.failed = popped.is_err();
        popped.map(Some)
    }

    /// Returns whether a request is available that was not popped yet.
    #[inline]
    pub fn has_work(&mut self) -> bool {
        if self.next_avail != self.avail_seen || self.recovering() {
            return true;
        }
        self.avail_seen = doorbell::available(&self.rings);
        self.next_avail != self.avail_seen
    }

    /// Polls the ring and returns the number of requests to pop, including those of a process that
    /// died. The result is at most the ring size; [`Queue::pop`] detects a driver that claims more.
    pub fn waiting(&mut self) -> u16 {
        if self.failed {
            return 0;
        }
        self.avail_seen = doorbell::available(&self.rings);
        self.looked_at = self.avail_seen;
        let again = self.inflight_log.as_ref().map_or(0, InflightLog::heads_to_resubmit);
        let fresh = self.avail_seen.wrapping_sub(self.next_avail);
        if self.called && fresh > 0 {
            self.rings.fetch_answer(self.next_used);
        }
        fresh.saturating_add(again).min(self.config.size)
    }

    /// Marks and pops a chain of a process that died. The mark comes first, because the walk over the
    /// chain may be what ended the process.
    pub(crate) fn pop_again(&mut self, head: u16, mark: Suspect) -> Result<Chain, RingError> {
        if let Some(inflight_log) = &self.inflight_log {
            inflight_log.mark(head, mark);
        }
        let chain = self.take(head)?;
        if let Some(inflight_log) = &mut self.inflight_log {
            inflight_log.mark_resubmitted();
        }
        Ok(chain)
    }

    /// Pops the next entry of the available ring.
    fn pop_next(&mut self) -> Result<Chain, RingError> {
        let size = self.config.size;
        if self.avail_seen.wrapping_sub(self.next_avail) > size {
            let (from, to) = (self.next_avail, self.avail_seen);
            return Err(RingError::IndexJump { from, to, size });
        }
        let head = self.rings.avail_entry(self.next_avail);
        self.fetch(self.next_avail);
        let chain = self.take(head)?;
        if let Some(inflight_log) = &mut self.inflight_log {
            inflight_log.popped(head);
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(chain)
    }

    /// Prefetches data of the requests after index `at` while that one is served. The driver has
    /// just written it, so it lies in the cache of another CPU. The values read here only select
    /// what to prefetch. They are read again and checked when the request is popped.
    #[inline]
    pub(crate) fn fetch(&self, at: u16) {
        let behind = self.avail_seen.wrapping_sub(at);
        if !self.status_beside_header {
            // Many requests are popped at once, and the caller prefetches their buffers.
            if behind > DESCS_AHEAD {
                self.table.fetch(self.rings.avail_entry(at.wrapping_add(DESCS_AHEAD)));
            }
            return;
        }
        if behind > 1 {
            let next = self.rings.avail_entry(at.wrapping_add(1));
            if let Some(first) = self.table.get(next) {
                self.view.fetch(first.addr);
            }
        }
        if behind > 2 {
            self.table.fetch(self.rings.avail_entry(at.wrapping_add(2)));
        }
    }

    /// Builds the chain at `head`, unless that head is in flight.
    fn take(&mut self, head: u16) -> Result<Chain, RingError> {
        let size = self.config.size;
        let (word, bit) = (usize::from(head / 64), 1u64 << (head % 64));
        let Some(word) = self.busy.get_mut(word).filter(|_| head < size) else {
            return Err(self.table.has_no(head));
        };
        if *word & bit != 0 {
            return Err(RingError::Busy { head });
        }
        let mut chain = self.spare.pop().unwrap_or_else(Chain::new);
        let (view, table, has_status) = (&self.view, &self.table, self.status_beside_header);
        if let Err(error) = chain.fill(view, table, head, has_status) {
            chain.fill_outside((view, table), head, error, has_status)?;
        }
        *word |= bit;
        self.in_flight += 1;
        Ok(chain)
    }

    /// Completes a chain into which the device wrote `written` bytes. The driver sees this after
    /// [`Queue::publish`].
    pub fn push(&mut self, mut chain: Chain, written: u32) {
        let head = chain.head();
        self.in_flight = self.in_flight.saturating_sub(1);
        // A failed ring leaves its requests in flight recorded.
        if !self.failed {
            match &mut self.inflight_log {
                Some(inflight_log) => inflight_log.pushed(head),
                None => free(&mut self.busy, head),
            }
            self.rings.put_used(self.next_used, head, written);
            self.next_used = self.next_used.wrapping_add(1);
        }
        let small = chain.readable.capacity().max(chain.writable.capacity()) <= SPARE_PIECES;
        chain.mark_completed();
        if small && self.spare.len() < MAX_SPARE {
            self.spare.push(chain);
        }
    }

    /// Publishes all completions since the last call. Returns whether the driver must be called.
    #[must_use = "the driver waits for the call"]
    pub fn publish(&mut self) -> bool {
        self.publish_without_call();
        let (old, new) = (self.decided, self.published);
        if old == new || self.failed {
            return false;
        }
        self.decided = new;
        let first = std::mem::take(&mut self.first_call) && self.config.event_idx;
        self.called = doorbell::wants_call(&self.rings, self.config.event_idx, old, new) || first;
        self.called
    }

    /// Publishes all completions, and leaves it to the next [`Queue::publish`] to decide about a
    /// call for them. That must follow before the queue rests, because the driver may sleep. Returns
    /// whether there were completions.
    pub fn publish_without_call(&mut self) -> bool {
        let new = self.next_used;
        if new == self.published || self.failed {
            return false;
        }
        if let Some(inflight_log) = &self.inflight_log {
            inflight_log.link();
        }
        doorbell::show(&self.rings, new);
        if let Some(inflight_log) = &mut self.inflight_log {
            inflight_log.batch_published(new).for_each(|head| free(&mut self.busy, head));
        }
        self.published = new;
        true
    }

    /// Returns whether the driver has made requests available since the last call of this, or of
    /// [`Queue::waiting`]: a moment ago it was awake.
    pub fn looks_active(&mut self) -> bool {
        let now = doorbell::available(&self.rings);
        now != std::mem::replace(&mut self.looked_at, now)
    }

    /// Returns how many completions are not published yet.
    pub fn unpublished(&self) -> u16 {
        self.next_used.wrapping_sub(self.published)
    }

    /// Returns how many of the queue's `pushed` completions the driver may not have taken yet. This
    /// is an upper bound: the driver reports late what it has taken. `used_event_tracker` must have
    /// tracked this queue only.
    pub fn unconsumed(&self, pushed: u64, used_event_tracker: &mut UsedEventTracker) -> u16 {
        let unpublished = self.unpublished();
        let shown = pushed.saturating_sub(unpublished.into());
        let (size, idx) = (self.config.size, self.published);
        let by_entries = doorbell::unoffered(&self.rings, size, idx);
        let by_event = if self.config.event_idx {
            used_event_tracker.unconsumed(doorbell::event(&self.rings), idx, shown, size)
        } else {
            None
        };
        // The result is at most the number of entries in the ring.
        let least = by_event.map_or(by_entries, |event| event.min(by_entries.into()) as u16);
        least.saturating_add(unpublished)
    }

    /// Asks the driver not to kick, because the device polls the ring.
    pub fn suppress(&self) {
        if !self.failed {
            doorbell::suppress(&self.rings, self.config.event_idx, self.next_avail);
        }
    }

    /// Requests a kick for the next request and polls the ring again. Returns true if a request
    /// arrived in between; the caller must serve it first.
    #[must_use = "a request may have arrived already"]
    pub fn arm(&mut self) -> bool {
        if self.failed {
            return false;
        }
        doorbell::arm(&self.rings, self.config.event_idx, self.next_avail);
        let found = self.has_work();
        if found {
            self.suppress();
        }
        found
    }
}
