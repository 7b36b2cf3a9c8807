//! Work budget of a turn. A number of frames is no measure, since a frame may be large, become many
//! segments, or be flooded.

/// Cost of a frame or a segment beyond its bytes, in bytes. A buffer of the frame costs as much.
pub(crate) const PIECE_BYTES: usize = 256;
/// Budget of a turn in bytes: a quarter of a link to another reactor, so that its reader consumes
/// one part while the next is written.
pub(crate) const TURN_BYTES: usize = 512 << 10;

/// Cost of a turn so far.
#[derive(Debug, Default)]
pub(super) struct TurnBudget(usize);

impl TurnBudget {
    /// Charges a frame or segment of `bytes` bytes. Returns its cost.
    pub(super) fn spend(&mut self, bytes: usize) -> u64 {
        let cost = PIECE_BYTES.saturating_add(bytes);
        self.0 = self.0.saturating_add(cost);
        cost as u64
    }

    /// Returns whether the budget is used up, so that other pollers must run.
    pub(super) fn is_spent(&self) -> bool {
        self.0 >= TURN_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_frames_and_many_small_pieces_end_a_turn() {
        let after = |bytes: usize| {
            let mut turn_budget = TurnBudget::default();
            let spend = |_: &usize| {
                let goes_on = !turn_budget.is_spent();
                turn_budget.spend(bytes);
                goes_on
            };
            (0..10_000).take_while(spend).count()
        };
        assert_eq!(after(65_000), 9);
        // 64 frames of 1,500 bytes fit into a turn.
        assert_eq!(after(1_500), 299);
        assert_eq!(after(8), 1_986);
        assert_eq!(after(usize::MAX - PIECE_BYTES), 1);
    }
}
