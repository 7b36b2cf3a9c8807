//! One after the other: the requests of a process that died by its own fault.

use crate::{Chain, Queue, RingError, Suspect};

impl Queue {
    /// Returns what is known of the next request that a process left in flight when it died. `None`
    /// if there is none, or if the ring has failed.
    pub fn next_suspect(&self) -> Option<Suspect> {
        self.inflight_log.as_ref().filter(|_| !self.failed)?.next_suspect()
    }

    /// Marks and pops the next request that a process left in flight when it died. The mark tells the
    /// truth only while the ring [rests](Self::rests).
    ///
    /// # Errors
    /// The driver broke a rule. The error is reported once, and the queue has failed.
    pub fn pop_suspect(&mut self, mark: Suspect) -> Result<Option<Chain>, RingError> {
        let Some(head) = self.suspected_head() else { return Ok(None) };
        let popped = self.pop_again(head, mark);
        self.failed = popped.is_err();
        popped.map(Some)
    }

    /// Completes the next request that a process left in flight when it died, without reading it. The
    /// device writes nothing, not even an answer.
    pub fn complete_suspect_unread(&mut self) {
        let Some(head) = self.suspected_head() else { return };
        if let Some(inflight_log) = &mut self.inflight_log {
            inflight_log.mark_resubmitted();
            inflight_log.pushed(head);
        }
        self.rings.put_used(self.next_used, head, 0);
        self.next_used = self.next_used.wrapping_add(1);
    }

    fn suspected_head(&self) -> Option<u16> {
        self.inflight_log.as_ref().filter(|_| !self.failed)?.next_resubmit()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{BUFFERS, Driver};
    use crate::inflight::InflightRegion;

    /// Starts a process that serves the ring.
    fn live(driver: &Driver, region: &InflightRegion) -> Queue {
        Queue::new(driver.config, driver.table.clone(), region.queue(0)).unwrap()
    }

    /// The process dies: its chains are lost.
    fn die(queue: Queue, chain: Option<Chain>) {
        chain.into_iter().for_each(Chain::abandon);
        drop(queue);
    }

    /// Returns a ring whose process has died with the chain of this head in flight.
    fn left_behind(head: u16) -> (Driver, InflightRegion) {
        let mut driver = Driver::new(8, BUFFERS + 0x1000, true);
        let region = InflightRegion::create(1, 8).unwrap();
        driver.put_desc(head, BUFFERS, 8, 0, 0);
        driver.offer(head);
        driver.publish();
        let mut queue = live(&driver, &region);
        let chain = queue.pop().unwrap();
        die(queue, chain);
        (driver, region)
    }

    #[test]
    fn a_process_that_dies_leaves_what_it_knew_of_its_suspect() {
        let (mut driver, region) = left_behind(3);
        for (found, mark) in [
            (Suspect::AmongOthers, Suspect::Alone),
            (Suspect::Alone, Suspect::AmongOthers),
            (Suspect::AmongOthers, Suspect::Alone),
            (Suspect::Alone, Suspect::Condemned),
        ] {
            let mut queue = live(&driver, &region);
            assert_eq!(queue.next_suspect(), Some(found));
            let chain = queue.pop_suspect(mark).unwrap();
            assert_eq!(queue.next_suspect(), None);
            die(queue, chain);
        }
        // The chain was about to fail. It ends without being read.
        let mut queue = live(&driver, &region);
        assert_eq!(queue.next_suspect(), Some(Suspect::Condemned));
        queue.complete_suspect_unread();
        assert_eq!((queue.next_suspect(), queue.rests()), (None, false));
        let _ = queue.publish();
        assert_eq!((driver.used(), queue.rests()), (Some((3, 0)), true));
        // The same descriptor carries another request, which nobody suspects.
        driver.offer(3);
        driver.publish();
        let chain = queue.pop().unwrap();
        die(queue, chain);
        assert_eq!(live(&driver, &region).next_suspect(), Some(Suspect::AmongOthers));
    }

    /// The walk over the chain may be what ends the process, so the mark is there before.
    #[test]
    fn a_suspect_is_marked_before_it_is_read() {
        let (driver, region) = left_behind(0);
        driver.put_desc(0, BUFFERS, 0, 0, 0);
        let mut queue = live(&driver, &region);
        assert!(queue.pop_suspect(Suspect::Alone).is_err(), "a descriptor without bytes");
        die(queue, None);
        assert_eq!(live(&driver, &region).next_suspect(), Some(Suspect::Alone));
    }
}
