//! Changes.

use super::prelude::*;

fields! { "event", ReadOnly;
    /// The record as it is now; not of a record that is gone.
    snapshot: ro(Record("<class>")),
    /// The generation of the change.
    id: rc(Int),
    /// Kept for old clients; always zero.
    timestamp: rc(Date),
    /// The class of the record, in lower case.
    class: rc(Str),
    /// What became of it.
    operation: rc(Enum(&enums::EVENT_OPERATION)),
    /// The record.
    r#ref: rc(Str),
    /// The record's UUID, in `event.next` only.
    obj_uuid: rc(Str),
}

messages! {
    /// Changes since the token, or, if there are none, those of the next seconds.
    ReadOnly Waits from(classes: STRS, token: Str, timeout: Float) -> Record("event_batch");
    /// Makes an event of a record that did not change; the token is of the moment before.
    ReadOnly Short inject(class: Str, ref: Str) -> Str;
    /// The generation of the latest change.
    ReadOnly Short get_current_id() -> Int;
    /// Begins to keep changes for this session: refused, `from` has taken its place.
    ReadOnly Short register(classes: STRS);
    /// Ends what `register` began.
    ReadOnly Short unregister(classes: STRS);
    /// Changes kept for this session: refused, `from` has taken its place.
    ReadOnly Short next() -> Set(&Record("event"));
}

/// The class.
pub static CLASS: Class =
    Class::new(("event", "A change of a record"), Role::ReadOnly, FIELDS, MESSAGES)
        .kept(RecordStorage::Nowhere)
        .unlisted()
        .silent();
