//! Token buckets that refill at a steady rate. Any number of takers share one without a lock.
//!
//! Tokens are numbered. A [`Bucket`] is the number of the next token to take: one word, and all
//! shared state. A [`RefillCurve`] gives the number of tokens that have arrived by a time. It is a
//! straight line, equal for all takers, so each taker has a copy. A taker takes the next numbers at
//! once and waits until the first of them has arrived. So takers are served in the order in which
//! they took numbers. None starves, and none waits for another's memory.
//!
//! - A taker waits only for its *first* token, even if it takes many. So a request larger than the
//!   bucket passes, and the requests behind it wait for the rest.
//! - Unused tokens are kept up to the curve's capacity; older ones expire.
//! - Taken numbers stay taken when the curve changes. Only their arrival times change. So the rate
//!   may change at any time and any number of times, without double charges or free tokens.
//!
//! Arithmetic is exact. At `n` units a second, `n` billionths of a unit arrive in a nanosecond.
//! Nothing is rounded, so nothing drifts. Numbers wrap: only distances from the curve's base count,
//! and the base moves with each change. Distances stay below 2^63 even if a curve of the highest
//! rate stays unchanged for a lifetime. [`CAPACITY_MAX`] bounds the tokens of a full bucket.

use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of a unit: the number of nanoseconds in a second.
const PARTS: u128 = 1_000_000_000;
/// Maximum capacity of a bucket in tokens: far above the need of any accepted cap, and far below
/// the range in which distances become ambiguous.
const CAPACITY_MAX: u64 = 1 << 52;

/// Refill rate and capacity of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Units a second; at least 1.
    pub(crate) per_second: u64,
    /// Units that one token represents; at least 1.
    pub(crate) grain: u64,
    /// Maximum number of unused tokens; at least 1.
    pub(crate) capacity: u64,
}

impl Rate {
    fn sound(self) -> Self {
        Self {
            per_second: self.per_second.max(1),
            grain: self.grain.max(1),
            capacity: self.capacity.clamp(1, CAPACITY_MAX),
        }
    }
}

/// Number of tokens that have arrived, as a function of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefillCurve {
    rate: Rate,
    /// Start of the curve, in nanoseconds.
    since: u64,
    /// Number of the first token that had not arrived at the start.
    base: u64,
    /// Parts of that token that had arrived at the start.
    part: u128,
}

impl RefillCurve {
    /// Creates a curve on which the next taker of `bucket` finds `capacity` tokens.
    pub(crate) fn full(rate: Rate, now: u64, bucket: &Bucket) -> Self {
        let rate = rate.sound();
        Self { rate, since: now, base: bucket.next(), part: 0 }.refilled(i64::MAX, now, bucket)
    }

    /// Returns a curve of the same rate with `saved` unused tokens; a negative number is debt.
    pub(crate) fn refilled(&self, saved: i64, now: u64, bucket: &Bucket) -> Self {
        let most = self.rate.capacity as i64;
        let base = bucket.next().wrapping_add_signed(saved.clamp(-(CAPACITY_MAX as i64), most));
        Self { rate: self.rate, since: now, base, part: 0 }
    }

    /// Returns a curve with the same tokens up to `now` and another rate afterwards.
    pub(crate) fn bend(&self, rate: Rate, now: u64) -> Self {
        let come = self.come(now);
        let token = self.token();
        // Numbers wrap by design.
        let base = self.base.wrapping_add((come / token) as u64);
        Self { rate: rate.sound(), since: now.max(self.since), base, part: come % token }
    }

    /// Returns the number of whole unused tokens; debt is negative.
    pub(crate) fn token_balance(&self, bucket: &Bucket, now: u64) -> i64 {
        let come = (self.come(now) / self.token()) as i128;
        let saved = (come - self.distance(bucket.next())).min(self.rate.capacity.into());
        i64::try_from(saved).unwrap_or(i64::MIN)
    }

    /// Returns the parts of one token.
    fn token(&self) -> u128 {
        PARTS * u128::from(self.rate.grain)
    }

    /// Returns the parts that have arrived since the base, up to `now`.
    fn come(&self, now: u64) -> u128 {
        let elapsed = now.saturating_sub(self.since);
        self.part + u128::from(self.rate.per_second) * u128::from(elapsed)
    }

    /// Returns the distance of a token from the base.
    fn distance(&self, number: u64) -> i128 {
        i128::from(number.wrapping_sub(self.base) as i64)
    }

    /// Returns when token `number` arrives, in nanoseconds; in the past if it has arrived.
    pub(crate) fn due(&self, number: u64) -> u64 {
        let Ok(ahead) = u128::try_from(self.distance(number)) else { return self.since };
        let left = ((ahead + 1) * self.token()).saturating_sub(self.part);
        let left = left.div_ceil(self.rate.per_second.into());
        u64::try_from(left).map_or(u64::MAX, |left| self.since.saturating_add(left))
    }

    /// Returns the distance from the base of the oldest token that has not expired at `now`.
    fn oldest(&self, now: u64) -> i128 {
        self.come(now).div_ceil(self.token()) as i128 - i128::from(self.rate.capacity)
    }
}

/// Number of the next token to take.
#[derive(Debug, Default)]
pub(crate) struct Bucket(AtomicU64);

impl Bucket {
    fn next(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes the tokens for `cost` units and returns the number of the first one.
    pub(crate) fn take(&self, refill_curve: &RefillCurve, now: u64, cost: u64) -> u64 {
        // No request costs more than `CAPACITY_MAX`.
        let tokens = cost.div_ceil(refill_curve.rate.grain).min(CAPACITY_MAX);
        let oldest = refill_curve.oldest(now);
        let mut next = self.next();
        loop {
            // Numbers wrap by design.
            let first =
                refill_curve.base.wrapping_add(refill_curve.distance(next).max(oldest) as u64);
            let then = first.wrapping_add(tokens);
            // Relaxed suffices: only the number is shared; no other memory depends on its order.
            match self.0.compare_exchange_weak(next, then, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return first,
                Err(found) => next = found,
            }
        }
    }
}

#[cfg(test)]
mod tests;
