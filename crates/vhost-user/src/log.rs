//! What a session says about requests that it refuses.

use crate::error::Refusal;

/// A front-end chooses how many messages are refused, and must not choose how much is logged:
/// only the first refusal of a session is a warning.
#[derive(Default)]
pub(crate) struct RefusalLog {
    warned: bool,
    /// Not even the first.
    pub(crate) hushed: bool,
}

impl RefusalLog {
    /// Logs that something was refused.
    pub(crate) fn report(&mut self, refusal: &Refusal, what: std::fmt::Arguments<'_>) {
        let cause = causes(refusal);
        if std::mem::replace(&mut self.warned, true) || self.hushed {
            tracing::debug!(cause, "{what} refused: {refusal}");
        } else {
            let more = "further refusals of this front-end are logged at level debug";
            tracing::warn!(cause, "{what} refused: {refusal}; {more}");
        }
    }
}

/// What an error came from, down to its root.
fn causes(error: &dyn std::error::Error) -> Option<String> {
    let chain = std::iter::successors(error.source(), |cause| cause.source());
    chain.map(ToString::to_string).reduce(|outer, inner| format!("{outer}: {inner}"))
}
