//! Protocol with the service manager (sd_notify(3), sd_listen_fds(3)).
//!
//! It consists of a few datagrams and environment variables. Without a service manager nothing
//! happens.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Context;
use service_manager::{NOTIFY_SOCKET, NotifySocket};

use crate::inherited_fds::adopt;

/// Number of the first passed descriptor.
const LISTEN_FDS_START: i32 = 3;
/// Environment variables that child processes must not inherit.
pub(super) const FOR_US: [&str; 6] =
    [NOTIFY_SOCKET, "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// Client of the service manager, if there is one.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<NotifySocket>,
    watchdog: Option<Watchdog>,
    ready: bool,
    stopping: bool,
}

/// Watchdog pings that are due or unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watchdog {
    /// Ping interval: a quarter of the watchdog timeout of the service manager. A worker that does
    /// not answer is replaced after half of the timeout. The other half is left for the
    /// replacement.
    every: Duration,
    next: Instant,
    asked: bool,
}

/// Action that the watchdog requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchdogAction {
    /// No action now.
    Nothing,
    /// Ping the worker.
    Ask,
    /// Replace the worker, because it has not answered the last ping.
    Hangs,
}

impl ServiceManager {
    /// Creates the client from the environment of this process.
    ///
    /// # Errors
    /// The environment names an invalid socket.
    pub fn from_environment() -> anyhow::Result<Self> {
        let socket = NotifySocket::from_environment().context(NOTIFY_SOCKET)?;
        let number = |name: &str| std::env::var_os(name)?.to_str()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let limit = number("WATCHDOG_USEC").filter(|usec| ours && socket.is_some() && *usec > 0);
        let watchdog = limit.map(|usec| Watchdog::new(Duration::from_micros(usec), Instant::now()));
        Ok(Self { socket, watchdog, ready: false, stopping: false })
    }

    /// Reports that a worker serves. Repeated calls have no effect.
    pub(super) fn ready(&mut self) {
        if !std::mem::replace(&mut self.ready, true) {
            self.notify("READY=1");
        }
    }

    /// Reports that everything ends. Repeated calls have no effect.
    pub(super) fn stopping(&mut self) {
        if !std::mem::replace(&mut self.stopping, true) {
            self.notify("STOPPING=1");
        }
    }

    /// Answers the watchdog if it is due. During a restart pause there is no worker to ping.
    pub(super) fn pause(&mut self, now: Instant) {
        if self.due(now) != WatchdogAction::Nothing {
            self.well();
        }
    }

    /// Reports that all is well: the worker has answered, or is being replaced.
    pub(super) fn well(&mut self) {
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.asked = false;
            self.notify("WATCHDOG=1");
        }
    }

    /// Skips a due ping, because the worker is not ready for it.
    pub(super) fn skip(&mut self, now: Instant) {
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.due(now);
            watchdog.asked = false;
        }
    }

    /// Returns the time of the next watchdog action, if there is a watchdog.
    pub(super) fn next(&self) -> Option<Instant> {
        self.watchdog.map(|watchdog| watchdog.next)
    }

    pub(super) fn due(&mut self, now: Instant) -> WatchdogAction {
        self.watchdog.as_mut().map_or(WatchdogAction::Nothing, |watchdog| watchdog.due(now))
    }

    fn notify(&self, what: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.notify(what)
        {
            tracing::warn!("cannot send {what} to the service manager: {error}");
        }
    }
}

impl Watchdog {
    fn new(limit: Duration, now: Instant) -> Self {
        let every = limit / 4;
        Self { every, next: now + every, asked: false }
    }

    fn due(&mut self, now: Instant) -> WatchdogAction {
        if now < self.next {
            return WatchdogAction::Nothing;
        }
        self.next = now + self.every;
        if std::mem::replace(&mut self.asked, true) {
            WatchdogAction::Hangs
        } else {
            WatchdogAction::Ask
        }
    }
}

/// Returns the listening socket that the service manager passes to this process, if there is one.
///
/// # Errors
/// It passes more than one, or none under the expected number.
pub fn given_socket() -> anyhow::Result<Option<OwnedFd>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => Ok(None),
        Some(1) => Ok(Some(adopt(LISTEN_FDS_START).context("LISTEN_FDS")?)),
        Some(count) => anyhow::bail!("LISTEN_FDS gives {count} sockets; one is expected"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_asked_in_time_and_hangs_when_it_does_not_answer() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(10), start);
        let mut at = |seconds, answered: bool| {
            let watchdog_action = watchdog.due(start + Duration::from_secs(seconds));
            if answered {
                watchdog.asked = false;
            }
            watchdog_action
        };
        assert_eq!(
            [at(2, true), at(3, true), at(5, true)],
            [WatchdogAction::Nothing, WatchdogAction::Ask, WatchdogAction::Nothing]
        );
        assert_eq!(
            [at(6, false), at(7, false), at(9, false)],
            [WatchdogAction::Ask, WatchdogAction::Nothing, WatchdogAction::Hangs]
        );
    }
}
