//! Survey of all reactors: tokens in flight, and the reactor that holds the lowest key.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::charge;
use crate::state::{NO_KEY, ReactorCell, State, Tokens};

/// Time after which a kicked reactor that does not run is passed over, in nanoseconds.
pub(crate) const STALLED_NS: u64 = 1_000_000;

/// Sums over all reactors, and the other reactor with the lowest key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Survey {
    /// Requests and tokens in flight.
    pub(crate) in_flight: Tokens,
    /// Device time in flight in nanoseconds, which tokens count up to a limit each.
    pub(crate) costs: u64,
    /// Discards in flight.
    pub(crate) discards: u64,
    /// Virtual time: the lowest tag held, or the highest start tag dispatched if that is lower.
    pub(crate) virtual_time: u64,
    /// Another reactor that runs, and its key, which is the lowest.
    pub(crate) other: Option<(usize, u64)>,
    /// Time since which another reactor waits for the end of a discard, the earliest one, and its
    /// slot.
    pub(crate) discard_waits: Option<(u64, usize)>,
}

impl Survey {
    /// Looks at all slots. `own` is the slot of the reactor that asks.
    pub(crate) fn take(state: State<'_>, own: usize, now: u64) -> Self {
        let mut survey = Self::default();
        let (mut lowest, mut tag) = (NO_KEY, u64::MAX);
        for (at, slot) in state.reactors() {
            let load = |cell| slot.reactor(cell).load(Acquire);
            survey.in_flight = survey.in_flight.plus(Tokens::from_bits(load(ReactorCell::Tokens)));
            survey.costs = survey.costs.saturating_add(load(ReactorCell::Costs));
            survey.discards = survey.discards.saturating_add(load(ReactorCell::Discards));
            survey.virtual_time = survey.virtual_time.max(load(ReactorCell::Start));
            if at != own && is_stalled(slot.reactor(ReactorCell::Kicked).load(Relaxed), now) {
                continue;
            }
            let key = load(ReactorCell::Key);
            tag = tag.min(charge::tag_of(key));
            if at == own {
                continue;
            }
            if key < lowest {
                lowest = key;
                survey.other = Some((at, key));
            }
            let since = load(ReactorCell::DiscardWaits);
            if since != 0 && survey.discard_waits.is_none_or(|first| (since, at) < first) {
                survey.discard_waits = Some((since, at));
            }
        }
        // A disk of little weight that was alone has a high tag. It must not put those that return
        // behind one that has waited all the time.
        survey.virtual_time = survey.virtual_time.min(tag);
        survey
    }
}

/// Returns whether a reactor has not taken its kick in time.
pub(crate) fn is_stalled(kicked: u64, now: u64) -> bool {
    kicked != 0 && now.saturating_sub(kicked) > STALLED_NS
}

/// Returns the device time that floors got beyond their part, over all reactors.
pub(crate) fn floor_excess(state: State<'_>) -> i64 {
    state.reactors().fold(0, |sum: i64, (_, slot)| {
        sum.saturating_add(slot.reactor(ReactorCell::FloorExcess).load(Relaxed) as i64)
    })
}
