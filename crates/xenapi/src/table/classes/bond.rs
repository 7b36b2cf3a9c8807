//! Bonds: network devices of hosts that act as one.

use super::prelude::*;

fields! { "Bond", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// PIF of the bond itself.
    master: rc(Ref("PIF")).opt(),
    /// PIFs that form the bond.
    slaves: ro(Set(&Ref("PIF"))).inverse("PIF", "bond_slave_of"),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
    /// PIF whose addresses the bond has.
    primary_slave: ro(Ref("PIF")).opt(),
    /// Mode in which packets are distributed.
    mode: ro(Enum(&enums::BOND_MODE)).or(Text("balance-slb")),
    /// Settings of the mode.
    properties: ro(PAIRS).opt(),
    /// Number of PIFs with a link.
    links_up: ro(Int).opt(),
    /// True if the bond takes its Ethernet address from the primary PIF.
    auto_update_mac: ro(Bool).or(Yes),
}

messages! {
    /// Creates a bond of these PIFs.
    PoolOperator Long create(network: Ref("network"), members: Set(&Ref("PIF")), MAC: Str;
        mode: Enum(&enums::BOND_MODE), properties: PAIRS) -> Ref("Bond");
    /// Destroys the bond.
    PoolOperator Long destroy(self: Ref("Bond"));
    /// Sets the mode in which packets are distributed.
    PoolOperator Long set_mode(self: Ref("Bond"), value: Enum(&enums::BOND_MODE));
    /// Sets a property of the mode.
    PoolOperator Long set_property(self: Ref("Bond"), name: Str, value: Str);
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("Bond", "Several network devices as one"), Role::PoolOperator, FIELDS, MESSAGES);
