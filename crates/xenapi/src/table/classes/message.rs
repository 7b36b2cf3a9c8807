//! What was noted for people.

use super::prelude::*;

/// Messages by reference.
const RECORDS: Type = Map(&Ref("message"), &Record("message"));

fields! { "message", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// What happened, as a word.
    name: ro(Str),
    /// How much it matters: 1 most.
    priority: ro(Int),
    /// What kind of object it is about.
    cls: ro(Enum(&enums::CLS)),
    /// That object's UUID.
    obj_uuid: ro(Str),
    /// When it happened.
    timestamp: ro(Date),
    /// What happened, in words.
    body: ro(Str),
}

messages! {
    /// Notes something.
    PoolOperator Short create(
        name: Str, priority: Int, cls: Enum(&enums::CLS), obj_uuid: Str, body: Str)
        -> Ref("message");
    /// Removes one.
    PoolOperator Short destroy(self: Ref("message"));
    /// Removes several.
    PoolOperator Long destroy_many(messages: Set(&Ref("message")));
    /// Those about one object, since a moment.
    ReadOnly Short get(cls: Enum(&enums::CLS), obj_uuid: Str, since: Date) -> RECORDS;
    /// Those since a moment.
    ReadOnly Short get_since(since: Date) -> RECORDS;
}

/// The class.
pub static CLASS: Class =
    Class::new(("message", "Something noted for people"), Role::PoolOperator, FIELDS, MESSAGES);
