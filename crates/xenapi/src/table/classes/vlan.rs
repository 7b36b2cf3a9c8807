//! VLANs.

use super::prelude::*;

fields! { "VLAN", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// PIF that carries the VLAN.
    tagged_PIF: rc(Ref("PIF")).opt(),
    /// PIF that represents the VLAN.
    untagged_PIF: ro(Ref("PIF")).opt(),
    /// VLAN tag.
    tag: rc(Int).or(Whole(-1)),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
}

messages! {
    /// Creates a VLAN with this tag on a PIF.
    PoolOperator Long create(tagged_PIF: Ref("PIF"), tag: Int, network: Ref("network"))
        -> Ref("VLAN");
    /// Destroys the VLAN.
    PoolOperator Long destroy(self: Ref("VLAN"));
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("VLAN", "A virtual LAN on a host"), Role::PoolOperator, FIELDS, MESSAGES);
