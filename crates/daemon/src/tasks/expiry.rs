//! Expiry of ended tasks.

use std::sync::Arc;
use std::time::Instant;

use xenapi::table::task;

use super::{KEPT, KEPT_AT_LEAST, MAX_ENDED, MAX_ENDED_IN_ALL, Tasks};
use crate::app::AppState;
use crate::db::Ref;

impl Tasks {
    /// Returns the tasks that have expired and the time of the next expiry.
    fn overdue(&self, now: Instant) -> (Vec<Ref>, Option<Instant>) {
        let mut inner = self.inner();
        let mut overdue = Vec::new();
        while let Some((ended, _)) = inner.ended.front() {
            let due = match inner.ended.len() {
                0..=MAX_ENDED => *ended + KEPT,
                _ => *ended + KEPT_AT_LEAST,
            };
            if inner.ended.len() <= MAX_ENDED_IN_ALL && due > now {
                return (overdue, Some(due));
            }
            if let Some((_, it)) = inner.ended.pop_front() {
                inner.forget(&it);
                overdue.push(it);
            }
        }
        (overdue, None)
    }
}

/// Destroys expired tasks. Returns the time of the next expiry.
pub(super) fn collect(app: &AppState) -> Option<Instant> {
    let (overdue, next) = app.tasks.overdue(app.clock.now());
    if !overdue.is_empty() {
        // A task may be destroyed already; the others still expire.
        let forgotten = app.db.write_observed(|tx| {
            for it in &overdue {
                let _ = tx.destroy(&task::CLASS, it);
            }
            Ok(())
        });
        drop(forgotten);
    }
    next
}

/// Destroys tasks as they expire, until the daemon ends.
pub async fn expire_loop(app: Arc<AppState>) {
    loop {
        let next = collect(&app);
        let ended = app.tasks.ended.notified();
        match next {
            Some(next) => {
                let due = tokio::time::sleep_until(next.into());
                tokio::select! { () = ended => {}, () = due => {} }
            }
            None => ended.await,
        }
    }
}
