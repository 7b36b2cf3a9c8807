//! Metrics of VIFs.

use super::prelude::*;

fields! { "VIF_metrics", VmAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Data that the guest receives, in KiB/s.
    io_read_kbs: ro(Float).opt().volatile(),
    /// Data that the guest sends, in KiB/s.
    io_write_kbs: ro(Float).opt().volatile(),
    /// Time of the last update.
    last_updated: ro(Date).volatile(),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("VIF_metrics", "What is measured of a network device"), Role::VmAdmin, FIELDS, &[]);
