//! How far a driver has taken completions, as its `used_event` tells.

/// What was seen of a driver's `used_event` by whoever looks at it now and then.
///
/// A driver that is to be called for what follows an event has taken what is before it. But it writes one
/// only when it waits for calls: Linux leaves the former one as it is while it polls after an interrupt
/// (`virtqueue_disable_cb_split`), and an event has 16 bits, so that a lap of the used index later an old one
/// looks like a new one. Therefore one is believed that was seen to change, within less than a lap, and is
/// counted in full from then on.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsedEventTracker {
    /// The event at the last look, and completions that were shown by then.
    last: Option<(u16, u64)>,
    /// Completions that have been taken.
    taken: Option<u64>,
}

impl UsedEventTracker {
    /// How many of `shown` completions, the last of which made the used index `idx`, the driver may not
    /// have taken; `None`: it tells nothing. The ring is of `size`.
    ///
    /// One that asks to be called later than for the next completion errs about its own order and nobody
    /// else's. An event of 0 says nothing: Linux writes that when it wants no calls.
    pub(crate) fn unconsumed(
        &mut self,
        event: u16,
        idx: u16,
        shown: u64,
        size: u16,
    ) -> Option<u64> {
        let former = self.last.replace((event, shown));
        if former.is_none_or(|(last, _)| last != event) {
            // It lies at most a ring before what was shown at the look before.
            let within = |(_, at): (u16, u64)| shown - at + u64::from(size) <= u16::MAX.into();
            let distance = u64::from(idx.wrapping_sub(event));
            let is_new = event != 0 && former.is_some_and(within);
            self.taken = if is_new { shown.checked_sub(distance) } else { None };
        }
        self.taken.map(|taken| shown - taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u16 = 256;
    const LAP: u64 = 1 << 16;

    #[test]
    fn an_event_is_believed_once_it_has_changed() {
        let mut used_event_tracker = UsedEventTracker::default();
        let mut look =
            |event, shown: u64| used_event_tracker.unconsumed(event, shown as u16, shown, SIZE);
        assert_eq!(look(90, 100), None, "nobody knows when it was written");
        assert_eq!(look(110, 120), Some(10));
        assert_eq!(look(110, 200), Some(90));
        assert_eq!(look(0, 210), None, "no calls are wanted");
        assert_eq!(look(0, 220), None);
        assert_eq!(look(215, 220), Some(5));
        assert_eq!(look(400, 230), None, "it lies ahead");
    }

    #[test]
    fn an_old_event_stays_old_a_lap_later() {
        let mut used_event_tracker = UsedEventTracker::default();
        let mut look = |event: u64, shown: u64| {
            used_event_tracker.unconsumed(event as u16, shown as u16, shown, SIZE)
        };
        look(90, 100);
        assert_eq!(look(100, 100), Some(0));
        // The driver polls from now on. What is behind the event by 16 bits is ten, and then none.
        assert_eq!(look(100, LAP + 110), Some(LAP + 10));
        assert_eq!(look(100, 2 * LAP + 100), Some(2 * LAP));
        assert_eq!(look(2 * LAP + 300, 2 * LAP + 301), Some(1));
        // One that was written at some time in more than a lap.
        assert_eq!(look(3 * LAP + 290, 3 * LAP + 300), None);
        assert_eq!(look(3 * LAP + 290, 3 * LAP + 310), None);
        assert_eq!(look(3 * LAP + 315, 3 * LAP + 320), Some(5));
    }
}
