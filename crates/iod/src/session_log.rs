//! Limit on log lines about front-ends that connect and disconnect.
//!
//! Each session logs a few lines. A front-end that reconnects in a loop must not control how much
//! is logged.

use std::time::{Duration, Instant};

/// Number of sessions of one device that are logged in one [`WINDOW`].
const MOST: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// Rate limiter of the session log of one device.
#[derive(Debug, Default)]
pub(crate) struct SessionLogLimiter {
    window: Option<(Instant, u32)>,
}

/// Log level of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionLogLevel {
    /// Log everything.
    Loud,
    /// Log everything, and that the next sessions are not logged.
    Last,
    /// Log at level debug.
    Quiet,
}

impl SessionLogLimiter {
    /// Counts a new session and returns its log level.
    pub(crate) fn begin(&mut self, now: Instant) -> SessionLogLevel {
        let count = match self.window {
            Some((since, count)) if now.duration_since(since) < WINDOW => {
                self.window = Some((since, count.saturating_add(1)));
                count.saturating_add(1)
            }
            _ => {
                self.window = Some((now, 1));
                1
            }
        };
        match count.cmp(&MOST) {
            std::cmp::Ordering::Less => SessionLogLevel::Loud,
            std::cmp::Ordering::Equal => SessionLogLevel::Last,
            std::cmp::Ordering::Greater => SessionLogLevel::Quiet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_told_and_then_none_until_the_minute_is_over() {
        let (mut session_log_limiter, start) = (SessionLogLimiter::default(), Instant::now());
        let session_log_level: Vec<_> =
            (0..100).map(|at| session_log_limiter.begin(start + WINDOW * at / 100)).collect();
        assert_eq!(
            session_log_level
                .iter()
                .filter(|session_log_level| **session_log_level == SessionLogLevel::Loud)
                .count(),
            9
        );
        assert_eq!(session_log_level.get(9), Some(&SessionLogLevel::Last));
        assert!(
            session_log_level
                .iter()
                .skip(10)
                .all(|session_log_level| *session_log_level == SessionLogLevel::Quiet)
        );
        assert_eq!(session_log_limiter.begin(start + WINDOW), SessionLogLevel::Loud);
    }
}
