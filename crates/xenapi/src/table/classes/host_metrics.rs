//! Metrics of hosts.

use super::prelude::*;

fields! { "host_metrics", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Memory of the host, in bytes.
    memory_total: ro(Int).volatile(),
    /// Memory that is free for VMs, in bytes.
    memory_free: ro(Int).opt().volatile(),
    /// True if the host is live.
    live: ro(Bool).volatile(),
    /// Time of the last update.
    last_updated: ro(Date).volatile(),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("host_metrics", "What is measured of a host"), Role::PoolOperator, FIELDS, &[]);
