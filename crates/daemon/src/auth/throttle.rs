//! Delays the answer to failed logins.
//!
//! Each failure of a [source](super::source) doubles its delay up to a limit. A success resets it.
//! A source may have a limited number of logins under way, so that parallel connections do not
//! defeat the delay. One password of a source is checked at a time. Sources never wait for each
//! other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::source::ClientSource;
use crate::peer::Origin;

/// Delay after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// Longest delay. XenServer delays every failed login by as much.
const LONGEST: Duration = Duration::from_secs(5);
/// Time after which a failure is forgotten.
const MEMORY: Duration = Duration::from_secs(10 * 60);
/// Most logins of a source that are under way or wait for their delayed failure.
pub const AT_ONCE_MAX: usize = 64;
/// Number of passwords of a source that are checked at a time. A check may take a while, and other
/// sources must not starve.
const LOOKUPS: usize = 1;
/// Most sources that are tracked. Past that, the source with the oldest failure is forgotten.
const SOURCES_MAX: usize = 4096;

#[derive(Debug)]
struct Failures {
    count: u32,
    last: Option<Instant>,
    under_way: usize,
    turns: Arc<Semaphore>,
}

impl Default for Failures {
    fn default() -> Self {
        Self { count: 0, last: None, under_way: 0, turns: Arc::new(Semaphore::new(LOOKUPS)) }
    }
}

/// Rate limiter for logins. Tracks failures by source.
#[derive(Clone, Debug, Default)]
pub struct LoginThrottle {
    sources: Arc<Mutex<BTreeMap<ClientSource, Failures>>>,
}

/// A login under way. If it is dropped without an outcome, it counts as neither success nor
/// failure.
#[derive(Debug)]
pub struct Attempt {
    throttle: LoginThrottle,
    source: ClientSource,
    turns: Arc<Semaphore>,
}

impl LoginThrottle {
    /// Registers a login. Returns `None` if its source has too many under way.
    pub fn begin(&self, from: Origin) -> Option<Attempt> {
        let source = ClientSource::from(from);
        let mut sources = self.lock();
        let failures = sources.entry(source).or_default();
        if failures.under_way >= AT_ONCE_MAX {
            return None;
        }
        failures.under_way += 1;
        let turns = Arc::clone(&failures.turns);
        Some(Attempt { throttle: self.clone(), source, turns })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ClientSource, Failures>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// Waits until the password of this attempt may be checked. The permit covers the check.
    pub async fn wait_allowed(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.turns.acquire().await.ok()
    }

    /// Records a success, which resets the delay of the source.
    pub fn succeeded(self) {
        if let Some(failures) = self.throttle.lock().get_mut(&self.source) {
            failures.count = 0;
        }
    }

    /// Records a failure and returns the delay before the client may be answered.
    pub fn failed(&self, now: Instant) -> Duration {
        let mut sources = self.throttle.lock();
        let failures = sources.entry(self.source).or_default();
        let fresh = failures.last.is_some_and(|last| now.saturating_duration_since(last) < MEMORY);
        let count = if fresh { failures.count } else { 0 };
        failures.count = count.saturating_add(1);
        failures.last = Some(now);
        let pause = FIRST.checked_mul(1 << count.min(16)).unwrap_or(LONGEST).min(LONGEST);
        forget(&mut sources);
        pause
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut sources = self.throttle.lock();
        let Some(failures) = sources.get_mut(&self.source) else { return };
        failures.under_way = failures.under_way.saturating_sub(1);
        if failures.under_way == 0 && failures.count == 0 {
            sources.remove(&self.source);
        }
    }
}

fn forget(sources: &mut BTreeMap<ClientSource, Failures>) {
    while sources.len() > SOURCES_MAX {
        let idle = sources.iter().filter(|(_, failures)| failures.under_way == 0);
        let oldest = idle.min_by_key(|(_, failures)| failures.last).map(|(source, _)| *source);
        let Some(oldest) = oldest else { return };
        sources.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::*;

    fn from(text: &str) -> Origin {
        Origin::Tcp(SocketAddr::new(text.parse().unwrap(), 1))
    }

    fn pauses(throttle: &LoginThrottle, origin: Origin, now: Instant, count: usize) -> Vec<u64> {
        (0..count).map(|_| throttle.begin(origin).unwrap().failed(now).as_secs()).collect()
    }

    #[test]
    fn pauses_double_for_one_source_alone() {
        let (throttle, now) = (LoginThrottle::default(), Instant::now());
        assert_eq!(pauses(&throttle, from("10.0.0.1"), now, 5), [1, 2, 4, 5, 5]);
        assert_eq!(pauses(&throttle, from("10.0.0.2"), now, 1), [1]);
        assert_eq!(pauses(&throttle, Origin::Unix, now, 1), [1]);
        assert_eq!(pauses(&throttle, from("10.0.0.1"), now, 1), [5]);
        assert_eq!(pauses(&throttle, from("::ffff:10.0.0.1"), now, 1), [5], "the same address");
    }

    #[test]
    fn a_success_or_time_ends_it() {
        let (throttle, now) = (LoginThrottle::default(), Instant::now());
        assert_eq!(pauses(&throttle, from("10.0.0.1"), now, 3), [1, 2, 4]);
        throttle.begin(from("10.0.0.1")).unwrap().succeeded();
        assert!(throttle.lock().is_empty(), "nothing is kept of who succeeded");
        assert_eq!(pauses(&throttle, from("10.0.0.1"), now, 2), [1, 2]);
        assert_eq!(pauses(&throttle, from("10.0.0.1"), now + MEMORY, 1), [1]);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let (throttle, now) = (LoginThrottle::default(), Instant::now());
        assert_eq!(pauses(&throttle, from("2001:db8::1"), now, 1), [1]);
        assert_eq!(pauses(&throttle, from("2001:db8::ffff:2"), now, 1), [2]);
        assert_eq!(pauses(&throttle, from("2001:db8:0:1::1"), now, 1), [1]);
    }

    #[test]
    fn a_source_has_a_few_at_once() {
        let throttle = LoginThrottle::default();
        let mut held: Vec<_> =
            (0..AT_ONCE_MAX).map(|_| throttle.begin(from("10.0.0.1")).unwrap()).collect();
        assert!(throttle.begin(from("10.0.0.1")).is_none());
        assert!(throttle.begin(from("10.0.0.2")).is_some());
        held.pop();
        assert!(throttle.begin(from("10.0.0.1")).is_some());
        drop(held);
        assert!(throttle.lock().is_empty());
    }

    #[test]
    fn sources_that_are_remembered_have_a_bound() {
        let (throttle, start) = (LoginThrottle::default(), Instant::now());
        for number in 0..SOURCES_MAX as u32 + 2 {
            let address = IpAddr::V4(number.into());
            let origin = Origin::Tcp(SocketAddr::new(address, 1));
            pauses(&throttle, origin, start + Duration::from_millis(number.into()), 1);
        }
        let now = start + Duration::from_secs(5);
        assert_eq!(throttle.lock().len(), SOURCES_MAX);
        assert_eq!(pauses(&throttle, from("0.0.0.0"), now, 1), [1], "the oldest is forgotten");
        assert_eq!(pauses(&throttle, from("0.0.16.1"), now, 1), [2], "the last is not");
    }
}
