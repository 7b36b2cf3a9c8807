//! Marks of requests that run alone, because one of them may have ended its process.

use std::sync::atomic::Ordering;

use super::InflightLog;
use crate::crash::stored;

/// Bits of a mark that come from the counter.
const COUNTER_BITS: u32 = 30;

/// A request that a process left in flight when it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspect {
    /// It was in flight together with others.
    AmongOthers,
    /// It was alone in flight.
    Alone,
    /// It was about to fail, because it had been alone in flight at an earlier death.
    Condemned,
}

impl InflightLog {
    /// Returns what is known of the head that [`next_resubmit`](Self::next_resubmit) returns.
    pub(crate) fn next_suspect(&self) -> Option<Suspect> {
        let head = self.next_resubmit()?;
        let mark = self.entry(head).trial.load(Ordering::Relaxed);
        let is = |suspect| mark == self.mark_of(head, suspect);
        let marks = [Suspect::Alone, Suspect::Condemned];
        Some(marks.into_iter().find(|&one| is(one)).unwrap_or(Suspect::AmongOthers))
    }

    /// Marks a recorded head. A process that dies from here on leaves it as this suspect.
    pub(crate) fn mark(&self, head: u16, suspect: Suspect) {
        self.entry(head).trial.store(self.mark_of(head, suspect), Ordering::Release);
        stored();
    }

    fn mark_of(&self, head: u16, suspect: Suspect) -> u32 {
        let tag = match suspect {
            Suspect::AmongOthers => return 0,
            Suspect::Alone => 1,
            Suspect::Condemned => 2,
        };
        let counter = self.entry(head).counter.load(Ordering::Relaxed) as u32;
        counter & ((1 << COUNTER_BITS) - 1) | tag << COUNTER_BITS
    }
}
