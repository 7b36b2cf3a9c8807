//! Disks: what can be done to them, and who uses them.

pub mod automaton;
mod gate;

use crate::vbd::VbdOp;
use crate::vm::PowerState;
use crate::wire_names::named;
use automaton::Access;

pub use gate::{allowed, check};

named! {
    /// What can be done to a disk.
    VdiOp {
        /// Make another one that shares its content.
        Clone = "clone",
        /// Make a full copy.
        Copy = "copy",
        /// Change its size while nobody uses it.
        Resize = "resize",
        /// Change its size while it is in use.
        ResizeOnline = "resize_online",
        /// Keep its content as it is now.
        Snapshot = "snapshot",
        /// Write to a second disk as well.
        Mirror = "mirror",
        /// Remove it and its content.
        Destroy = "destroy",
        /// Remove its record, not its content.
        Forget = "forget",
        /// Read its properties again.
        Update = "update",
        /// Take a lock away.
        ForceUnlock = "force_unlock",
        /// Make a configuration from which it can be reached at boot.
        GenerateConfig = "generate_config",
        /// Note which of its blocks change.
        EnableCbt = "enable_cbt",
        /// End noting which of its blocks change.
        DisableCbt = "disable_cbt",
        /// Remove its content and keep what is known of its changes.
        DataDestroy = "data_destroy",
        /// Tell which blocks differ from another's.
        ListChangedBlocks = "list_changed_blocks",
        /// Say whether it is reset when its machine boots.
        SetOnBoot = "set_on_boot",
        /// Keep everybody else away.
        Blocked = "blocked",
    }
}

/// A disk slot that holds the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VdiUser {
    /// What the slot lets its guest do.
    pub access: Access,
    /// It is plugged, or about to be.
    pub attached: bool,
    /// Its operation under way.
    pub op: Option<VbdOp>,
    /// State of its machine.
    pub vm: PowerState,
}

impl VdiUser {
    /// Whether it keeps others away. A suspended machine does not: it takes the disk again when it
    /// is resumed.
    pub fn holds(&self) -> bool {
        self.vm != PowerState::Suspended && (self.attached || self.op.is_some())
    }
}

/// Everything that a gate reads of one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VdiFacts {
    /// Several machines may write to it at once.
    pub sharable: bool,
    /// Nobody writes to it.
    pub read_only: bool,
    /// Its storage has lost it.
    pub missing: bool,
    /// Its storage repository is attached to this host.
    pub sr_attached: bool,
    /// Operations under way.
    pub current: Vec<VdiOp>,
    /// Its slots.
    pub users: Vec<VdiUser>,
}
