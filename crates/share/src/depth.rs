//! Depth: the device time that may be in flight.
//!
//! The depth is the profile's knee. If latency is more than twice the profile's for 100 ms, others
//! use the storage or it has become slower: the depth falls by a tenth. It recovers in steps of a
//! fiftieth. There is no search for a better depth, because a search oscillates.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::profile::Profile;
use crate::state::{Header, ReactorCell, State};

/// Length of a window in nanoseconds.
pub(crate) const WINDOW_NS: u64 = 100_000_000;
/// Divisor of the knee that is the lowest depth: a slower device still needs enough in flight.
const LOWEST: u64 = 2;

/// Ends the window if it is over, and changes the depth.
pub(crate) fn end_window(state: State<'_>, profile: &Profile, now: u64) {
    let start = state.header(Header::Window);
    let began = start.load(Acquire);
    let length = now.saturating_sub(began);
    if length < WINDOW_NS || start.compare_exchange(began, now, AcqRel, Relaxed).is_err() {
        return;
    }
    let grown = |header, cell| {
        let sum = state
            .reactors()
            .fold(0, |sum: u64, (_, slot)| sum.wrapping_add(slot.reactor(cell).load(Relaxed)));
        // A slot that was freed and taken anew made the sum smaller: this window says nothing.
        sum.saturating_sub(state.header(header).swap(sum, Relaxed))
    };
    let latency = grown(Header::Latency, ReactorCell::Latency);
    let expected = grown(Header::Expected, ReactorCell::Expected);
    // Seeks make latency say nothing. A window of several lengths was mostly idle.
    if profile.turn.is_some() || expected == 0 || length > 4 * WINDOW_NS {
        return;
    }
    let depth = state.header(Header::Depth);
    let now = depth.load(Relaxed);
    if latency > expected.saturating_mul(2) {
        depth.store((now - now / 10).max(profile.knee_ns / LOWEST), Relaxed);
        state.header(Header::Tightened).fetch_add(1, Relaxed);
    } else if latency < expected.saturating_mul(3) / 2 && now < profile.knee_ns {
        depth.store((now.saturating_add(profile.knee_ns / 50)).min(profile.knee_ns), Relaxed);
    }
}
