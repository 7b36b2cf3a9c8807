//! Steps in which the completions of a turn are published.
//!
//! ```text
//! one step at the end:  serve serve serve serve publish call ......... | driver wakes, takes all
//! steps:                serve publish call serve serve publish serve publish
//!                                      '.. driver wakes ..' takes what is there, finds more
//! ```
//! A call that is made early lets the driver wake up while the rest of the turn runs. A driver that
//! is awake finds the later steps before it would sleep. A step does not call a driver that has added
//! requests since the step before: it is awake. The end of the turn calls for all that is left.
//! `model.rs` has the costs and the gain in simulated time.

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// Most requests before the first step of a turn.
const FIRST_MAX: u32 = 4;
/// Fewest and most requests between two later steps. Smaller steps move the ring's index between
/// two CPUs more often than that is worth.
const STEP_MIN: u32 = 8;
const STEP_MAX: u32 = 16;
/// Requests of an average turn below which steps gain nothing: the end of the turn is as early.
const TURN_MIN: u32 = 3;
/// Turns that the average is taken over.
const TURNS: u32 = 8;

/// Decides after which of the requests that end during submission a turn publishes.
#[derive(Debug)]
pub(super) struct Steps {
    /// False for drivers without event index, which would be called at each step.
    allowed: bool,
    /// Requests that end during submission in [`TURNS`] average turns with such requests.
    in_turns: u32,
    /// Requests of this turn that have ended.
    ended: u32,
    /// Requests before the next step.
    left: u32,
    /// Requests between two later steps.
    later: u32,
}

impl Steps {
    pub(super) fn new(event_idx: bool) -> Self {
        Self { allowed: event_idx, in_turns: 0, ended: 0, left: u32::MAX, later: STEP_MIN }
    }

    /// Begins a turn for which `waiting` requests are in the ring. The first step comes after a
    /// third of them, or of what recent turns had: a device that polls finds a batch while the
    /// driver still adds to it.
    pub(super) fn begin_turn(&mut self, waiting: u16) {
        if self.ended > 0 {
            self.in_turns = self.in_turns - self.in_turns / TURNS + self.ended;
            self.ended = 0;
        }
        let turn = (self.in_turns / TURNS).max(waiting.into());
        self.left = u32::MAX;
        if self.allowed && turn >= TURN_MIN {
            self.left = (turn / 3).min(FIRST_MAX);
            self.later = (turn / 4).clamp(STEP_MIN, STEP_MAX);
        }
    }

    /// Returns whether completions of former turns are due before a turn with `waiting` requests.
    pub(super) fn former_due(&self, waiting: u16) -> bool {
        self.allowed && u32::from(waiting) >= STEP_MIN
    }

    /// Counts a request that ended during submission. Returns whether its completion and those
    /// before it are due.
    #[inline]
    pub(super) fn request_ended(&mut self) -> bool {
        self.ended += 1;
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.left = self.later;
        true
    }
}
