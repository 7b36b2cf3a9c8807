//! Passwords that other records name.

use super::prelude::*;

fields! { "secret", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// What is not told.
    value: rw(Str),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
}

/// The class.
pub static CLASS: Class =
    Class::new(("secret", "Something not told"), Role::PoolOperator, FIELDS, &[])
        .created(MessageKind::Short)
        .reads(Role::PoolOperator)
        .silent();
