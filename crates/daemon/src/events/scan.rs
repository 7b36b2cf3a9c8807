//! Events of an answer.

use std::collections::BTreeMap;

use xenapi::Value;
use xenapi::table::{Class, RecordStorage, classes};

use super::subscription::ClassFilter;
use super::token::{Part, Position};
use super::{Subscription, Token};
use crate::db::{Change, Object, View};

/// Class of messages, which have their own counter in a token.
const MESSAGE: &str = "message";

/// Most events and bytes of records in an answer. Its text may be six times as large.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) events: usize,
    pub(super) bytes: usize,
}

impl Bounds {
    /// Bounds of each answer. A pool of usual size fits into one.
    pub(super) const ANSWER: Self = Self { events: 20_000, bytes: 16 << 20 };
}

/// Returns the subscribed differences since the token: new messages, then new records, changed
/// records and deletions. Also returns the token of a client that knows them: if they exceed the bounds,
/// it has the position of the last one.
pub(super) fn events(
    view: &View<'_>,
    wanted: &Subscription,
    token: Token,
    bounds: Bounds,
) -> (Vec<Value>, Token) {
    let published = view.published_generation();
    let until = token.part.map_or(published, |part| part.until.min(published));
    let mut changes = Vec::new();
    for ClassFilter { class, objects } in wanted.wanted() {
        let since = if class.name == MESSAGE { token.messages } else { token.records };
        match objects {
            None => changes.extend(view.since(since, class)),
            Some(these) => changes.extend(view.since_among(since, class, these)),
        }
    }
    // What changes after the first part comes with a later token.
    changes.retain(|change| {
        let at = position(change);
        at.1 <= until && token.part.is_none_or(|part| part.after < at)
    });
    changes.sort_by_key(position);
    let (mut count, mut total, mut last) = (0_usize, 0_usize, None);
    for change in &changes {
        total = total.saturating_add(change.object().map_or(0, Object::bytes));
        if count > 0 && (count == bounds.events || total > bounds.bytes) {
            break;
        }
        (count, last) = (count.saturating_add(1), Some(position(change)));
    }
    let is_whole = count == changes.len();
    let next = match last.filter(|_| !is_whole) {
        Some(after) => Token { part: Some(Part { until, after }), ..token },
        // Changes that this answer omits were not subscribed, so the token can skip them.
        None => Token::of(until),
    };
    (changes.into_iter().take(count).map(event).collect(), next)
}

/// Returns the key of a change in an answer. New records are in the order of their creation, which never
/// changes: so none is left out if it changes between two parts of an answer.
fn position(change: &Change<'_>) -> Position {
    let kind = match change {
        Change::Made(object) if object.class().name == MESSAGE => 0,
        Change::Made(_) => 1,
        Change::Changed(_) => 2,
        Change::Gone { .. } => 3,
    };
    let (generation, order) = match change {
        Change::Made(object) => object.creation(),
        _ => change.when(),
    };
    (kind, generation, order)
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
