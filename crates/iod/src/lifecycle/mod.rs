//! State machine of a disk: which verb may run in which state. It does no I/O.
//!
//! ```text
//!           attach             activate             pause
//!  (none) ---------> attached ---------> active <-----------> paused
//!     ^                 |  ^                |       resume      |
//!     |                 |  +-- deactivate --+-------------------+
//!     +---- detach -----+-------------------+-------------------+
//!
//!  preserved --restore--> as it was, or refused --activate--> active
//! ```
//! Verbs take time. While one runs, the disk is busy and refuses all others. Only a disk that has
//! its image locked can be resized or paused, because without the lock another program may use the
//! image. A disk without a socket stays attached. A verb whose goal is reached already does nothing and succeeds, so that a caller who lost
//! a reply can repeat it. A paused disk is an exception: it cannot be activated. Otherwise one
//! caller could end a pause by accident on which another caller relies.

#[cfg(test)]
mod tests;

use std::fmt;

/// Stable state of a disk between verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StableState {
    /// Opened and listening; not locked and not served.
    Attached,
    /// Locked and served.
    Active,
    /// Locked but not served. Its front-end stays connected and waits.
    Paused,
    /// Preserved, but cannot be reopened as its guest saw it. Not open; no front-end is accepted.
    Refused,
}

/// Operation on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Open and listen.
    Attach,
    /// Reopen a disk of a former worker and serve it in its former state.
    Restore,
    /// Lock the image and serve.
    Activate,
    /// Drain, flush, release the lock.
    Deactivate,
    /// Drain and keep the lock.
    Pause,
    /// Serve again.
    Resume,
    /// Set a new size.
    Resize,
    /// Replace the backend.
    Replace,
    /// Set new caps.
    Caps,
    /// Set a new share of the storage.
    Weight,
    /// Follow a profile of the storage that the disk did not have.
    Profile,
    /// Change the polling.
    Poll,
    /// Export it over NBD.
    Export,
    /// End exports.
    Unexport,
    /// Write the writes of an overlay to an image.
    Commit,
    /// Deactivate, close, forget.
    Detach,
}

/// Phase of a disk in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No verb is running.
    At(StableState),
    /// A verb is running. The state is the one before the verb. For an attach or restore, it is the
    /// state that the disk will have.
    Busy(Verb, StableState),
}

/// Decision about a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbDecision {
    /// Run the verb. The disk has this phase until [`Phase::end`].
    Work(Phase),
    /// Do nothing, because the goal is reached already.
    Nothing,
}

/// Reason why a verb cannot run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbRefused {
    /// Another verb is running.
    #[error("the disk is being {0}; try again when that has ended")]
    Busy(VerbText),
    /// The id is in use.
    #[error("a disk of this id is attached already; detach it or choose another id")]
    Exists,
    /// The disk is not locked, so another program may change the image.
    #[error("the disk is not active, and only an active disk can be {0}; activate it first")]
    Inactive(VerbText),
    /// The guest of the disk runs, and must not change it.
    #[error("the disk is active, so it may change meanwhile; pause it first (disk.pause)")]
    Running,
    /// The disk is not open.
    #[error("the disk is refused, see `stats`; activate it to try again, or detach it")]
    NotOpen,
    /// No guest can use the disk.
    #[error(
        "the disk has no socket, so no guest uses it, and it cannot be {0}; detach it, and attach \
         it with a socket"
    )]
    NoSocket(VerbText),
    /// The disk is paused, and another caller may rely on the pause.
    #[error("the disk is paused; resume it, or deactivate it first")]
    Paused,
}

/// Text that names a running verb in a sentence.
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
            Verb::Replace => "given another backend",
            Verb::Caps => "given new caps",
            Verb::Weight => "given a new weight",
            Verb::Profile => "given a new profile of its storage",
            Verb::Poll => "given new polling settings",
            Verb::Export => "exported",
            Verb::Unexport => "unexported",
            Verb::Commit => "copied to an image",
            Verb::Detach => "detached",
        })
    }
}

impl Verb {
    /// Checks that the verb makes sense for a disk without a socket, which is never active.
    ///
    /// # Errors
    /// [`VerbRefused::NoSocket`].
    pub fn check_without_socket(self) -> Result<(), VerbRefused> {
        match self {
            Self::Activate | Self::Pause | Self::Resume | Self::Resize => {
                Err(VerbRefused::NoSocket(VerbText(self)))
            }
            _ => Ok(()),
        }
    }

    /// Returns the method name of the verb.
    pub fn method(self) -> &'static str {
        match self {
            Self::Attach => "disk.attach",
            Self::Restore => "restore",
            Self::Activate => "disk.activate",
            Self::Deactivate => "disk.deactivate",
            Self::Pause => "disk.pause",
            Self::Resume => "disk.resume",
            Self::Resize => "disk.resize",
            Self::Replace => "disk.replace",
            Self::Caps => "disk.caps",
            Self::Weight => "disk.weight",
            Self::Profile => "storage.profile",
            Self::Poll => "disk.poll",
            Self::Export => "disk.export",
            Self::Unexport => "disk.unexport",
            Self::Commit => "image.commit",
            Self::Detach => "disk.detach",
        }
    }
}

impl Phase {
    /// Decides whether a verb may run on a disk in the registry.
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
            (Verb::Commit, Self::At(StableState::Active)) => Err(VerbRefused::Running),
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

    /// Returns the phase after the running verb has ended, or `None` if the disk leaves the
    /// registry.
    ///
    /// A verb that releases something has released it even if it failed. After a failed flush, the
    /// lock is released all the same. After a drain that missed its deadline, the disk is not
    /// served all the same.
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
            | (
                Verb::Replace
                | Verb::Resize
                | Verb::Caps
                | Verb::Weight
                | Verb::Profile
                | Verb::Poll
                | Verb::Export
                | Verb::Unexport
                | Verb::Commit,
                _,
            ) => Some(Self::At(stable_state)),
        }
    }
}
