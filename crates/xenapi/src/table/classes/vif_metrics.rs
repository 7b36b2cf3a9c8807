//! What is measured of network devices of machines.

use super::prelude::*;

fields! { "VIF_metrics", VmAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// What the guest receives, in KiB a second.
    io_read_kbs: ro(Float).opt().volatile(),
    /// What the guest sends, in KiB a second.
    io_write_kbs: ro(Float).opt().volatile(),
    /// When this was last found.
    last_updated: ro(Date).volatile(),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
}

/// The class.
pub static CLASS: Class =
    Class::new(("VIF_metrics", "What is measured of a network device"), Role::VmAdmin, FIELDS, &[]);
