//! A cap on what a port does in a second, with a burst, over all its queues and reactors.
//!
//! One number is shared: the time at which what was let pass would have passed at the cap's rate
//! (the virtual scheduling algorithm of ITU-T I.371). It may be ahead of now by the burst's time.
//! Whoever comes waits until one unit more would fit, and then passes whole; so what is larger than
//! the burst passes too, and those after it pay. There is no lock, and what one queue uses another
//! cannot.

use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of a nanosecond in which times are kept: a small frame at a high rate takes few of those.
/// A distance has 64 bits, so it is good for 18 years.
const PARTS: u128 = 16;
const SECOND_NS: u128 = 1_000_000_000;
/// Longest time that a burst, or what has passed too early, may stand for: an hour.
const TIME_MAX: u128 = 3600 * SECOND_NS * PARTS;

/// How much, and how much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units a second; 0 is taken for 1.
    pub per_second: u64,
    /// Units that may pass at once after a pause.
    pub burst: u64,
}

impl Rate {
    /// Least burst of a cap on bytes: the largest frame must be no rare event (Linux netback's).
    pub const BURST_MIN_BYTES: u64 = 131_072;

    /// A cap on bytes with the burst that XenServer gives: what passes in 50 ms, and no less than
    /// [`Self::BURST_MIN_BYTES`].
    pub fn bytes(per_second: u64) -> Self {
        Self { per_second, burst: (per_second / 20).max(Self::BURST_MIN_BYTES) }
    }

    /// Time that so many units take, in parts.
    fn time(self, units: u64) -> u64 {
        let parts = u128::from(units) * SECOND_NS * PARTS;
        parts.div_ceil(self.per_second.max(1).into()).min(TIME_MAX) as u64
    }

    /// Units that take so long, which is in parts.
    fn units(self, parts: u64) -> u64 {
        let units = u128::from(parts) * u128::from(self.per_second.max(1)) / (SECOND_NS * PARTS);
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}

/// A cap that is shared.
#[derive(Debug)]
pub struct RateLimiter {
    rate: Rate,
    /// Time of one unit, in parts.
    unit: u64,
    /// Time of the burst, in parts; no less.
    burst: u64,
    /// When all that was let pass would have, at the rate; in parts, on the caller's clock.
    until: AtomicU64,
}

fn parts(now_ns: u64) -> u64 {
    now_ns.wrapping_mul(PARTS as u64)
}

/// How far `a` is ahead of `b`; negative if it is behind.
fn ahead(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}

impl RateLimiter {
    /// A cap of which nothing has been used at `now_ns`.
    pub fn new(rate: Rate, now_ns: u64) -> Self {
        let unit = rate.time(1).max(1);
        let burst = rate.time(rate.burst).max(unit);
        Self { rate, unit, burst, until: AtomicU64::new(parts(now_ns)) }
    }

    /// The rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Time that what was let pass is ahead of the rate at `now_ns`, in nanoseconds.
    pub fn debt_ns(&self, now_ns: u64) -> u64 {
        ahead(self.until.load(Ordering::Relaxed), parts(now_ns)).max(0) as u64 / PARTS as u64
    }

    /// So much is owed at `now_ns`, an hour at most: for one that goes on in place of another.
    pub fn charge(&self, owed_ns: u64, now_ns: u64) {
        let debt = (u128::from(owed_ns) * PARTS).min(TIME_MAX) as u64;
        self.until.store(parts(now_ns).wrapping_add(debt), Ordering::Relaxed);
    }

    /// It takes the place of `former` at `now_ns`: what that let pass ahead of its rate is owed still,
    /// so that whoever is given another cap is given no other burst. No more than our burst is: nobody
    /// is silenced for what the former one allowed.
    pub fn follow(&self, former: &Self, now_ns: u64) {
        let now = parts(now_ns);
        let ahead_by = ahead(former.until.load(Ordering::Relaxed), now).max(0) as u64;
        let debt = self.rate.time(former.rate.units(ahead_by)).min(self.burst);
        self.until.store(now.wrapping_add(debt), Ordering::Relaxed);
    }

    /// Lets `units` pass at `now_ns`, or tells when to ask again, in nanoseconds. What is larger
    /// than the burst passes, and those after it pay.
    ///
    /// # Errors
    /// The time from which on it may pass, if nothing else does before.
    pub fn admit(&self, units: u64, now_ns: u64) -> Result<(), u64> {
        let now = parts(now_ns);
        let cost = self.rate.time(units);
        let mut until = self.until.load(Ordering::Relaxed);
        loop {
            let debt = ahead(until, now).max(0) as u64;
            let late = (debt + self.unit).saturating_sub(self.burst);
            if late > 0 {
                return Err(now_ns.saturating_add(late.div_ceil(PARTS as u64)));
            }
            let next = now.wrapping_add(debt).wrapping_add(cost);
            // Only this number is shared: no other memory depends on its order.
            match self.until.compare_exchange_weak(
                until,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(found) => until = found,
            }
        }
    }
}

#[cfg(test)]
mod tests;
