//! Blobs: data of clients, stored with an object.

use super::prelude::*;

fields! { "blob", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Name.
    name_label: rw(Str).opt(),
    /// Description.
    name_description: rw(Str).opt(),
    /// Size in bytes.
    size: ro(Int),
    /// True if the blob is readable without a session.
    public: rw(Bool).opt(),
    /// Time of the last write.
    last_updated: rc(Date),
    /// MIME type of the data.
    mime_type: rc(Str),
}

messages! {
    /// Creates an empty blob.
    PoolOperator Short create(mime_type: Str; public: Bool) -> Ref("blob");
    /// Destroys the blob.
    PoolOperator Short destroy(self: Ref("blob"));
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("blob", "Data kept with an object"), Role::PoolOperator, FIELDS, MESSAGES);
