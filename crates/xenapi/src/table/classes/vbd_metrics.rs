//! What is measured of disk devices of machines.

use super::prelude::*;

fields! { "VBD_metrics", VmAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// What the guest reads, in KiB a second.
    io_read_kbs: ro(Float).opt().volatile(),
    /// What the guest writes, in KiB a second.
    io_write_kbs: ro(Float).opt().volatile(),
    /// When this was last found.
    last_updated: ro(Date).opt().volatile(),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
}

/// The class.
pub static CLASS: Class =
    Class::new(("VBD_metrics", "What is measured of a disk device"), Role::VmAdmin, FIELDS, &[]);
