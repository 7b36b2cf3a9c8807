//! Signals to a peer that may not be willing to take them.

use std::cell::Cell;
use std::rc::Rc;

use crate::File;

/// What is written: an eventfd counts by it, a pipe or socket just gets eight bytes.
pub(crate) static ONE: u64 = 1;

/// Signals between two that the kernel must confirm. Until then no more are sent: a peer that
/// takes none makes the kernel hold this many for us, and not one for every batch.
const CONFIRM_EVERY: u32 = 64;

/// An eventfd, pipe or socket that a peer holds too, rung without ever waiting for that peer.
///
/// A plain write can sleep: O_NONBLOCK belongs to the open file, which the peer shares and may
/// clear. The ring's write goes on without this thread. Successful ones report nothing and are
/// submitted with whatever else the turn queued, so a signal costs no system call of its own.
#[derive(Debug)]
pub struct PeerNotifier(pub(crate) Rc<BellState>);

#[derive(Debug)]
pub(crate) struct BellState {
    pub(crate) id: u32,
    pub(crate) file: File,
    sent: Cell<u32>,
    /// The signal that must be confirmed is under way.
    confirming: Cell<bool>,
    /// One was wanted meanwhile.
    missed: Cell<bool>,
}

/// How a signal is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Send {
    /// Nothing comes back.
    Silent,
    /// Its end comes back.
    Confirmed,
}

impl BellState {
    pub(crate) fn new(id: u32, file: File) -> Self {
        Self {
            id,
            file,
            sent: Cell::new(0),
            confirming: Cell::new(false),
            missed: Cell::new(false),
        }
    }

    /// Whether and how the next signal is sent.
    pub(crate) fn next(&self) -> Option<Send> {
        if self.confirming.get() {
            self.missed.set(true);
            return None;
        }
        let sent = self.sent.get() + 1;
        if sent < CONFIRM_EVERY {
            self.sent.set(sent);
            return Some(Send::Silent);
        }
        self.sent.set(0);
        self.confirming.set(true);
        Some(Send::Confirmed)
    }

    /// The signal under way has ended; true when another was wanted meanwhile.
    pub(crate) fn confirmed(&self) -> bool {
        self.confirming.set(false);
        self.missed.take()
    }
}
