//! Pace at which machines start: pure, no clock. The caller passes the time elapsed since a fixed
//! moment.
//!
//! A boot loads the host's CPUs and storage for seconds. If a hundred machines start at once, each of
//! them is slow, and the first is ready as late as the last. So machines **wait** for a **place**, in
//! the order in which they asked.
//!
//! # Rules
//! 1. A machine has its place from its admission until its guest's agent answers, its domain is gone,
//!    or [`BOOT_MAX`] has passed: not every guest has an agent. On a host so busy that boots take
//!    longer, this time is twice that of the slowest boot: else all would boot at once in the end.
//! 2. While fewer than [`BootPace::set_places`] machines have a place, the next one is admitted at
//!    once.
//! 3. Beyond that, one machine is admitted at each look at which the host has idle CPUs.
//!
//! Source: the documents start more than a hundred machines 25 at a time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::id::VmId;

/// Default number of machines that boot at the same time on a busy host with many CPUs.
pub const DEFAULT_PLACES: u16 = 25;
/// Least default number. A boot also waits for storage.
const LEAST_PLACES: u16 = 4;
/// Machines that boot at the same time for each CPU.
const PLACES_PER_CPU: u16 = 2;
/// Least time after which a machine whose guest says nothing gives its place back.
pub const BOOT_MAX: Duration = Duration::from_secs(60);

/// Returns the default number of machines that boot at the same time on a busy host with this many CPUs.
/// More of them than CPUs can run make each other slow, and the last one is ready no sooner.
pub fn default_places(cpus: usize) -> u16 {
    let cpus = u16::try_from(cpus).unwrap_or(u16::MAX);
    cpus.saturating_mul(PLACES_PER_CPU).clamp(LEAST_PLACES, DEFAULT_PLACES)
}

/// Machines that boot, and those that wait for it.
#[derive(Debug)]
pub struct BootPace {
    places: usize,
    /// Machines with a place, and the time of their admission.
    booting: BTreeMap<VmId, Duration>,
    waiting: VecDeque<VmId>,
    /// Longest boot since machines boot or wait.
    slowest: Duration,
}

impl BootPace {
    /// Creates the pace with this number of places.
    pub fn new(places: u16) -> Self {
        Self {
            places: places.into(),
            booting: BTreeMap::new(),
            waiting: VecDeque::new(),
            slowest: Duration::ZERO,
        }
    }

    /// Changes the number of places. Machines that boot continue.
    pub fn set_places(&mut self, places: u16) {
        self.places = places.into();
    }

    /// Lets a machine wait for a place. One that has a place or waits gives that up.
    pub fn wait(&mut self, vm: VmId) {
        self.leave(vm);
        self.waiting.push_back(vm);
    }

    /// Takes the place of a machine back whose guest's agent has answered.
    pub fn ready(&mut self, vm: VmId, now: Duration) {
        if let Some(since) = self.booting.get(&vm) {
            self.slowest = self.slowest.max(now.saturating_sub(*since));
        }
        self.leave(vm);
    }

    /// Takes a machine's place back, or ends its wait.
    pub fn leave(&mut self, vm: VmId) {
        self.booting.remove(&vm);
        self.waiting.retain(|one| *one != vm);
        if self.booting.is_empty() && self.waiting.is_empty() {
            self.slowest = Duration::ZERO;
        }
    }

    /// Returns the next machine that is admitted. With `has_idle_cpus`, one machine is admitted beyond
    /// the number of places: pass it to the first call of a look only.
    pub fn admit(&mut self, now: Duration, has_idle_cpus: bool) -> Option<VmId> {
        let most = BOOT_MAX.max(self.slowest * 2);
        self.booting.retain(|_, since| now.saturating_sub(*since) < most);
        if self.booting.len() >= self.places && !has_idle_cpus {
            return None;
        }
        let vm = self.waiting.pop_front()?;
        self.booting.insert(vm, now);
        Some(vm)
    }

    /// Returns the number of machines that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of machines that have a place.
    pub fn booting(&self) -> usize {
        self.booting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Uuid;

    fn vm(n: u8) -> VmId {
        VmId(Uuid::from_random([n; 16]))
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_small_host_boots_fewer_at_a_time() {
        let places = [1, 2, 8, 13, 1 << 20].map(default_places);
        assert_eq!(places, [4, 4, 16, 25, 25]);
    }

    #[test]
    fn machines_start_in_order_and_a_few_at_a_time() {
        let mut pace = BootPace::new(2);
        (0..5).for_each(|n| pace.wait(vm(n)));
        let admitted = |pace: &mut BootPace, now, idle| {
            let first = pace.admit(now, idle);
            let mut all: Vec<_> = first.into_iter().collect();
            all.extend(std::iter::from_fn(|| pace.admit(now, false)));
            all
        };
        assert_eq!(admitted(&mut pace, s(0), false), [vm(0), vm(1)]);
        assert_eq!(admitted(&mut pace, s(1), false), []);
        // Idle CPUs admit one more at each look.
        assert_eq!(admitted(&mut pace, s(2), true), [vm(2)]);
        assert_eq!((pace.booting(), pace.waiting()), (3, 2));
        // One is ready: two are left, as many as there are places.
        pace.leave(vm(1));
        assert_eq!(admitted(&mut pace, s(3), false), []);
        pace.leave(vm(0));
        assert_eq!(admitted(&mut pace, s(3), false), [vm(3)]);
        // A guest without an agent gives its place back.
        assert_eq!(admitted(&mut pace, s(61), false), []);
        assert_eq!(admitted(&mut pace, s(62), false), [vm(4)]);
        assert_eq!(admitted(&mut pace, s(62), true), []);
    }

    #[test]
    fn places_are_kept_longer_where_boots_take_longer() {
        let mut pace = BootPace::new(2);
        (0..4).for_each(|n| pace.wait(vm(n)));
        assert_eq!([pace.admit(s(0), false), pace.admit(s(0), false)], [Some(vm(0)), Some(vm(1))]);
        pace.ready(vm(0), s(50));
        assert_eq!(pace.admit(s(50), false), Some(vm(2)));
        assert_eq!(pace.admit(s(99), false), None);
        assert_eq!(pace.admit(s(100), false), Some(vm(3)));
        (2..4).for_each(|n| pace.ready(vm(n), s(101)));
        // The next machines find no storm.
        (4..7).for_each(|n| pace.wait(vm(n)));
        assert_eq!(
            [pace.admit(s(200), false), pace.admit(s(200), false)],
            [Some(vm(4)), Some(vm(5))]
        );
        assert_eq!(pace.admit(s(260), false), Some(vm(6)));
    }

    #[test]
    fn one_that_leaves_or_asks_again_has_one_place_at_most() {
        let mut pace = BootPace::new(1);
        pace.wait(vm(0));
        assert_eq!(pace.admit(s(0), false), Some(vm(0)));
        pace.wait(vm(0));
        pace.wait(vm(1));
        pace.wait(vm(0));
        assert_eq!((pace.booting(), pace.waiting()), (0, 2));
        pace.leave(vm(1));
        assert_eq!(pace.admit(s(0), false), Some(vm(0)));
        pace.set_places(2);
        pace.wait(vm(2));
        assert_eq!(pace.admit(s(0), false), Some(vm(2)));
    }
}
