//! Disk slots of a machine: their operations, numbers and settings.

mod device;
mod gate;
mod settings;

use crate::vdi::VdiFacts;
use crate::vdi::automaton::Access;
use crate::wire_names::named;

pub(crate) use device::no_such_device;
pub use device::{DeviceNumber, MAX_DEVICE, choose};
pub use gate::{allowed, check};
pub use settings::{
    ALGORITHMS, DiskLimits, Tuning, WRITE_CACHE_OVERFLOW, WriteCache, algorithm_with, check_limits,
    check_tuning, limits, tuning,
};

named! {
    /// Operation on a disk slot.
    VbdOp {
        /// Take part in the start of the machine.
        Attach = "attach",
        /// Take the medium out.
        Eject = "eject",
        /// Put a medium in.
        Insert = "insert",
        /// Plug the disk into a running machine.
        Plug = "plug",
        /// Unplug the disk from a running machine.
        Unplug = "unplug",
        /// Detach the disk without waiting for the guest.
        UnplugForce = "unplug_force",
        /// Hold its requests back.
        Pause = "pause",
        /// Serve its requests again.
        Unpause = "unpause",
    }
}

named! {
    /// Type of device that the guest sees.
    VbdKind {
        /// A drive with a removable medium.
        Cd = "CD",
        /// A disk.
        Disk = "Disk",
        /// A floppy drive.
        Floppy = "Floppy",
    }
}

/// Facts about one disk slot that its gate reads, apart from its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VbdFacts {
    /// Type of device.
    pub kind: VbdKind,
    /// Access mode of the guest.
    pub mode: Access,
    /// Whether it is plugged, or about to be.
    pub attached: bool,
    /// Whether it may be unplugged.
    pub unpluggable: bool,
    /// Running operations.
    pub current: Vec<VbdOp>,
    /// Whether the drive has no medium.
    pub empty: bool,
    /// The disk in the slot, or the one to insert, with its users except this slot. `None` if there
    /// is no disk.
    pub vdi: Option<VdiFacts>,
}
