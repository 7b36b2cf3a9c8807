//! Users who may log in.

use super::prelude::*;

fields! { "subject", PoolAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// The user's identifier where users are kept.
    subject_identifier: rc(Str).opt(),
    /// The user's name and what else is known.
    other_config: rc(PAIRS).opt(),
    /// The user's roles.
    roles: ro(Set(&Ref("role"))).opt(),
}

messages! {
    /// Gives a role to the user.
    PoolAdmin Short add_to_roles(self: Ref("subject"), role: Ref("role"));
    /// Takes a role from the user.
    PoolAdmin Short remove_from_roles(self: Ref("subject"), role: Ref("role"));
    /// What the user may do, by name.
    ReadOnly Short get_permissions_name_label(self: Ref("subject")) -> STRS;
}

/// The class.
pub static CLASS: Class =
    Class::new(("subject", "A user or group who may log in"), Role::PoolAdmin, FIELDS, MESSAGES)
        .created(MessageKind::Short)
        .silent();
