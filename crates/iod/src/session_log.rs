//! How much is said about front-ends that come and go.
//!
//! Each session is worth a few lines. A front-end that connects and leaves in a loop chooses how
//! often, and must not choose how much is logged.

use std::time::{Duration, Instant};

/// Sessions of one device that are told in one [`WINDOW`].
const MOST: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// Sessions of one device, as far as they were told.
#[derive(Debug, Default)]
pub(crate) struct SessionLogLimiter {
    window: Option<(Instant, u32)>,
}

/// How the log hears of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionLogLevel {
    /// All of it.
    Loud,
    /// All of it, and that the next ones are not told.
    Last,
    /// At level debug.
    Quiet,
}

impl SessionLogLimiter {
    /// A session begins.
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
