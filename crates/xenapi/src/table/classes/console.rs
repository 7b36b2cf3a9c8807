//! Consoles of machines.

use super::prelude::*;

fields! { "console", VmAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// What it speaks.
    protocol: ro(Enum(&enums::CONSOLE_PROTOCOL)),
    /// The URL at which it is.
    location: ro(Str),
    /// Its machine.
    VM: ro(Ref("VM")),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS),
}

/// The class.
pub static CLASS: Class =
    Class::new(("console", "A console of a machine"), Role::VmAdmin, FIELDS, &[]);
