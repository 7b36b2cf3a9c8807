//! One split ring, owned by one thread.

use std::sync::Arc;

use memory::{Table, View};

use crate::inflight::{InflightLog, RingState};
use crate::ring::{DescTable, Rings};
use crate::{Chain, Inflight, QueueConfig, RingError, UsedEventTracker, doorbell};

/// Buffers of completed chains that are kept for the next ones; more are freed.
const MAX_SPARE: usize = 256;
/// Lists with room for more pieces than this are freed: a request of Linux has at most 128.
const SPARE_PIECES: usize = 256;

/// Descriptors of requests so far ahead come closer: as many as lie in two cache lines.
const DESCS_AHEAD: u16 = 8;

/// A split ring being served.
pub struct Queue {
    pub(crate) config: QueueConfig,
    pub(crate) view: View,
    pub(crate) table: DescTable,
    pub(crate) rings: Rings,
    pub(crate) next_avail: u16,
    /// Available index as last read: entries below it need no further look at shared memory.
    pub(crate) avail_seen: u16,
    pub(crate) next_used: u16,
    /// Used index that the driver can see.
    published: u16,
    /// No call has been sent since the start: the driver may wait for one of a former life.
    first_call: bool,
    /// The last answer was called: the driver does not look by itself.
    called: bool,
    /// A request's answer lies beside it: drivers of disks put the status byte beside the header
    /// (Linux, virtio-driver).
    beside: bool,
    /// One bit a head: in flight, and with a ledger also pushed but not published.
    pub(crate) busy: Box<[u64]>,
    pub(crate) in_flight: u16,
    /// Chains that a former life of the ring left to this one.
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

/// The head is no longer in flight.
#[inline]
pub(crate) fn free(busy: &mut [u64], head: u16) {
    if let Some(word) = busy.get_mut(usize::from(head / 64)) {
        *word &= !(1u64 << (head % 64));
    }
}

impl Queue {
    /// Finds the ring in guest memory and goes on at `config.next_avail`. Kicks start suppressed:
    /// serve the ring, then [`Queue::arm`].
    ///
    /// With `inflight` it records there what is in flight. Chains that are on record from a former
    /// life are popped first, and the ring goes on behind them: at its used index plus their
    /// number, whatever `config.next_avail` says.
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
            first_call: true,
            called: false,
            beside: true,
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

    /// As [`Queue::new`], for a device that completes chains in the order in which they were made
    /// available: what its used index tells is all that was ever taken, whatever
    /// `config.next_avail` says. No record of requests in flight is needed.
    ///
    /// # Errors
    /// [`RingError::BadSize`], [`RingError::Memory`].
    pub fn in_order(config: QueueConfig, memory: Arc<Table>) -> Result<Self, RingError> {
        let mut queue = Self::new(config, memory, None)?;
        (queue.next_avail, queue.avail_seen) = (queue.next_used, queue.next_used);
        queue.beside = false;
        queue.suppress();
        Ok(queue)
    }

    /// The same ring in a new memory table. Chains in flight keep the old one alive.
    ///
    /// # Errors
    /// [`RingError::Memory`] when the new table does not hold the ring; the queue has failed then.
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

    /// The memory table in use.
    pub fn memory(&self) -> &Arc<Table> {
        self.view.table()
    }

    /// Entries in the ring.
    pub fn size(&self) -> u16 {
        self.config.size
    }

    /// Available index to be served next; with nothing in flight this is where a successor
    /// goes on.
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Chains popped and not yet pushed.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Chains of a former life that were given to this one at its start.
    pub fn resubmitted(&self) -> u16 {
        self.resubmitted
    }

    /// Somebody served this ring before, and may have died before he called the driver: call it
    /// once, whatever is published.
    pub fn continued(&self) -> bool {
        // The index may have gone round. A driver that waits since before has left its wish there.
        let wished = || self.config.event_idx && doorbell::event(&self.rings) != 0;
        let lived = || self.inflight_log.as_ref().is_some_and(InflightLog::has_history);
        self.started_used != 0 || wished() || lived()
    }

    /// Chains of a former life that are still to be popped. They count as taken from the ring
    /// ([`Queue::next_avail`]), so a queue that is drained pops these first.
    pub fn recovering(&self) -> bool {
        !self.failed
            && self
                .inflight_log
                .as_ref()
                .is_some_and(|inflight_log| inflight_log.heads_to_resubmit() > 0)
    }

    /// The ring or its in-flight region lies in memory that its owner has truncated.
    pub fn faulted(&self) -> bool {
        self.memory().faulted() || self.inflight_log.as_ref().is_some_and(InflightLog::faulted)
    }

    /// The ring broke the rules and is not served any more.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Gives up on the ring, for a reason outside it (its memory went away).
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Takes the next request, if there is one. A failed queue yields none.
    ///
    /// # Errors
    /// The rule that the driver broke. It is reported once; the queue has failed then.
    pub fn pop(&mut self) -> Result<Option<Chain>, RingError> {
        if self.failed || !self.has_work() {
            return Ok(None);
        }
        let popped = match self.inflight_log.as_ref().and_then(InflightLog::next_resubmit) {
            Some(head) => self.pop_again(head),
            None => self.pop_next(),
        };
        self.failed = popped.is_err();
        popped.map(Some)
    }

    /// There is something that was not popped yet.
    #[inline]
    pub fn has_work(&mut self) -> bool {
        if self.next_avail != self.avail_seen || self.recovering() {
            return true;
        }
        self.avail_seen = doorbell::available(&self.rings);
        self.next_avail != self.avail_seen
    }

    /// Looks at the ring and says how many requests are to be popped, those of a former life
    /// among them. A driver that claims more than fit is found out by [`Queue::pop`].
    pub fn waiting(&mut self) -> u16 {
        if self.failed {
            return 0;
        }
        self.avail_seen = doorbell::available(&self.rings);
        let again = self.inflight_log.as_ref().map_or(0, InflightLog::heads_to_resubmit);
        let fresh = self.avail_seen.wrapping_sub(self.next_avail);
        if self.called && fresh > 0 {
            self.rings.fetch_answer(self.next_used);
        }
        fresh.saturating_add(again).min(self.config.size)
    }

    /// Takes a chain of a former life.
    fn pop_again(&mut self, head: u16) -> Result<Chain, RingError> {
        let chain = self.take(head)?;
        if let Some(inflight_log) = &mut self.inflight_log {
            inflight_log.mark_resubmitted();
        }
        Ok(chain)
    }

    /// Takes the next entry of the available ring.
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

    /// What requests after that of index `at` will ask for comes closer while this one is served: the driver has
    /// just written it, so that it lies in the cache of another CPU. What is read here says what
    /// to bring and nothing else; it is read again, and checked, when its turn has come.
    #[inline]
    pub(crate) fn fetch(&self, at: u16) {
        let behind = self.avail_seen.wrapping_sub(at);
        if !self.beside {
            // Many are popped at once, and who does that brings their buffers closer.
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

    /// The chain at `head`, unless it is in flight.
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
        chain.fill(&self.view, &self.table, head, self.beside)?;
        *word |= bit;
        chain.mark_in_flight();
        self.in_flight += 1;
        Ok(chain)
    }

    /// Completes a chain into which the device wrote `written` bytes. The driver sees it after
    /// [`Queue::publish`].
    pub fn push(&mut self, mut chain: Chain, written: u32) {
        let head = chain.head();
        self.in_flight = self.in_flight.saturating_sub(1);
        // A failed ring keeps what was in flight on record.
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

    /// Shows the driver what was pushed since the last time; true when it must be called.
    #[must_use = "the driver waits for the call"]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_used);
        if old == new || self.failed {
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
        let first = std::mem::take(&mut self.first_call) && self.config.event_idx;
        self.called = doorbell::wants_call(&self.rings, self.config.event_idx, old, new) || first;
        self.called
    }

    /// Of the `pushed` completions of this queue, how many the driver may not have taken yet: at most so
    /// many. What it tells of that it tells late, so that few of them may be there still. `told` is what was
    /// seen of it before, of this queue.
    pub fn unconsumed(&self, pushed: u64, used_event_tracker: &mut UsedEventTracker) -> u16 {
        let unpublished = self.next_used.wrapping_sub(self.published);
        let shown = pushed.saturating_sub(unpublished.into());
        let (size, idx) = (self.config.size, self.published);
        let by_entries = doorbell::unoffered(&self.rings, size, idx);
        let by_event = if self.config.event_idx {
            used_event_tracker.unconsumed(doorbell::event(&self.rings), idx, shown, size)
        } else {
            None
        };
        // No more than the ring has.
        let least = by_event.map_or(by_entries, |event| event.min(by_entries.into()) as u16);
        least.saturating_add(unpublished)
    }

    /// Asks the driver not to kick: somebody looks at the ring anyway.
    pub fn suppress(&self) {
        if !self.failed {
            doorbell::suppress(&self.rings, self.config.event_idx, self.next_avail);
        }
    }

    /// Asks for a kick on the next request and looks at the ring again; true when one came in
    /// between and must be served first.
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
