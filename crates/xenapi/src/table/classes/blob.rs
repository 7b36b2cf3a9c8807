//! Data that clients keep with an object.

use super::prelude::*;

fields! { "blob", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// Its name.
    name_label: rw(Str).opt(),
    /// What it is for.
    name_description: rw(Str).opt(),
    /// Its size, in bytes.
    size: ro(Int),
    /// Everybody may read it, without a session.
    public: rw(Bool).opt(),
    /// When it was last written.
    last_updated: rc(Date),
    /// What it holds, as a MIME type.
    mime_type: rc(Str),
}

messages! {
    /// Makes an empty one.
    PoolOperator Short create(mime_type: Str; public: Bool) -> Ref("blob");
    /// Removes it.
    PoolOperator Short destroy(self: Ref("blob"));
}

/// The class.
pub static CLASS: Class =
    Class::new(("blob", "Data kept with an object"), Role::PoolOperator, FIELDS, MESSAGES);
