//! What a client is told.

use std::collections::BTreeMap;

use xenapi::Value;
use xenapi::table::{Class, Kept, classes};

use super::{Subscription, Token};
use crate::db::{Change, Object, Ref, View};

/// The class of messages, in lower case. Clients know them by themselves.
const MESSAGE: &str = "message";

/// Everything that is different from what the token says and is wanted: new messages, then new
/// records, then what has changed, then what is gone.
pub(super) fn events(view: &View<'_>, wanted: &Subscription, token: Token) -> Vec<Value> {
    let mut sorted: [Vec<Value>; 4] = Default::default();
    let mut look = |since: u64, messages: bool| {
        let [noted, made, changed, gone] = &mut sorted;
        for change in view.since(since) {
            let class = match &change {
                Change::Made(object) | Change::Changed(object) => object.class(),
                Change::Gone { class, .. } => class,
            };
            let name = class.name.to_ascii_lowercase();
            if !class.events || (name == MESSAGE) != messages || !wanted.has_class(&name) {
                continue;
            }
            let has = |reference: &Ref| wanted.has(&name, reference.as_str());
            match change {
                Change::Made(object) if has(object.reference()) => {
                    let to = if messages { &mut *noted } else { &mut *made };
                    to.push(of_object(object, name, "add"));
                }
                Change::Changed(object) if has(object.reference()) => {
                    changed.push(of_object(object, name, "mod"));
                }
                Change::Gone { reference, generation, .. } if has(reference) => {
                    gone.push(event(generation, name, "del", reference, None));
                }
                _ => {}
            }
        }
    };
    look(token.messages, true);
    look(token.records, false);
    sorted.into_iter().flatten().collect()
}

/// What `event.from` answers.
pub(super) fn answer(view: &View<'_>, token: Token, events: Vec<Value>) -> Value {
    map([
        ("token", token.value()),
        ("valid_ref_counts", counts(view)),
        ("events", Value::Set(events)),
    ])
}

/// How many records there are of each class, by which clients see that they have missed an end.
fn counts(view: &View<'_>) -> Value {
    let count = |class: &'static Class| {
        let count = view.count_told(class);
        Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
    };
    let kept = classes().iter().filter(|class| class.kept != Kept::Nowhere);
    Value::Map(kept.map(|class| (class.name.to_ascii_lowercase(), count(class))).collect())
}

fn of_object(object: &Object, class: String, operation: &str) -> Value {
    // One text for all clients that are told of it.
    let snapshot = Value::Encoded(object.record());
    event(object.changed(), class, operation, object.reference(), Some(snapshot))
}

fn event(
    generation: u64,
    class: String,
    operation: &str,
    reference: &Ref,
    snapshot: Option<Value>,
) -> Value {
    let mut event = map([
        ("id", Value::text(generation.to_string())),
        ("timestamp", Value::text("0.0")),
        ("class", Value::Str(class)),
        ("operation", Value::text(operation)),
        ("ref", reference.value()),
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
