//! What is measured of hosts.

use super::prelude::*;

fields! { "host_metrics", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// Memory of the host, in bytes.
    memory_total: ro(Int).volatile(),
    /// Memory that is free for machines, in bytes.
    memory_free: ro(Int).opt().volatile(),
    /// The host answers.
    live: ro(Bool).volatile(),
    /// When this was last found.
    last_updated: ro(Date).volatile(),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
}

/// The class.
pub static CLASS: Class =
    Class::new(("host_metrics", "What is measured of a host"), Role::PoolOperator, FIELDS, &[]);
