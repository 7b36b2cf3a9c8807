//! How much a turn may do: frames are no measure, since one may be large, become many, or go to
//! everybody.

/// What a frame or a segment costs beside its bytes, as so many bytes; a buffer that it lies in costs
/// as much.
pub(crate) const PIECE_BYTES: usize = 256;
/// What a turn may spend: a quarter of what a link to another reactor holds, so that its reader takes
/// one part while the next is written.
pub(crate) const TURN_BYTES: usize = 512 << 10;

/// What a turn has done so far.
#[derive(Debug, Default)]
pub(super) struct TurnBudget(usize);

impl TurnBudget {
    /// Something of so many bytes was handed on. Returns what that costs.
    pub(super) fn spend(&mut self, bytes: usize) -> u64 {
        let cost = PIECE_BYTES.saturating_add(bytes);
        self.0 = self.0.saturating_add(cost);
        cost as u64
    }

    /// Others have their turn now.
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
        // 64 frames of 1,500 bytes are within a turn.
        assert_eq!(after(1_500), 299);
        assert_eq!(after(8), 1_986);
        assert_eq!(after(usize::MAX - PIECE_BYTES), 1);
    }
}
