//! Virtual LANs.

use super::prelude::*;

fields! { "VLAN", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// The device that carries it.
    tagged_PIF: rc(Ref("PIF")).opt(),
    /// The device that it is.
    untagged_PIF: ro(Ref("PIF")).opt(),
    /// Its number.
    tag: rc(Int).or(Whole(-1)),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
}

messages! {
    /// Makes one of this number on a device.
    PoolOperator Long create(tagged_PIF: Ref("PIF"), tag: Int, network: Ref("network"))
        -> Ref("VLAN");
    /// Removes it.
    PoolOperator Long destroy(self: Ref("VLAN"));
}

/// The class.
pub static CLASS: Class =
    Class::new(("VLAN", "A virtual LAN on a host"), Role::PoolOperator, FIELDS, MESSAGES);
