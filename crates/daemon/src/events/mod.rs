//! What clients are told of changes: `event.from` and `event.inject`.
//!
//! # Model
//! There is no queue and no log. A client says by a [`Token`] until when it knows everything, and
//! is told what is different now: a record that it does not know, one that has changed, however
//! often, with what it holds now, one that is gone. What came and went in between is not told.
//! Ends are not stored: of those before a restart nobody is told after it. Every answer has the
//! counts of all records, by which clients see what they lack.
//! If nothing is different, the client waits; every change wakes it, and it looks again. It holds
//! no lock and no place in a queue meanwhile.
//!
//! # Invariants
//! - Who has applied everything that it was told has what the database has.
//! - No change is missed between the look and the wait: the wait is for changes since the look.
//!
//! # How to test
//! Clients apply what they are told of random changes, and are compared with the database.

mod scan;
mod subscription;
#[cfg(test)]
mod tests;
mod token;

use std::time::Duration;

use tokio::time::Instant;
use xenapi::table::class;
use xenapi::{ApiError, Value, codes};

use crate::db::{Db, Ref, View};
pub use subscription::Subscription;
pub use token::Token;

/// Longest that a client waits: it asks again then. Connections that nobody is at the other end of
/// are found by it.
const WAIT_S_MAX: f64 = 3_600.0;

/// What is different from what a client knows that has this token: at once if something is, else
/// as soon as something is, else after `timeout_s` seconds, which is nothing.
///
/// # Errors
/// `EVENT_SUBSCRIPTION_PARSE_FAILURE`, `EVENT_FROM_TOKEN_PARSE_FAILURE`: the client has said what
/// cannot be read. `SESSION_INVALID`: the session is not there, or ended meanwhile.
pub async fn from(
    db: &Db,
    session: &Ref,
    classes: &[String],
    token: &str,
    timeout_s: f64,
) -> Result<Value, ApiError> {
    let subscription = Subscription::parse(classes)?;
    let mut token = Token::parse(token)?;
    let wait = Duration::try_from_secs_f64(timeout_s.clamp(0.0, WAIT_S_MAX)).unwrap_or_default();
    let end = Instant::now() + wait;
    let mut changed = db.changed();
    loop {
        changed.mark_unchanged();
        let late = Instant::now() >= end;
        let answer = db.read(|view| {
            alive(view, session)?;
            let events = scan::events(view, &subscription, token);
            // What it is not told of now is nothing that it has asked for.
            token = Token::of(view.published_generation());
            let due = late || !events.is_empty();
            Ok::<_, ApiError>(due.then(|| scan::answer(view, token, events)))
        })?;
        if let Some(answer) = answer {
            return Ok(answer);
        }
        // Its end is told by the look that follows, as is that of the database.
        let _ = tokio::time::timeout_at(end, changed.changed()).await;
    }
}

/// Tells of a record as if it had changed. The token is of the moment before, so that who asks with
/// it is told of the record, and tokens that come with what was told are not below it.
///
/// # Errors
/// `HANDLE_INVALID`: there is no such record of such a class of which events are told.
pub fn inject(db: &Db, class: &str, reference: &Ref) -> Result<Value, ApiError> {
    let found = subscription::named(class);
    let found = found.ok_or_else(|| codes::handle_invalid(class, reference.as_str()))?;
    db.write_observed(|tx| {
        let before = tx.view().published_generation();
        tx.touch(found, reference)?;
        Ok(Token::of(before).value())
    })
}

/// The last generation that is told.
pub fn current(db: &Db) -> Value {
    Value::Int(i64::try_from(db.read(|view| view.published_generation())).unwrap_or(i64::MAX))
}

fn alive(view: &View<'_>, session: &Ref) -> Result<(), ApiError> {
    let there = class("session").is_some_and(|class| view.object(class, session).is_ok());
    if there { Ok(()) } else { Err(codes::session_invalid(session.as_str())) }
}
