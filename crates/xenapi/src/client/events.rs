//! Events from the server.

use std::time::Duration;

use super::{ANSWER_DEADLINE, Client, ClientError, Record};
use crate::table::{Class, classes};
use crate::{Value, coerce};

/// Changes since a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Token for the next query.
    pub token: String,
    /// Events in the server's order. Empty if nothing changed in time.
    pub events: Vec<Event>,
}

/// Change of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Class of the record, in lower case.
    pub class: String,
    /// `add`, `mod` or `del`.
    pub operation: String,
    /// Reference of the record.
    pub reference: String,
    /// Current record. `None` if it was deleted.
    pub snapshot: Option<Record>,
}

impl Client {
    /// Returns the changes since the token. Without any, waits up to `timeout` for the first ones.
    /// The empty token precedes all changes.
    ///
    /// # Errors
    /// Those of [`Client::call`].
    pub fn events(
        &mut self,
        subscriptions: &[&str],
        token: &str,
        timeout: Duration,
    ) -> Result<Batch, ClientError> {
        let of = Value::Set(subscriptions.iter().map(|one| Value::text(*one)).collect());
        let params = [of, Value::text(token), Value::Float(timeout.as_secs_f64())];
        let batch = self.call_within("event.from", &params, timeout + ANSWER_DEADLINE)?;
        read(batch).ok_or_else(|| self.nonsense("event.from", "an event lacks required fields"))
    }
}

fn read(batch: Value) -> Option<Batch> {
    let Value::Map(mut batch) = batch else { return None };
    let Value::Str(token) = batch.remove("token")? else { return None };
    let Value::Set(events) = batch.remove("events")? else { return None };
    Some(Batch { token, events: events.into_iter().map(event).collect::<Option<_>>()? })
}

fn event(event: Value) -> Option<Event> {
    let Value::Map(mut event) = event else { return None };
    let mut text = |name| match event.remove(name) {
        Some(Value::Str(text)) => Some(text),
        _ => None,
    };
    let (class, operation, reference) = (text("class")?, text("operation")?, text("ref")?);
    let snapshot = match (event.remove("snapshot"), class_of(&class)) {
        (Some(record @ Value::Map(_)), Some(class)) => {
            coerce::coerce(record, &class.record, "").ok().and_then(Record::of)
        }
        (Some(record), None) => Record::of(record),
        _ => None,
    };
    Some(Event { class, operation, reference, snapshot })
}

/// Returns the class with this lower-case name.
fn class_of(name: &str) -> Option<&'static Class> {
    classes().iter().copied().find(|class| class.name.eq_ignore_ascii_case(name))
}
