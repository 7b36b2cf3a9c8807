//! Tracks through `used_event` how many completions a driver has taken.

/// Observations of a driver's `used_event`, updated at each poll.
///
/// A driver that requests a call for the completions after an event has taken those before it. But
/// the driver writes the event only when it waits for calls. Linux leaves the former event while it
/// polls after an interrupt (`virtqueue_disable_cb_split`). The event has 16 bits, so an old event
/// appears new again one lap of the used index later. Therefore the tracker trusts an event only if
/// it saw the event change within less than a lap. From then on it counts with 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsedEventTracker {
    /// Event at the last poll, and the number of completions published by then.
    last: Option<(u16, u64)>,
    /// Number of completions that the driver has taken. `None`: unknown.
    taken: Option<u64>,
}

impl UsedEventTracker {
    /// Returns how many of `shown` published completions the driver may not have taken. `idx` is
    /// the used index after the last of them, and `size` the size of the ring. Returns `None` if
    /// the event gives no information.
    ///
    /// A driver that requests a call later than for its next completion only harms the order of its
    /// own requests. An event of 0 gives no information: Linux writes 0 when it wants no calls.
    pub(crate) fn unconsumed(
        &mut self,
        event: u16,
        idx: u16,
        shown: u64,
        size: u16,
    ) -> Option<u64> {
        let former = self.last.replace((event, shown));
        if former.is_none_or(|(last, _)| last != event) {
            // The event lies at most one ring size before the completions published at the last
            // poll.
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
        let mut unconsumed =
            |event, shown: u64| used_event_tracker.unconsumed(event, shown as u16, shown, SIZE);
        assert_eq!(unconsumed(90, 100), None, "nobody knows when it was written");
        assert_eq!(unconsumed(110, 120), Some(10));
        assert_eq!(unconsumed(110, 200), Some(90));
        assert_eq!(unconsumed(0, 210), None, "no calls are wanted");
        assert_eq!(unconsumed(0, 220), None);
        assert_eq!(unconsumed(215, 220), Some(5));
        assert_eq!(unconsumed(400, 230), None, "it lies ahead");
    }

    #[test]
    fn an_old_event_stays_old_a_lap_later() {
        let mut used_event_tracker = UsedEventTracker::default();
        let mut unconsumed = |event: u64, shown: u64| {
            used_event_tracker.unconsumed(event as u16, shown as u16, shown, SIZE)
        };
        unconsumed(90, 100);
        assert_eq!(unconsumed(100, 100), Some(0));
        // The driver polls from now on. By 16 bits, ten completions follow the event, then none.
        assert_eq!(unconsumed(100, LAP + 110), Some(LAP + 10));
        assert_eq!(unconsumed(100, 2 * LAP + 100), Some(2 * LAP));
        assert_eq!(unconsumed(2 * LAP + 300, 2 * LAP + 301), Some(1));
        // The driver may have written this event at any time during more than a lap.
        assert_eq!(unconsumed(3 * LAP + 290, 3 * LAP + 300), None);
        assert_eq!(unconsumed(3 * LAP + 290, 3 * LAP + 310), None);
        assert_eq!(unconsumed(3 * LAP + 315, 3 * LAP + 320), Some(5));
    }
}
