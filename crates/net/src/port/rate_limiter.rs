//! Rate limiter with a burst, shared by all queues and reactors of a port.
//!
//! The shared state is one number: the time at which all admitted units would have passed at the
//! limit's rate (virtual scheduling algorithm of ITU-T I.371). It may be ahead of now by the time
//! of the burst. A request waits until one more unit would fit, and then passes whole. So a request
//! larger than the burst passes too, and later requests wait for it. There is no lock. Units that
//! one queue uses are not available to another.

use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of a nanosecond in which times are stored: a small frame at a high rate takes few of
/// these. A distance has 64 bits, enough for 18 years.
const PARTS: u128 = 16;
const SECOND_NS: u128 = 1_000_000_000;
/// Longest time that a burst or a debt may amount to: an hour.
const TIME_MAX: u128 = 3600 * SECOND_NS * PARTS;

/// Rate and burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units a second; 0 counts as 1.
    pub per_second: u64,
    /// Units that may pass at once after a pause.
    pub burst: u64,
}

impl Rate {
    /// Smallest burst of a byte limit: the largest frame must not be a rare event (from Linux
    /// netback).
    pub const BURST_MIN_BYTES: u64 = 131_072;

    /// Returns a byte limit with XenServer's burst: the bytes of 50 ms, at least
    /// [`Self::BURST_MIN_BYTES`].
    pub fn bytes(per_second: u64) -> Self {
        Self { per_second, burst: (per_second / 20).max(Self::BURST_MIN_BYTES) }
    }

    /// Returns the time that `units` take, in parts.
    fn time(self, units: u64) -> u64 {
        let parts = u128::from(units) * SECOND_NS * PARTS;
        parts.div_ceil(self.per_second.max(1).into()).min(TIME_MAX) as u64
    }

    /// Returns the units that take this time, given in parts.
    fn units(self, parts: u64) -> u64 {
        let units = u128::from(parts) * u128::from(self.per_second.max(1)) / (SECOND_NS * PARTS);
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}

/// Shared rate limiter.
#[derive(Debug)]
pub struct RateLimiter {
    rate: Rate,
    /// Time of one unit, in parts.
    unit: u64,
    /// Time of the burst, in parts; at least one unit.
    burst: u64,
    /// Time at which all admitted units would have passed at the rate; in parts, on the caller's
    /// clock.
    until: AtomicU64,
}

fn parts(now_ns: u64) -> u64 {
    now_ns.wrapping_mul(PARTS as u64)
}

/// Returns how far `a` is ahead of `b`; negative if it is behind.
fn ahead(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}

impl RateLimiter {
    /// Creates a limiter that is unused at `now_ns`.
    pub fn new(rate: Rate, now_ns: u64) -> Self {
        let unit = rate.time(1).max(1);
        let burst = rate.time(rate.burst).max(unit);
        Self { rate, unit, burst, until: AtomicU64::new(parts(now_ns)) }
    }

    /// Returns the rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the time by which the admitted units are ahead of the rate at `now_ns`, in
    /// nanoseconds.
    pub fn debt_ns(&self, now_ns: u64) -> u64 {
        ahead(self.until.load(Ordering::Relaxed), parts(now_ns)).max(0) as u64 / PARTS as u64
    }

    /// Sets the debt at `now_ns`, at most an hour: for a limiter that continues another one.
    pub fn charge(&self, owed_ns: u64, now_ns: u64) {
        let debt = (u128::from(owed_ns) * PARTS).min(TIME_MAX) as u64;
        self.until.store(parts(now_ns).wrapping_add(debt), Ordering::Relaxed);
    }

    /// Continues `former` at `now_ns`. Units that it admitted ahead of its rate remain a debt, so
    /// that a new limit does not grant a new burst. The debt is at most this limiter's burst, so
    /// that a port is not blocked for units that the former limit allowed.
    pub fn follow(&self, former: &Self, now_ns: u64) {
        let now = parts(now_ns);
        let ahead_by = ahead(former.until.load(Ordering::Relaxed), now).max(0) as u64;
        let debt = self.rate.time(former.rate.units(ahead_by)).min(self.burst);
        self.until.store(now.wrapping_add(debt), Ordering::Relaxed);
    }

    /// Admits `units` at `now_ns`, or returns when to retry, in nanoseconds. A request larger than
    /// the burst passes, and later requests wait for it.
    ///
    /// # Errors
    /// The time from which on the request may pass, if no other request passes before.
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
