//! Messages for administrators.

use super::prelude::*;

/// Map of messages by reference.
const RECORDS: Type = Map(&Ref("message"), &Record("message"));

fields! { "message", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Name of the message type.
    name: ro(Str),
    /// Priority; 1 is the highest.
    priority: ro(Int),
    /// Class of the object.
    cls: ro(Enum(&enums::CLS)),
    /// UUID of the object.
    obj_uuid: ro(Str),
    /// Time of the message.
    timestamp: ro(Date),
    /// Text of the message.
    body: ro(Str),
}

messages! {
    /// Creates a message.
    PoolOperator Short create(
        name: Str, priority: Int, cls: Enum(&enums::CLS), obj_uuid: Str, body: Str)
        -> Ref("message");
    /// Destroys a message.
    PoolOperator Short destroy(self: Ref("message"));
    /// Destroys several messages.
    PoolOperator Long destroy_many(messages: Set(&Ref("message")));
    /// Returns the messages about one object since this time.
    ReadOnly Short get(cls: Enum(&enums::CLS), obj_uuid: Str, since: Date) -> RECORDS;
    /// Returns the messages since this time.
    ReadOnly Short get_since(since: Date) -> RECORDS;
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("message", "Something noted for people"), Role::PoolOperator, FIELDS, MESSAGES);
