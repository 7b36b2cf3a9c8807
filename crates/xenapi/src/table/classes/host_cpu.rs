//! CPUs of hosts.

use super::prelude::*;

fields! { "host_cpu", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// Its host.
    host: ro(Ref("host")),
    /// Its number, from 0.
    number: ro(Int),
    /// Who made it.
    vendor: ro(Str),
    /// Its clock, in MHz.
    speed: ro(Int),
    /// Its model, by name.
    modelname: ro(Str),
    /// Its family.
    family: ro(Int),
    /// Its model, by number.
    model: ro(Int),
    /// Its stepping.
    stepping: ro(Str),
    /// What it can do, as Linux says it.
    flags: ro(Str),
    /// What it can do, as bits.
    features: ro(Str),
    /// The share of time for which it was busy, from 0 to 1.
    utilisation: ro(Float).volatile(),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
}

/// The class.
pub static CLASS: Class =
    Class::new(("host_cpu", "A CPU of a host"), Role::PoolOperator, FIELDS, &[]);
