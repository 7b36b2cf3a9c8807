//! Secrets: passwords that other records refer to.

use super::prelude::*;

fields! { "secret", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Secret value.
    value: rw(Str),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("secret", "Something not told"), Role::PoolOperator, FIELDS, &[])
        .created(MessageKind::Short)
        .reads(Role::PoolOperator)
        .silent();
