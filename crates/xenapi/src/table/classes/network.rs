//! Networks.

use super::prelude::*;

fields! { "network", VmAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// Its name.
    name_label: rw(Str).opt().writer(PoolOperator),
    /// What it is for.
    name_description: rw(Str).opt().writer(PoolOperator),
    /// What may be asked of it now.
    allowed_operations: ro(Set(&Enum(&enums::NETWORK_OPERATIONS))).opt().volatile(),
    /// What it is doing: from a task to an operation.
    current_operations: ro(Map(&Str, &Enum(&enums::NETWORK_OPERATIONS))).opt().volatile(),
    /// Devices of machines on it.
    VIFs: ro(Set(&Ref("VIF"))).inverse("VIF", "network"),
    /// Devices of hosts on it.
    PIFs: ro(Set(&Ref("PIF"))).inverse("PIF", "network"),
    /// Largest packet, in bytes.
    MTU: rw(Int).or(Whole(1500)),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).writer(PoolOperator),
    /// The bridge that carries it on each host.
    bridge: rc(Str).opt(),
    /// The toolstack makes that bridge.
    managed: rc(Bool).or(Yes),
    /// Data kept with it.
    blobs: ro(BLOBS).opt(),
    /// Words by which people sort.
    tags: rw(STRS).opt().writer(VmOperator),
    /// Which traffic passes when a device does not say it.
    default_locking_mode: ro(Enum(&enums::NETWORK_DEFAULT_LOCKING_MODE)).or(Text("unlocked")),
    /// Addresses given to devices on it.
    assigned_ips: ro(Map(&Ref("VIF"), &Str)).opt(),
    /// What it may be used for.
    purpose: ro(Set(&Enum(&enums::NETWORK_PURPOSE))).opt(),
}

messages! {
    /// Permits a use.
    PoolAdmin Short add_purpose(self: Ref("network"), value: Enum(&enums::NETWORK_PURPOSE));
    /// Permits a use no longer.
    PoolAdmin Short remove_purpose(self: Ref("network"), value: Enum(&enums::NETWORK_PURPOSE));
    /// Sets which traffic passes when a device does not say it.
    PoolOperator Short set_default_locking_mode(
        network: Ref("network"), value: Enum(&enums::NETWORK_DEFAULT_LOCKING_MODE));
    /// Makes a place for data kept with it.
    PoolOperator Short create_new_blob(
        network: Ref("network"), name: Str, mime_type: Str; public: Bool) -> Ref("blob");
}

/// The class.
pub static CLASS: Class =
    Class::new(("network", "A virtual network"), Role::VmAdmin, FIELDS, MESSAGES)
        .created(MessageKind::Short);
