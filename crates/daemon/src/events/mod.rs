//! Event API: `event.from` and `event.inject`.
//!
//! # Model
//! There is no queue and no log. A client's [`Token`] states the generation up to which it knows
//! all records. The answer has the differences since then: new records, changed records with their
//! current values (once for any number of changes), and deletions. Records that were created and
//! deleted in between do not appear. Tombstones are not persisted: after a restart, earlier
//! deletions are not reported. Each answer has the number of records of every class, so clients can
//! detect a missed deletion.
//!
//! A large answer comes in parts: the token of a part has the position of its last event and the
//! generation at which the first part was built. A record that changes or is deleted between two parts is
//! reported after the last part. So a client may get a deletion of a record that it never got.
//!
//! If nothing differs, the call waits. Every change wakes it, and it scans again. It holds no lock
//! and no permit meanwhile.
//!
//! # Invariants
//! - A client that has applied all events has the same records as the database.
//! - No change is missed between a scan and the following wait: the wait ends for any change since
//!   the scan.
//!
//! # How to test
//! Simulated clients apply the events of random changes. Their state is compared with the database.

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
use scan::Bounds;
pub use subscription::Subscription;
pub use token::Token;

/// Longest wait of a call in seconds. The client then calls again. This bounds how long a dead
/// connection goes unnoticed.
const WAIT_S_MAX: f64 = 3_600.0;

/// Returns the differences since the client's token. Waits up to `timeout_s` seconds for the first
/// difference, then returns an empty answer.
///
/// # Errors
/// `EVENT_SUBSCRIPTION_PARSE_FAILURE` or `EVENT_FROM_TOKEN_PARSE_FAILURE` if the parameters are
/// invalid. `SESSION_INVALID` if the session does not exist or ends during the wait.
pub async fn from(
    db: &Db,
    session: &Ref,
    classes: &[String],
    token: &str,
    timeout_s: f64,
) -> Result<Value, ApiError> {
    bounded(db, session, classes, (token, timeout_s), Bounds::ANSWER).await
}

/// Returns the differences as [`from`] does, within these bounds.
async fn bounded(
    db: &Db,
    session: &Ref,
    classes: &[String],
    (token, timeout_s): (&str, f64),
    bounds: Bounds,
) -> Result<Value, ApiError> {
    let subscription = Subscription::parse(classes)?;
    let mut token = Token::parse(token)?;
    let wait = Duration::try_from_secs_f64(timeout_s.clamp(0.0, WAIT_S_MAX)).unwrap_or_default();
    let end = Instant::now() + wait;
    let mut changed = db.changed();
    loop {
        changed.mark_unchanged();
        let late = Instant::now() >= end;
        let was_part = token.part.is_some();
        let answer = db.read(|view| {
            alive(view, session)?;
            let (events, next) = scan::events(view, &subscription, token, bounds);
            token = next;
            let due = late || !events.is_empty();
            Ok::<_, ApiError>(due.then(|| scan::answer(view, token, events)))
        })?;
        if let Some(answer) = answer {
            return Ok(answer);
        }
        if was_part {
            // Nothing is left of that answer. What changed meanwhile is due now.
            continue;
        }
        // The next scan detects a timeout, and a database that has ended.
        let _ = tokio::time::timeout_at(end, changed.changed()).await;
    }
}

/// Publishes a record as if it had changed. Returns a token from before the change, so that a call
/// with it reports the record. No token in answers that report the record is lower.
///
/// # Errors
/// `HANDLE_INVALID` if no class with events has this record.
pub fn inject(db: &Db, class: &str, reference: &Ref) -> Result<Value, ApiError> {
    let found = subscription::named(class);
    let found = found.ok_or_else(|| codes::handle_invalid(class, reference.as_str()))?;
    db.write_observed(|tx| {
        let before = tx.view().published_generation();
        tx.touch(found, reference)?;
        Ok(Token::of(before).value())
    })
}

/// Returns the last published generation.
pub fn current(db: &Db) -> Value {
    Value::Int(i64::try_from(db.read(|view| view.published_generation())).unwrap_or(i64::MAX))
}

fn alive(view: &View<'_>, session: &Ref) -> Result<(), ApiError> {
    let there = class("session").is_some_and(|class| view.object(class, session).is_ok());
    if there { Ok(()) } else { Err(codes::session_invalid(session.as_str())) }
}
