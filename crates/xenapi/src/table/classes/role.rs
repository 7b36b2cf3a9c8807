//! Roles of users.

use super::prelude::*;

fields! { "role", PoolAdmin;
    /// UUID, which is the same in every pool.
    uuid: ro(Str),
    /// Name.
    name_label: rc(Str).opt(),
    /// Description.
    name_description: rc(Str).opt(),
    /// Roles and permissions that the role contains.
    subroles: rc(Set(&Ref("role"))).opt(),
    /// True for a permission that is no role of its own.
    is_internal: ro(Bool).opt(),
}

messages! {
    /// Returns the permissions of the role.
    ReadOnly Short get_permissions(self: Ref("role")) -> Set(&Ref("role"));
    /// Returns the names of the role's permissions.
    ReadOnly Short get_permissions_name_label(self: Ref("role")) -> STRS;
    /// Returns the roles with this permission.
    ReadOnly Short get_by_permission(permission: Ref("role")) -> Set(&Ref("role"));
    /// Returns the roles with the permission of this name.
    ReadOnly Short get_by_permission_name_label(label: Str) -> Set(&Ref("role"));
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("role", "What a user may do"), Role::PoolAdmin, FIELDS, MESSAGES)
        .kept(RecordStorage::Memory)
        .silent();
