//! Whose turn it is in a conversation, for those who cannot wait for the front-end's.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Who is waited for.
#[derive(Debug, Default)]
pub(crate) struct MessageTurn {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The front-end has to end what it has begun to send, or to take its answer.
    theirs: bool,
    /// How often it has.
    ended: u64,
}

/// It is the front-end's turn until this is dropped.
#[derive(Debug)]
pub(crate) struct FrontEndTurn<'a>(&'a MessageTurn);

impl MessageTurn {
    pub(crate) fn theirs(&self) -> FrontEndTurn<'_> {
        self.lock().theirs = true;
        FrontEndTurn(self)
    }

    /// Waits until the turn that is the front-end's now has ended; false: it has not by `until`.
    pub(crate) fn wait_message_boundary(&self, until: Instant) -> bool {
        let mut state = self.lock();
        let ended = state.ended;
        while state.theirs && state.ended == ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No step of a change can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FrontEndTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.theirs = false;
        state.ended = state.ended.wrapping_add(1);
        self.0.changed.notify_all();
    }
}
