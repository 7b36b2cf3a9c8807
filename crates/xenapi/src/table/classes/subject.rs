//! Subjects: users who may log in.

use super::prelude::*;

fields! { "subject", PoolAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Identifier of the user in its directory.
    subject_identifier: rc(Str).opt(),
    /// Name of the user and other information.
    other_config: rc(PAIRS).opt(),
    /// Roles of the user.
    roles: ro(Set(&Ref("role"))).opt(),
}

messages! {
    /// Adds a role to the user.
    PoolAdmin Short add_to_roles(self: Ref("subject"), role: Ref("role"));
    /// Removes a role from the user.
    PoolAdmin Short remove_from_roles(self: Ref("subject"), role: Ref("role"));
    /// Returns the names of the user's permissions.
    ReadOnly Short get_permissions_name_label(self: Ref("subject")) -> STRS;
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("subject", "A user or group who may log in"), Role::PoolAdmin, FIELDS, MESSAGES)
        .created(MessageKind::Short)
        .silent();
