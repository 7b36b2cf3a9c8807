//! Events of an answer.

use std::collections::BTreeMap;

use xenapi::Value;
use xenapi::table::{Class, RecordStorage, classes};

use super::subscription::ClassFilter;
use super::{Subscription, Token};
use crate::db::{Change, Object, View};

/// Class of messages, which have their own counter in a token.
const MESSAGE: &str = "message";

/// Returns the subscribed differences since the token: new messages, then new records, changed
/// records and deletions.
pub(super) fn events(view: &View<'_>, wanted: &Subscription, token: Token) -> Vec<Value> {
    let mut changes = Vec::new();
    for ClassFilter { class, objects } in wanted.wanted() {
        let since = if class.name == MESSAGE { token.messages } else { token.records };
        match objects {
            None => changes.extend(view.since(since, class)),
            Some(these) => changes.extend(view.since_among(since, class, these)),
        }
    }
    changes.sort_by_key(|change| (turn(change), change.when()));
    changes.into_iter().map(event).collect()
}

/// Returns the position of a kind of change in an answer.
fn turn(change: &Change<'_>) -> usize {
    match change {
        Change::Made(object) if object.class().name == MESSAGE => 0,
        Change::Made(_) => 1,
        Change::Changed(_) => 2,
        Change::Gone { .. } => 3,
    }
}

/// Builds the answer of `event.from`.
pub(super) fn answer(view: &View<'_>, token: Token, events: Vec<Value>) -> Value {
    map([
        ("token", token.value()),
        ("valid_ref_counts", counts(view)),
        ("events", Value::Set(events)),
    ])
}

/// Returns the number of records of each class. Clients detect missed deletions by it.
fn counts(view: &View<'_>) -> Value {
    let count = |class: &'static Class| {
        let count = view.count_published(class);
        Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
    };
    let kept = classes().iter().filter(|class| class.record_storage != RecordStorage::Nowhere);
    Value::Map(kept.map(|class| (class.name.to_ascii_lowercase(), count(class))).collect())
}

fn event(change: Change<'_>) -> Value {
    // All clients share one encoded record.
    let snapshot = |object: &Object| Some(Value::Encoded(object.record()));
    let (operation, snapshot) = match &change {
        Change::Made(object) => ("add", snapshot(object)),
        Change::Changed(object) => ("mod", snapshot(object)),
        Change::Gone { .. } => ("del", None),
    };
    let (generation, _) = change.when();
    let mut event = map([
        ("id", Value::text(generation.to_string())),
        ("timestamp", Value::text("0.0")),
        ("class", Value::Str(change.class().name.to_ascii_lowercase())),
        ("operation", Value::text(operation)),
        ("ref", change.reference().value()),
    ]);
    if let (Value::Map(members), Some(snapshot)) = (&mut event, snapshot) {
        members.insert("snapshot".to_owned(), snapshot);
    }
    event
}

fn map<const N: usize>(members: [(&str, Value); N]) -> Value {
    let members = members.into_iter().map(|(name, value)| (name.to_owned(), value));
    Value::Map(members.collect::<BTreeMap<_, _>>())
}
