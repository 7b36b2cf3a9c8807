//! Tokens that come at a steady rate, shared by any number of takers without a lock.
//!
//! Tokens are numbered. A [`Bucket`] says which number is the next to be handed out: one word, and
//! all that is shared. A [`RefillCurve`] says how many have come by a time: a straight line, the same for
//! everybody, so it is copied to each taker. Whoever needs tokens takes the next numbers at once
//! and waits until the first of them has come. That makes a queue of all takers in the order in
//! which they came: nobody starves, and no taker waits for another's memory.
//!
//! - A taker waits for its *first* token only, however many it takes: what is larger than the
//!   bucket passes, and those behind it wait for the rest.
//! - Numbers that came while nobody took any are kept up to the line's capacity; older ones are
//!   passed over.
//! - Numbers that were taken stay taken when the line changes: only the time at which they come
//!   does. So a rate may be changed at any time, as often as anybody likes, and neither is
//!   anything charged twice nor given away.
//!
//! Arithmetic is exact: at `n` units a second, `n` billionths of a unit come in a nanosecond, and
//! nothing is rounded, so nothing drifts. Numbers wrap: only distances from the line's base count,
//! which moves with each change. They stay below 2^63 while a line of the highest rate is not
//! changed for a lifetime, and [`CAPACITY_MAX`] bounds what a full bucket adds.

use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of a unit: as many as nanoseconds in a second.
const PARTS: u128 = 1_000_000_000;
/// Most tokens that a bucket holds: far above what any accepted cap asks for, and far below where
/// distances would be mistaken.
const CAPACITY_MAX: u64 = 1 << 52;

/// How many tokens come, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Units a second; at least 1.
    pub(crate) per_second: u64,
    /// Units that one token stands for; at least 1.
    pub(crate) grain: u64,
    /// Tokens kept while nobody takes any; at least 1.
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

/// How many tokens have come by a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefillCurve {
    rate: Rate,
    /// From then on, in nanoseconds.
    since: u64,
    /// The first token that had not come by then.
    base: u64,
    /// Parts of it that had.
    part: u128,
}

impl RefillCurve {
    /// A line on which `capacity` tokens are there at once for whoever comes next to `bucket`.
    pub(crate) fn full(rate: Rate, now: u64, bucket: &Bucket) -> Self {
        let rate = rate.sound();
        Self { rate, since: now, base: bucket.next(), part: 0 }.refilled(i64::MAX, now, bucket)
    }

    /// The same rate with so many tokens there; if negative, so many are owed.
    pub(crate) fn refilled(&self, saved: i64, now: u64, bucket: &Bucket) -> Self {
        let most = self.rate.capacity as i64;
        let base = bucket.next().wrapping_add_signed(saved.clamp(-(CAPACITY_MAX as i64), most));
        Self { rate: self.rate, since: now, base, part: 0 }
    }

    /// The same tokens by now, and another rate from now on.
    pub(crate) fn bend(&self, rate: Rate, now: u64) -> Self {
        let come = self.come(now);
        let token = self.token();
        // What wraps is meant to.
        let base = self.base.wrapping_add((come / token) as u64);
        Self { rate: rate.sound(), since: now.max(self.since), base, part: come % token }
    }

    /// Whole tokens that are there for whoever comes next; if negative, so many are owed.
    pub(crate) fn saved(&self, bucket: &Bucket, now: u64) -> i64 {
        let come = (self.come(now) / self.token()) as i128;
        let saved = (come - self.distance(bucket.next())).min(self.rate.capacity.into());
        i64::try_from(saved).unwrap_or(i64::MIN)
    }

    /// Parts of one token.
    fn token(&self) -> u128 {
        PARTS * u128::from(self.rate.grain)
    }

    /// Parts that have come by `now` since the base.
    fn come(&self, now: u64) -> u128 {
        let elapsed = now.saturating_sub(self.since);
        self.part + u128::from(self.rate.per_second) * u128::from(elapsed)
    }

    /// How far a token is from the base.
    fn distance(&self, number: u64) -> i128 {
        i128::from(number.wrapping_sub(self.base) as i64)
    }

    /// When token `number` has come, in nanoseconds; in the past if it has.
    pub(crate) fn due(&self, number: u64) -> u64 {
        let Ok(ahead) = u128::try_from(self.distance(number)) else { return self.since };
        let left = ((ahead + 1) * self.token()).saturating_sub(self.part);
        let left = left.div_ceil(self.rate.per_second.into());
        u64::try_from(left).map_or(u64::MAX, |left| self.since.saturating_add(left))
    }

    /// How far the oldest token that is still kept at `now` is from the base.
    fn oldest(&self, now: u64) -> i128 {
        self.come(now).div_ceil(self.token()) as i128 - i128::from(self.rate.capacity)
    }
}

/// The number of the next token.
#[derive(Debug, Default)]
pub(crate) struct Bucket(AtomicU64);

impl Bucket {
    fn next(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes what `cost` units need and returns the number of the first token.
    pub(crate) fn take(&self, refill_curve: &RefillCurve, now: u64, cost: u64) -> u64 {
        // No request is that large.
        let tokens = cost.div_ceil(refill_curve.rate.grain).min(CAPACITY_MAX);
        let oldest = refill_curve.oldest(now);
        let mut next = self.next();
        loop {
            // What wraps is meant to.
            let first =
                refill_curve.base.wrapping_add(refill_curve.distance(next).max(oldest) as u64);
            let then = first.wrapping_add(tokens);
            // Only the number itself is shared: no other memory depends on its order.
            match self.0.compare_exchange_weak(next, then, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return first,
                Err(found) => next = found,
            }
        }
    }
}

#[cfg(test)]
mod tests;
