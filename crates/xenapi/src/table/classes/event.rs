//! Events.

use super::prelude::*;

fields! { "event", ReadOnly;
    /// Current record. Absent if the record was deleted.
    snapshot: ro(Record("<class>")),
    /// Generation of the change.
    id: rc(Int),
    /// Always zero, for old clients.
    timestamp: rc(Date),
    /// Class of the record, in lower case.
    class: rc(Str),
    /// Type of the change.
    operation: rc(Enum(&enums::EVENT_OPERATION)),
    /// Reference of the record.
    r#ref: rc(Str),
    /// UUID of the record, only in `event.next`.
    obj_uuid: rc(Str),
}

messages! {
    /// Returns the changes since the token. Without any, waits up to the timeout for changes.
    ReadOnly Waits from(classes: STRS, token: Str, timeout: Float) -> Record("event_batch");
    /// Creates an event for an unchanged record. The token is from just before it.
    ReadOnly Short inject(class: Str, ref: Str) -> Str;
    /// Returns the generation of the latest change.
    ReadOnly Short get_current_id() -> Int;
    /// Registers this session for events. Always refused, because `from` replaces it.
    ReadOnly Short register(classes: STRS);
    /// Ends a registration by `register`.
    ReadOnly Short unregister(classes: STRS);
    /// Returns the events of this session. Always refused, because `from` replaces it.
    ReadOnly Short next() -> Set(&Record("event"));
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("event", "A change of a record"), Role::ReadOnly, FIELDS, MESSAGES)
        .kept(RecordStorage::Nowhere)
        .unlisted()
        .silent();
