//! Tracks whether a session waits for its front-end, for callers that wait for a message boundary.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// State of the conversation: front-end's turn or backend's turn.
#[derive(Debug, Default)]
pub(crate) struct MessageTurn {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// True while the front-end must finish sending a message, or receive its reply.
    theirs: bool,
    /// Number of front-end turns that have ended.
    ended: u64,
}

/// Guard of a front-end turn, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct FrontEndTurn<'a>(&'a MessageTurn);

impl MessageTurn {
    pub(crate) fn theirs(&self) -> FrontEndTurn<'_> {
        self.lock().theirs = true;
        FrontEndTurn(self)
    }

    /// Waits until the current front-end turn has ended. Returns false if it lasts beyond `until`.
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
        // No state change can panic, so a poisoned mutex is consistent.
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
