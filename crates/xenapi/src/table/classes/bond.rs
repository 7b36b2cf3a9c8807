//! Network devices of hosts that act as one.

use super::prelude::*;

fields! { "Bond", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// The device that they act as.
    master: rc(Ref("PIF")).opt(),
    /// The devices that act as one.
    slaves: ro(Set(&Ref("PIF"))).inverse("PIF", "bond_slave_of"),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
    /// The device whose addresses it has.
    primary_slave: ro(Ref("PIF")).opt(),
    /// How packets are shared out.
    mode: ro(Enum(&enums::BOND_MODE)).or(Text("balance-slb")),
    /// Settings of that.
    properties: ro(PAIRS).opt(),
    /// Devices that have a link.
    links_up: ro(Int).opt(),
    /// It takes its Ethernet address from the device whose addresses it has.
    auto_update_mac: ro(Bool).or(Yes),
}

/// The class.
pub static CLASS: Class =
    Class::new(("Bond", "Several network devices as one"), Role::PoolOperator, FIELDS, &[]);
