//! Signals to a peer that may not read them.

use std::cell::Cell;
use std::rc::Rc;

use crate::File;

/// Value that is written: an eventfd adds it, a pipe or socket receives eight bytes.
pub(crate) static ONE: u64 = 1;

/// Signals between two that the kernel must confirm. No more are sent while one is unconfirmed. So
/// for a peer that reads none, the kernel holds at most this many, not one for every batch.
const CONFIRM_EVERY: u32 = 64;

/// Eventfd, pipe or socket shared with a peer, which is signalled without ever waiting for the
/// peer.
///
/// A plain write can sleep: O_NONBLOCK belongs to the open file, which the peer shares and may
/// clear. A write by the io_uring does not block this thread. Successful writes report no
/// completion and are submitted with the other entries of the turn. So a signal costs no system
/// call of its own.
#[derive(Debug)]
pub struct PeerNotifier(pub(crate) Rc<NotifierState>);

#[derive(Debug)]
pub(crate) struct NotifierState {
    pub(crate) id: u32,
    pub(crate) file: File,
    sent: Cell<u32>,
    /// True while the kernel has not confirmed the last signal of a series.
    confirming: Cell<bool>,
    /// True if a signal was requested meanwhile.
    missed: Cell<bool>,
}

/// Kind of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Send {
    /// The kernel reports no completion.
    Silent,
    /// The kernel reports the completion.
    Confirmed,
}

impl NotifierState {
    pub(crate) fn new(id: u32, file: File) -> Self {
        Self {
            id,
            file,
            sent: Cell::new(0),
            confirming: Cell::new(false),
            missed: Cell::new(false),
        }
    }

    /// Returns the kind of the next signal, or `None` if no signal may be sent now.
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

    /// Records that the kernel has confirmed the signal. Returns true if another was requested
    /// meanwhile.
    pub(crate) fn confirmed(&self) -> bool {
        self.confirming.set(false);
        self.missed.take()
    }
}
