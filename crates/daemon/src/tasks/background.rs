//! Tasks of the daemon's own work.

use std::sync::Arc;

use toolstack::machines::CancelToken;
use xenapi::table::task;
use xenapi::{NULL_REF, Value};

use super::{RunningTask, TaskHandle, end, record};
use crate::app::AppState;
use crate::db::Ref;
use crate::dispatch::CallResult;

/// Task of work that no client has called for. It belongs to no user, so only a pool operator may
/// cancel it.
#[derive(Debug)]
pub(crate) struct BackgroundTask(Option<(Arc<AppState>, TaskHandle)>);

impl BackgroundTask {
    /// Creates the record of work that `cancel` cancels. The work goes on without a record if there
    /// are too many tasks.
    pub(crate) fn begin(
        app: &Arc<AppState>,
        label: &str,
        description: &str,
        cancel: &CancelToken,
    ) -> Self {
        let session = Ref::from(NULL_REF);
        let Ok(permit) = app.call_limiter.take(&session) else { return Self(None) };
        let running_task = RunningTask {
            cancel: Some(cancel.clone()),
            doomed: false,
            session,
            _place: Arc::new(permit),
        };
        let made = app.db.write_observed(|tx| {
            let it = record::make(tx, app, label, description)?;
            let actions = Value::Set(vec![Value::text("cancel")]);
            tx.set(&it, task::Field::allowed_operations, actions)?;
            Ok(it)
        });
        let Ok(it) = made else { return Self(None) };
        app.tasks.enter(&it, "", running_task);
        let handle = TaskHandle::new(app, it, cancel);
        Self(Some((app.clone(), handle)))
    }

    /// Reports the progress, from 0 to 1.
    pub(crate) fn progress(&self, part: f64) {
        if let Some((_, handle)) = &self.0 {
            handle.progress(part);
        }
    }

    /// Ends the task with this result.
    pub(crate) fn end(self, answer: &CallResult) {
        if let Some((app, handle)) = self.0 {
            // This fails only if the record was destroyed elsewhere.
            let _ended = end(&app, handle.reference(), answer);
        }
    }
}
