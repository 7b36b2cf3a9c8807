//! What users may do.

use super::prelude::*;

fields! { "role", PoolAdmin;
    /// Its UUID: the same in every pool.
    uuid: ro(Str),
    /// Its name.
    name_label: rc(Str).opt(),
    /// What it is for.
    name_description: rc(Str).opt(),
    /// Roles and permissions that it contains.
    subroles: rc(Set(&Ref("role"))).opt(),
    /// It is a permission and no role of its own.
    is_internal: ro(Bool).opt(),
}

messages! {
    /// What it permits.
    ReadOnly Short get_permissions(self: Ref("role")) -> Set(&Ref("role"));
    /// What it permits, by name.
    ReadOnly Short get_permissions_name_label(self: Ref("role")) -> STRS;
    /// The roles that permit this.
    ReadOnly Short get_by_permission(permission: Ref("role")) -> Set(&Ref("role"));
    /// The roles that permit what has this name.
    ReadOnly Short get_by_permission_name_label(label: Str) -> Set(&Ref("role"));
}

/// The class.
pub static CLASS: Class =
    Class::new(("role", "What a user may do"), Role::PoolAdmin, FIELDS, MESSAGES)
        .kept(RecordStorage::Memory)
        .silent();
