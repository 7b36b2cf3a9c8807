//! Writes that wait for slots.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::disk::IoError;
use ::memory::Buffers;
use reactor::{Context, IoOp};

use super::{OverlayChannel, WaitingWrite};

/// Interval at which waiting writes look for slots without a wake-up: a reader may have kept them.
const RETRY: Duration = Duration::from_millis(500);

impl OverlayChannel {
    /// Lets a part of a request wait for slots.
    pub(super) fn wait_for_slot(
        &mut self,
        context: &mut Context<'_>,
        parent: u32,
        (offset, len): (u64, u64),
        data: Option<Buffers>,
    ) {
        self.shared.counters.waits.fetch_add(1, Ordering::Relaxed);
        self.shared.counters.waiting_bytes.fetch_add(len, Ordering::Relaxed);
        self.waiting.push_back(WaitingWrite { parent, offset, len, data, is_counted: false });
        self.check_full();
        self.set_timer(context);
    }

    /// Counts waiting writes as waiting for space if there is none, or fails them.
    fn check_full(&mut self) {
        if !self.shared.is_full() {
            return;
        }
        let mut new = 0;
        for one in self.waiting.iter_mut().filter(|one| !one.is_counted) {
            one.is_counted = true;
            new += 1;
        }
        self.shared.room_waits.begin(new);
        self.fail_waiting();
    }

    /// Tries waiting writes again, in their order.
    pub(super) fn retry_waiting(&mut self, context: &mut Context<'_>) {
        let mut timers = std::mem::take(&mut self.timers);
        context.reap(&self.port, &mut timers);
        let has_rung = !timers.is_empty();
        timers.clear();
        self.timers = timers;
        self.is_timer_set &= !has_rung;
        if self.waker.take() || has_rung {
            for _ in 0..self.waiting.len() {
                if self.stock.is_empty()
                    && self.take_slot().map(|slot| self.stock.push(slot)).is_none()
                {
                    break;
                }
                let Some(one) = self.next_waiting() else { break };
                self.continue_write(context, one.parent, (one.offset, one.len), one.data);
            }
            self.check_full();
        }
        self.set_timer(context);
    }

    /// Takes the write that has waited longest. It counts as waiting no more.
    pub(super) fn next_waiting(&mut self) -> Option<WaitingWrite> {
        let one = self.waiting.pop_front()?;
        self.shared.room_waits.end(one.is_counted.into());
        self.shared.counters.waiting_bytes.fetch_sub(one.len, Ordering::Relaxed);
        Some(one)
    }

    fn set_timer(&mut self, context: &mut Context<'_>) {
        if !self.is_timer_set && !self.waiting.is_empty() {
            self.is_timer_set = true;
            context.submit(&self.port, IoOp::Timer { after: RETRY }, 0);
        }
    }

    /// Fails the writes that wait for space, if the queue drains or must not wait.
    pub(super) fn fail_waiting(&mut self) {
        if self.shared.is_full() && (self.is_draining || !self.waits_for_room) {
            self.end_all_waiting(Err(IoError::Full));
        }
    }

    /// Ends all waiting writes.
    pub(super) fn end_all_waiting(&mut self, outcome: Result<(), IoError>) {
        while let Some(one) = self.next_waiting() {
            self.end_part(one.parent, outcome, one.data.unwrap_or_default());
        }
    }

    /// Returns the number of requests of which all that is left waits for space.
    pub(super) fn count_waiting(&self) -> usize {
        if !self.shared.is_full() {
            return 0;
        }
        let mut waiting: BTreeMap<u32, u32> = BTreeMap::new();
        for one in &self.waiting {
            *waiting.entry(one.parent).or_default() += 1;
        }
        let all_wait = |at: u32, left: u32| waiting.get(&at) == Some(&left);
        self.parents.iter().filter(|(at, parent)| all_wait(*at, parent.left)).count()
    }
}
