//! Text forms of values in messages.

use std::time::Duration;

/// Formats a duration for users.
pub(crate) fn format_duration(duration: Duration) -> String {
    if duration.subsec_millis() == 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{} ms", duration.as_millis())
    }
}
