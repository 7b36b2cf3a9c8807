//! VMs.

mod fields;
mod messages;

use super::prelude::*;
pub use fields::Field;

/// Definition of the class.
pub static CLASS: Class = Class::new(
    ("VM", "A machine, or a template of one"),
    Role::VmAdmin,
    fields::FIELDS,
    messages::MESSAGES,
)
.created(MessageKind::Long);
