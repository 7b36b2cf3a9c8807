//! Metrics of VBDs.

use super::prelude::*;

fields! { "VBD_metrics", VmAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Data that the guest reads, in KiB/s.
    io_read_kbs: ro(Float).opt().volatile(),
    /// Data that the guest writes, in KiB/s.
    io_write_kbs: ro(Float).opt().volatile(),
    /// Time of the last update.
    last_updated: ro(Date).opt().volatile(),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("VBD_metrics", "What is measured of a disk device"), Role::VmAdmin, FIELDS, &[]);
