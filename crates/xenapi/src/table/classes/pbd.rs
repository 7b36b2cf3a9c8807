//! PBDs: connections of hosts to SRs.

use super::prelude::*;

fields! { "PBD", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Host of the connection.
    host: rc(Ref("host")),
    /// SR of the connection.
    SR: rc(Ref("SR")),
    /// Device configuration with which the host reaches the SR.
    device_config: rc(PAIRS),
    /// True if the host is connected.
    currently_attached: ro(Bool),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
}

messages! {
    /// Connects the host to the SR.
    PoolOperator Long plug(self: Ref("PBD"));
    /// Disconnects the host from the SR. No VDI may be in use.
    PoolOperator Long unplug(self: Ref("PBD"));
    /// Sets the device configuration. The PBD must be unplugged.
    PoolOperator Short set_device_config(self: Ref("PBD"), value: PAIRS);
}

/// Definition of the class.
pub static CLASS: Class = Class::new(
    ("PBD", "A host's connection to a storage repository"),
    Role::PoolOperator,
    FIELDS,
    MESSAGES,
)
.created(MessageKind::Short);
