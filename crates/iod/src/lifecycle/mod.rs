//! What may be done to a disk when: a pure state machine (design 5).
//!
//! ```text
//!            attach             activate             pause
//!   (none) ---------> attached ---------> active <-----------> paused
//!      ^                 |  ^                |       resume      |
//!      |                 |  +-- deactivate --+-------------------+
//!      +---- detach -----+-------------------+-------------------+
//!
//!   held --restore--> as it was, or refused --activate--> active
//! ```
//! Every verb takes time, and while one is at work the disk is busy with it: all others are
//! refused until it has ended. Only a disk that holds its lock is resized or paused: without it
//! the image may be somebody else's. Verbs whose goal is reached already do nothing and succeed,
//! so that a caller who lost an answer can ask again; but a paused disk is not activated, so that
//! nobody goes on by accident while somebody else relies on the pause.

#[cfg(test)]
mod tests;

use std::fmt;

/// Where a disk rests between verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StableState {
    /// Opened and listening; holds no lock and serves nothing.
    Attached,
    /// Holds the lock and serves.
    Active,
    /// Holds the lock and serves nothing; its front-end stays and waits.
    Paused,
    /// Held, and not to be had as it was: not open, and nobody is let in.
    Refused,
}

/// Something that is done to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Open and listen.
    Attach,
    /// Open what a worker before us had, and serve it as it was.
    Restore,
    /// Take the lock and serve.
    Activate,
    /// Drain, flush, release the lock.
    Deactivate,
    /// Drain and hold; the lock is kept.
    Pause,
    /// Serve again.
    Resume,
    /// Take a new size.
    Resize,
    /// Take other caps.
    Caps,
    /// Poll it otherwise.
    Poll,
    /// Offer it over NBD.
    Export,
    /// End exports.
    Unexport,
    /// Deactivate, close, forget.
    Detach,
}

/// A disk in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is being done to it.
    At(StableState),
    /// A verb is at work; the disk rested there before. A disk that is being attached or restored
    /// rested nowhere: there it is where the disk is to rest.
    Busy(Verb, StableState),
}

/// Answer to a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbDecision {
    /// Do it; the disk is in this phase until [`Phase::stop_deadline`].
    Work(Phase),
    /// It is so already.
    Nothing,
}

/// A verb that cannot be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbRefused {
    /// Another verb is at work.
    #[error("the disk is being {0}; try again when that has ended")]
    Busy(VerbText),
    /// The id is taken.
    #[error("a disk of this id is attached already; detach it or choose another id")]
    Exists,
    /// Without the lock, the image may be somebody else's to change.
    #[error("the disk is not active, and only an active disk can be {0}; activate it first")]
    Inactive(VerbText),
    /// It is not open.
    #[error("the disk is refused, see `stats`; activate it to try again, or detach it")]
    NotOpen,
    /// Whoever paused it relies on that.
    #[error("the disk is paused; resume it, or deactivate it first")]
    Paused,
}

/// How a verb at work is called in a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbText(Verb);

impl fmt::Display for VerbText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Verb::Attach => "attached",
            Verb::Restore => "taken over",
            Verb::Activate => "activated",
            Verb::Deactivate => "deactivated",
            Verb::Pause => "paused",
            Verb::Resume => "resumed",
            Verb::Resize => "resized",
            Verb::Caps => "given other caps",
            Verb::Poll => "polled otherwise",
            Verb::Export => "exported",
            Verb::Unexport => "unexported",
            Verb::Detach => "detached",
        })
    }
}

impl Verb {
    /// How callers name it.
    pub fn method(self) -> &'static str {
        match self {
            Self::Attach => "disk.attach",
            Self::Restore => "restore",
            Self::Activate => "disk.activate",
            Self::Deactivate => "disk.deactivate",
            Self::Pause => "disk.pause",
            Self::Resume => "disk.resume",
            Self::Resize => "disk.resize",
            Self::Caps => "disk.caps",
            Self::Poll => "disk.poll",
            Self::Export => "disk.export",
            Self::Unexport => "disk.unexport",
            Self::Detach => "disk.detach",
        }
    }
}

impl Phase {
    /// A verb arrives for a disk in the table.
    ///
    /// # Errors
    /// [`VerbRefused`].
    pub fn begin(self, verb: Verb) -> Result<VerbDecision, VerbRefused> {
        match (verb, self) {
            (Verb::Attach | Verb::Restore, _) => Err(VerbRefused::Exists),
            (_, Self::Busy(at_work, _)) => Err(VerbRefused::Busy(VerbText(at_work))),
            (Verb::Activate | Verb::Resume, Self::At(StableState::Active))
            | (Verb::Pause, Self::At(StableState::Paused))
            | (Verb::Deactivate, Self::At(StableState::Attached)) => Ok(VerbDecision::Nothing),
            (Verb::Resize | Verb::Pause | Verb::Resume, Self::At(StableState::Attached)) => {
                Err(VerbRefused::Inactive(VerbText(verb)))
            }
            (Verb::Activate, Self::At(StableState::Paused)) => Err(VerbRefused::Paused),
            (Verb::Activate, Self::At(StableState::Refused)) => {
                Ok(VerbDecision::Work(Self::Busy(Verb::Restore, StableState::Active)))
            }
            (Verb::Detach, Self::At(stable_state)) => {
                Ok(VerbDecision::Work(Self::Busy(verb, stable_state)))
            }
            (_, Self::At(StableState::Refused)) => Err(VerbRefused::NotOpen),
            (_, Self::At(stable_state)) => Ok(VerbDecision::Work(Self::Busy(verb, stable_state))),
        }
    }

    /// The verb at work has ended; `None`: the disk is gone from the table.
    ///
    /// A verb that takes something away has taken it away even when it failed: a failed flush is
    /// reported, and the lock is released all the same; a drain that did not end in time is
    /// reported, and nothing is served all the same.
    pub fn end(self, succeeded: bool) -> Option<Self> {
        let Self::Busy(verb, stable_state) = self else { return Some(self) };
        match (verb, succeeded) {
            (Verb::Detach, _) | (Verb::Attach, false) => None,
            (Verb::Deactivate, _) => Some(Self::At(StableState::Attached)),
            (Verb::Activate | Verb::Resume, true) => Some(Self::At(StableState::Active)),
            (Verb::Pause, _) => Some(Self::At(StableState::Paused)),
            (Verb::Restore, false) => Some(Self::At(StableState::Refused)),
            (Verb::Attach | Verb::Restore, true)
            | (Verb::Activate | Verb::Resume, false)
            | (Verb::Resize | Verb::Caps | Verb::Poll | Verb::Export | Verb::Unexport, _) => {
                Some(Self::At(stable_state))
            }
        }
    }
}
