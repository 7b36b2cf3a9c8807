//! CPUs of hosts.

use super::prelude::*;

fields! { "host_cpu", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Host of the CPU.
    host: ro(Ref("host")),
    /// Number of the CPU, from 0.
    number: ro(Int),
    /// Vendor.
    vendor: ro(Str),
    /// Clock frequency in MHz.
    speed: ro(Int),
    /// Name of the model.
    modelname: ro(Str),
    /// Family.
    family: ro(Int),
    /// Number of the model.
    model: ro(Int),
    /// Stepping.
    stepping: ro(Str),
    /// Feature flags as Linux names them.
    flags: ro(Str),
    /// Feature bits.
    features: ro(Str),
    /// Share of time during which the CPU was busy, from 0 to 1.
    utilisation: ro(Float).volatile(),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("host_cpu", "A CPU of a host"), Role::PoolOperator, FIELDS, &[]);
