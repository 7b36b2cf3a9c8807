//! Caps of a disk: requests and bytes a second, with bursts.
//!
//! # Terms
//! - **Cap**: a rate that the disk does not exceed in the long run. Without a burst, the bucket
//!   stores a tenth of a second's worth ([`SLACK`]). So a guest that wakes up late loses nothing.
//! - **Burst**: a higher rate for a limited time. Its tokens accumulate while the disk does less
//!   than its cap. They are full when the disk is attached. The [`TokenBalance`] moves with a disk
//!   to its next process.
//! - **Ticket**: the tokens of one request. Its holder waits until they arrive and depends on no
//!   other queue for that.
//!
//! # Model
//! Caps apply to the disk, over all queues and reactors. [`Throttle`] is shared. It has the
//! settings, and one number for each of four buckets (cap and burst of requests, cap and burst of
//! bytes). Each queue has a copy of the settings in its [`QueueThrottle`], and checks once a turn
//! whether they have changed. A disk without caps costs only that check.
//!
//! A queue takes a ticket for the request that it has popped, and pops no other until the ticket is
//! due. The requests behind it stay in the guest's ring, where a stop can leave them. Tickets are
//! due in the order in which they were taken, so the queues of a disk share its caps in turn. Each
//! queue has one timer, only while a request waits.
//!
//! # Costs
//! - Reads and writes: one request, and their bytes.
//! - Discards and write-zeroes: one request; they carry no data.
//! - Flushes: nothing, because the guest's own writes have been counted. A flush still waits behind
//!   earlier requests of its queue.

mod bucket;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bucket::{Bucket, Rate, RefillCurve};
use disk::RequestKind;

/// Highest cap of requests a second; higher values are reduced to it.
pub const REQUESTS_MAX: u64 = 1 << 32;
/// Highest cap of bytes a second; higher values are reduced to it.
pub const BYTES_MAX: u64 = 1 << 40;
/// Longest burst in seconds; longer values are reduced to it.
pub const BURST_SECONDS_MAX: u32 = 86_400;

/// Unit of byte counts: reads and writes consist of sectors. In this unit, the bytes of a disk's
/// lifetime fit into a token number.
const SECTOR: u64 = 512;

/// Divisor of a second's worth that a cap without a burst stores. A guest that waits for each
/// request and wakes up late still gets its rate.
const SLACK: u64 = 10;

/// A rate limit with an optional burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Units a second in the long run; at least 1.
    pub per_second: u64,
    /// Units a second in a burst (at least `per_second`), and seconds that a full burst lasts.
    pub burst: Option<(u64, u32)>,
}

/// Caps of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Limit of requests; `None` for no limit.
    pub requests: Option<Cap>,
    /// Limit of bytes of reads and writes; `None` for no limit.
    pub bytes: Option<Cap>,
}

/// Number of buckets: requests, requests in a burst, bytes, bytes in a burst.
const BUCKETS: usize = 4;

/// Unused tokens of each bucket, in requests and in sectors; debt is negative.
pub type TokenBalance = [i64; BUCKETS];

type RefillCurves = [Option<RefillCurve>; BUCKETS];

/// Number of the first token in each bucket.
type Ticket = [Option<u64>; BUCKETS];

#[derive(Debug, Default)]
struct Settings {
    caps: Caps,
    lines: RefillCurves,
}

/// Throttle state that the queues of a disk share.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    buckets: [Bucket; BUCKETS],
    settings: Mutex<Settings>,
    /// Incremented when the settings change.
    epoch: AtomicU64,
}

/// Returns the refill rate and capacity of each bucket.
fn rates(caps: Caps) -> [Option<Rate>; BUCKETS] {
    let slack = |rate: u64| (rate / SLACK).max(1);
    let pair = |cap: Option<Cap>, most: u64, grain: u64| {
        let Some(Cap { per_second, burst }) = cap else { return [None, None] };
        let rate =
            |per_second, units: u64| Some(Rate { per_second, grain, capacity: units / grain });
        let per_second = per_second.min(most);
        let Some((above, seconds)) = burst else {
            return [rate(per_second, slack(per_second)), None];
        };
        let above = above.min(most);
        // The stored tokens last for the burst's seconds at the burst's rate.
        let saved = above.saturating_sub(per_second) * u64::from(seconds.min(BURST_SECONDS_MAX));
        [rate(per_second, saved + slack(per_second)), rate(above, slack(above))]
    };
    let [requests, in_burst] = pair(caps.requests, REQUESTS_MAX, 1);
    let [bytes, bytes_in_burst] = pair(caps.bytes, BYTES_MAX, SECTOR);
    [requests, in_burst, bytes, bytes_in_burst]
}

impl Throttle {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        // Settings are replaced as a whole, so a panic elsewhere leaves them consistent.
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the caps from `now` (nanoseconds) on. Unused tokens and debt stay.
    pub(crate) fn set(&self, caps: Caps, now: u64) {
        let mut settings = self.settings();
        settings.caps = caps;
        let all = settings.lines.iter_mut().zip(rates(caps)).zip(&self.buckets);
        for ((refill_curve, rate), bucket) in all {
            *refill_curve = rate.map(|rate| match refill_curve {
                Some(refill_curve) => refill_curve.bend(rate, now),
                None => RefillCurve::full(rate, now, bucket),
            });
        }
        drop(settings);
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Returns unused tokens and debt at `now`; 0 where there is no cap.
    pub(crate) fn token_balance(&self, now: u64) -> TokenBalance {
        let settings = self.settings();
        let mut saved = TokenBalance::default();
        for ((saved, refill_curve), bucket) in
            saved.iter_mut().zip(&settings.lines).zip(&self.buckets)
        {
            *saved = refill_curve.map_or(0, |refill_curve| refill_curve.token_balance(bucket, now));
        }
        saved
    }

    /// Sets unused tokens and debt, limited to the capacity of the buckets.
    pub(crate) fn refill(&self, saved: TokenBalance, now: u64) {
        let mut settings = self.settings();
        for ((refill_curve, saved), bucket) in
            settings.lines.iter_mut().zip(saved).zip(&self.buckets)
        {
            *refill_curve =
                refill_curve.map(|refill_curve| refill_curve.refilled(saved, now, bucket));
        }
        drop(settings);
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Returns the caps in force.
    pub(crate) fn caps(&self) -> Caps {
        self.settings().caps
    }
}

/// A queue's copy of the throttle settings.
#[derive(Debug, Default)]
pub(crate) struct QueueThrottle {
    epoch: u64,
    on: bool,
    lines: RefillCurves,
}

impl QueueThrottle {
    /// Applies changed caps. Returns whether they have changed.
    pub(crate) fn refresh(&mut self, throttle: &Throttle) -> bool {
        let epoch = throttle.epoch.load(Ordering::Acquire);
        if epoch == self.epoch {
            return false;
        }
        self.epoch = epoch;
        self.lines = throttle.settings().lines;
        self.on = self.lines.iter().any(Option::is_some);
        true
    }

    /// Returns whether there is a cap.
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Takes a ticket for a request. `None` if no cap applies to requests of this kind.
    pub(crate) fn ticket(
        &self,
        throttle: &Throttle,
        kind: RequestKind,
        len: u64,
        now: u64,
    ) -> Option<TokenGrant> {
        let (requests, bytes) = match kind {
            _ if !self.on => return None,
            RequestKind::Flush => return None,
            RequestKind::Read | RequestKind::Write { .. } => (1, len),
            RequestKind::Discard | RequestKind::WriteZeroes { .. } => (1, 0),
        };
        let mut ticket = Ticket::default();
        let costs = [requests, requests, bytes, bytes];
        let all = ticket.iter_mut().zip(&self.lines).zip(&throttle.buckets).zip(costs);
        for (((first, refill_curve), bucket), cost) in all {
            *first = refill_curve
                .as_ref()
                .filter(|_| cost > 0)
                .map(|refill_curve| bucket.take(refill_curve, now, cost));
        }
        Some(TokenGrant(ticket))
    }

    /// Returns when a ticket is due under the current caps, in nanoseconds.
    pub(crate) fn due(&self, token_grant: &TokenGrant) -> u64 {
        let each = token_grant.0.iter().zip(&self.lines);
        each.filter_map(|(first, refill_curve)| Some(refill_curve.as_ref()?.due((*first)?)))
            .max()
            .unwrap_or(0)
    }
}

/// The ticket of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenGrant(Ticket);

#[cfg(test)]
mod tests;
