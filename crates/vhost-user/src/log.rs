//! Log messages about refused requests.

use error_causes::causes;

use crate::error::Refusal;

/// Logs only the first refusal of a session as a warning. A front-end controls how many messages
/// are refused, and must not control how much is logged.
#[derive(Default)]
pub(crate) struct RefusalLog {
    warned: bool,
}

impl RefusalLog {
    /// Logs a refusal.
    pub(crate) fn report(&mut self, refusal: &Refusal, what: std::fmt::Arguments<'_>) {
        let cause = causes(refusal);
        if std::mem::replace(&mut self.warned, true) {
            tracing::debug!(cause, "{what} refused: {refusal}");
        } else {
            let more = "further refusals of this front-end are logged at level debug";
            tracing::warn!(cause, "{what} refused: {refusal}; {more}");
        }
    }
}
