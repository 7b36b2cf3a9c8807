//! One after the other: the requests of a process that died by its own fault.

use crate::{Chain, Queue, RingError, Suspect};

impl Queue {
    /// Returns what is known of the next request that a process left in flight when it died. `None`
    /// if there is none, or if the ring has failed.
    pub fn next_suspect(&self) -> Option<Suspect> {
        self.inflight_log.as_ref().filter(|_| !self.failed)?.next_suspect()
    }

    /// Pops the next request that a process left in flight when it died, and marks it. The mark
    /// tells the truth only while the ring [rests](Self::rests).
    ///
    /// # Errors
    /// The driver broke a rule. The error is reported once, and the queue has failed.
    pub fn pop_suspect(&mut self, mark: Suspect) -> Result<Option<Chain>, RingError> {
        if self.next_suspect().is_none() {
            return Ok(None);
        }
        let popped = self.pop();
        if let (Ok(Some(chain)), Some(inflight_log)) = (&popped, &self.inflight_log) {
            inflight_log.mark(chain.head(), mark);
        }
        popped
    }

    /// Removes the mark of a request in flight.
    pub fn clear_mark(&mut self, head: u16) {
        if let Some(inflight_log) = self.inflight_log.as_ref().filter(|_| head < self.config.size) {
            inflight_log.mark(head, Suspect::AmongOthers);
        }
    }

    /// Returns whether no request is in flight and all completions are published.
    pub fn rests(&self) -> bool {
        self.in_flight == 0 && self.published == self.next_used
    }
}
