//! Consoles of VMs.

use super::prelude::*;

fields! { "console", VmAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Protocol.
    protocol: ro(Enum(&enums::CONSOLE_PROTOCOL)),
    /// URL of the console.
    location: ro(Str),
    /// VM of the console.
    VM: ro(Ref("VM")),
    /// Additional settings of clients.
    other_config: rw(PAIRS),
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("console", "A console of a machine"), Role::VmAdmin, FIELDS, &[]);
