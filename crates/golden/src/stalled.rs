//! Sources that did not answer, or take no more connections. Machines that start together would wait for
//! such a source one after the other, each for its deadline.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Least time without an answer of a source that stalls. One that refuses connections holds up nothing.
const SLOW: Duration = Duration::from_secs(1);
/// Time for which a source that stalls is not asked for its image.
const PAUSE: Duration = Duration::from_secs(10);

static STALLED: Mutex<Stalled> = Mutex::new(Stalled(BTreeMap::new()));

/// Sources that stall, by their addresses, with the times until which they are not asked.
#[derive(Debug)]
pub(crate) struct Stalled(BTreeMap<String, Instant>);

impl Stalled {
    /// Returns those of this process.
    pub(crate) fn of_process() -> MutexGuard<'static, Self> {
        STALLED.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a source is not to be asked now.
    pub(crate) fn has(&self, origin: &str, now: Instant) -> bool {
        self.0.get(origin).is_some_and(|until| now < *until)
    }

    /// Notes that a source which was asked at `asked` has failed now.
    pub(crate) fn note_failure(&mut self, origin: &str, asked: Instant, now: Instant) {
        if now.saturating_duration_since(asked) >= SLOW {
            self.leave_alone(origin, now, PAUSE);
        }
    }

    /// Notes that a source is not to be asked for a while.
    pub(crate) fn leave_alone(&mut self, origin: &str, now: Instant, pause: Duration) {
        self.0.retain(|_, until| now < *until);
        self.0.insert(origin.to_owned(), now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_without_an_answer_is_left_alone_for_a_while() {
        let (mut stalled, asked) = (Stalled(BTreeMap::new()), Instant::now());
        stalled.note_failure("refuses", asked, asked + SLOW / 2);
        let failed = asked + SLOW;
        stalled.note_failure("stalls", asked, failed);
        assert!(stalled.has("stalls", failed) && stalled.has("stalls", failed + PAUSE / 2));
        assert!(!stalled.has("refuses", failed) && !stalled.has("stalls", failed + PAUSE));
        stalled.leave_alone("full", failed + PAUSE, PAUSE);
        assert!(stalled.has("full", failed + PAUSE), "it is left alone at once");
        assert_eq!(stalled.0.len(), 1, "former ones are forgotten");
    }
}
