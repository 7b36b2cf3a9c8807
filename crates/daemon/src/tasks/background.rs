//! Tasks of the daemon's own work.

use std::sync::Arc;

use toolstack::machines::CancelToken;

use super::{TaskHandle, end, of_server};
use crate::app::AppState;
use crate::dispatch::CallResult;

/// Task of work that no client has called for. It belongs to no user, so only a pool operator may
/// cancel it.
#[derive(Debug)]
pub(crate) struct BackgroundTask(Option<(Arc<AppState>, TaskHandle)>);

impl BackgroundTask {
    /// Creates the record of work that `cancel` cancels. The work goes on without a record if there
    /// can be none.
    pub(crate) fn begin(
        app: &Arc<AppState>,
        label: &str,
        description: &str,
        cancel: &CancelToken,
    ) -> Self {
        let made = of_server(app, label, description, cancel.clone());
        Self(made.ok().map(|handle| (app.clone(), handle)))
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
