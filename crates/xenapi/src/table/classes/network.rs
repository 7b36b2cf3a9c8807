//! Networks.

use super::prelude::*;

fields! { "network", VmAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Name.
    name_label: rw(Str).opt().writer(PoolOperator),
    /// Description.
    name_description: rw(Str).opt().writer(PoolOperator),
    /// Operations that are currently allowed.
    allowed_operations: ro(Set(&Enum(&enums::NETWORK_OPERATIONS))).opt().volatile(),
    /// Operations in progress, by task.
    current_operations: ro(Map(&Str, &Enum(&enums::NETWORK_OPERATIONS))).opt().volatile(),
    /// VIFs on the network.
    VIFs: ro(Set(&Ref("VIF"))).inverse("VIF", "network"),
    /// PIFs on the network.
    PIFs: ro(Set(&Ref("PIF"))).inverse("PIF", "network"),
    /// Maximum transmission unit in bytes.
    MTU: rw(Int).or(Whole(1500)),
    /// Additional settings of clients.
    other_config: rw(PAIRS).writer(PoolOperator),
    /// Bridge of the network on each host.
    bridge: rc(Str).opt(),
    /// True if the toolstack manages the bridge.
    managed: rc(Bool).or(Yes),
    /// Blobs of data stored with the object, by name.
    blobs: ro(BLOBS).opt(),
    /// Tags for sorting.
    tags: rw(STRS).opt().writer(VmOperator),
    /// Default filtering of traffic, for VIFs without their own.
    default_locking_mode: ro(Enum(&enums::NETWORK_DEFAULT_LOCKING_MODE)).or(Text("unlocked")),
    /// Addresses assigned to VIFs.
    assigned_ips: ro(Map(&Ref("VIF"), &Str)).opt(),
    /// Purposes of the network.
    purpose: ro(Set(&Enum(&enums::NETWORK_PURPOSE))).opt(),
}

messages! {
    /// Adds a purpose.
    PoolAdmin Short add_purpose(self: Ref("network"), value: Enum(&enums::NETWORK_PURPOSE));
    /// Removes a purpose.
    PoolAdmin Short remove_purpose(self: Ref("network"), value: Enum(&enums::NETWORK_PURPOSE));
    /// Sets the default filtering of traffic, for VIFs without their own.
    PoolOperator Short set_default_locking_mode(
        network: Ref("network"), value: Enum(&enums::NETWORK_DEFAULT_LOCKING_MODE));
    /// Creates a blob for data stored with the object.
    PoolOperator Short create_new_blob(
        network: Ref("network"), name: Str, mime_type: Str; public: Bool) -> Ref("blob");
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("network", "A virtual network"), Role::VmAdmin, FIELDS, MESSAGES)
        .created(MessageKind::Short);
