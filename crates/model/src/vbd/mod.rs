//! A machine's disk slots: what can be done to them, their numbers, and their settings.

mod device;
mod gate;
mod settings;

use crate::vdi::VdiFacts;
use crate::vdi::automaton::Access;
use crate::wire_names::named;

pub(crate) use device::no_such_device;
pub use device::{DeviceNumber, MAX_DEVICE, choose};
pub use gate::{allowed, check};
pub use settings::{ALGORITHMS, DiskLimits, Tuning, limits, tuning};

named! {
    /// What can be done to a disk slot.
    VbdOp {
        /// Take part in the start of its machine.
        Attach = "attach",
        /// Take the medium out.
        Eject = "eject",
        /// Put a medium in.
        Insert = "insert",
        /// Give the disk to a running machine.
        Plug = "plug",
        /// Ask a running machine to give the disk back.
        Unplug = "unplug",
        /// Take the disk from a running machine.
        UnplugForce = "unplug_force",
        /// Hold back its requests.
        Pause = "pause",
        /// Let its requests go on.
        Unpause = "unpause",
    }
}

named! {
    /// What the guest sees.
    VbdKind {
        /// A drive whose medium can be changed.
        Cd = "CD",
        /// A disk.
        Disk = "Disk",
        /// A floppy drive.
        Floppy = "Floppy",
    }
}

/// Everything that a gate reads of one disk slot, beside its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VbdFacts {
    /// What the guest sees.
    pub kind: VbdKind,
    /// What the guest may do.
    pub mode: Access,
    /// It is plugged, or about to be.
    pub attached: bool,
    /// It may be unplugged.
    pub unpluggable: bool,
    /// Operations under way.
    pub current: Vec<VbdOp>,
    /// The drive has no medium.
    pub empty: bool,
    /// The disk in it, or the one to be inserted; its users without this slot. Absent when there
    /// is none.
    pub vdi: Option<VdiFacts>,
}
