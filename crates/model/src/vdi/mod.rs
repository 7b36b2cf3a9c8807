//! Disks: their operations and users.

pub mod automaton;
mod gate;

use crate::sr::SrFeature;
use crate::vbd::VbdOp;
use crate::vm::PowerState;
use crate::wire_names::named;
use automaton::Access;

pub use gate::{allowed, check};

named! {
    /// Operation on a disk.
    VdiOp {
        /// Create another disk that shares its content.
        Clone = "clone",
        /// Create a full copy.
        Copy = "copy",
        /// Change its size while it is not in use.
        Resize = "resize",
        /// Change its size while it is in use.
        ResizeOnline = "resize_online",
        /// Create a snapshot of its content.
        Snapshot = "snapshot",
        /// Write to a second disk as well.
        Mirror = "mirror",
        /// Remove it and its content.
        Destroy = "destroy",
        /// Remove its record but not its content.
        Forget = "forget",
        /// Read its properties again.
        Update = "update",
        /// Remove a lock.
        ForceUnlock = "force_unlock",
        /// Create a configuration with which it can be reached at boot.
        GenerateConfig = "generate_config",
        /// Enable changed block tracking.
        EnableCbt = "enable_cbt",
        /// Disable changed block tracking.
        DisableCbt = "disable_cbt",
        /// Remove its content but keep its changed block metadata.
        DataDestroy = "data_destroy",
        /// List the blocks that differ from another disk.
        ListChangedBlocks = "list_changed_blocks",
        /// Set whether it is reset when its machine boots.
        SetOnBoot = "set_on_boot",
        /// Exclude all other users.
        Blocked = "blocked",
    }
}

/// A disk slot that refers to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VdiUser {
    /// Access mode of the slot.
    pub access: Access,
    /// Whether it is plugged, or about to be.
    pub attached: bool,
    /// Running operation of the slot.
    pub op: Option<VbdOp>,
    /// Power state of its machine.
    pub vm: PowerState,
}

impl VdiUser {
    /// Returns whether the slot excludes other users. A suspended machine does not: it opens the
    /// disk again when it is resumed.
    pub fn holds(&self) -> bool {
        self.vm != PowerState::Suspended && (self.attached || self.op.is_some())
    }
}

/// Facts about one disk that its gate reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VdiFacts {
    /// Whether several machines may write to it at once.
    pub sharable: bool,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Whether its storage has lost it.
    pub missing: bool,
    /// Whether its storage repository is attached to this host.
    pub sr_attached: bool,
    /// Running operations.
    pub current: Vec<VdiOp>,
    /// Slots that refer to it.
    pub users: Vec<VdiUser>,
    /// Features that the type of its storage repository does not have.
    pub lacks: Vec<SrFeature>,
}
