//! Hosts' connections to storage repositories.

use super::prelude::*;

fields! { "PBD", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// The host.
    host: rc(Ref("host")),
    /// The storage repository.
    SR: rc(Ref("SR")),
    /// How the host reaches it.
    device_config: rc(PAIRS),
    /// The host is connected.
    currently_attached: ro(Bool),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
}

messages! {
    /// Connects the host.
    PoolOperator Long plug(self: Ref("PBD"));
    /// Ends the connection; no disk may be in use.
    PoolOperator Long unplug(self: Ref("PBD"));
    /// Sets how the host reaches it; it must not be connected.
    PoolOperator Short set_device_config(self: Ref("PBD"), value: PAIRS);
}

/// The class.
pub static CLASS: Class = Class::new(
    ("PBD", "A host's connection to a storage repository"),
    Role::PoolOperator,
    FIELDS,
    MESSAGES,
)
.created(MessageKind::Short);
