//! Caps on what a guest may do with its disk: requests and bytes a second, with bursts.
//!
//! # Words
//! - **Cap**: a rate that is not exceeded in the long run. Without a burst, a tenth of a second's
//!   worth may be made up for ([`SLACK`]), so that a guest that is late by a wake-up loses nothing.
//! - **Burst**: a higher rate that is allowed for a time. It is saved up while the disk does less
//!   than its cap, and full when the disk is attached. [`TokenBalance`] goes along with a disk that another
//!   process goes on with.
//! - **Ticket**: the turn of one request. Whoever has one waits until it comes and needs nobody
//!   else for that.
//!
//! # Model
//! The unit is the disk, over all queues and reactors. [`Throttle`] is shared: one number for each
//! of the four buckets (cap and burst of requests, cap and burst of bytes), and the settings. Each
//! queue has a copy of the settings in its [`QueueThrottle`], and asks once a turn whether they have
//! changed. A disk without caps costs that one look.
//!
//! A queue takes a ticket for the request that it has popped and pops no other before the turn of
//! that one has come; what is behind it stays in the guest's ring, where a stop can leave it. Turns
//! come in the order of the tickets, so the queues of a disk share its caps in turn. One timer a
//! queue, only while a request waits.
//!
//! # What counts
//! Reads and writes: one request, and their bytes. Discards and zeroes: one request; they carry no
//! data. A flush is never held back: it costs the guest's own writes, which have been counted. But
//! it waits behind what came before it in its queue.

mod bucket;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bucket::{Bucket, Rate, RefillCurve};
use disk::RequestKind;

/// Highest cap of requests a second that is kept; a higher one is taken for this.
pub const REQUESTS_MAX: u64 = 1 << 32;
/// Highest cap of bytes a second that is kept; a higher one is taken for this.
pub const BYTES_MAX: u64 = 1 << 40;
/// Longest burst that is kept, in seconds; a longer one is taken for this.
pub const BURST_SECONDS_MAX: u32 = 86_400;

/// Bytes are counted in sectors, which all reads and writes consist of: what a disk can do in
/// a lifetime then has a number.
const SECTOR: u64 = 512;

/// Part of a second's worth that may be made up for: a guest that waits for each request, and is
/// woken late, still gets its rate.
const SLACK: u64 = 10;

/// A rate, and a higher one for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Units a second in the long run; at least 1.
    pub per_second: u64,
    /// Units a second in a burst, no less than that, and seconds for which a full burst lasts.
    pub burst: Option<(u64, u32)>,
}

/// Caps of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Requests.
    pub requests: Option<Cap>,
    /// Bytes of reads and writes.
    pub bytes: Option<Cap>,
}

/// Buckets: requests, requests in a burst, bytes, bytes in a burst.
const BUCKETS: usize = 4;

/// What is saved up in each bucket, in requests and in sectors; what is owed is negative.
pub type TokenBalance = [i64; BUCKETS];

type Lines = [Option<RefillCurve>; BUCKETS];

/// Numbers of the first token in each bucket.
type Ticket = [Option<u64>; BUCKETS];

#[derive(Debug, Default)]
struct Settings {
    caps: Caps,
    lines: Lines,
}

/// What the queues of a disk share.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    buckets: [Bucket; BUCKETS],
    settings: Mutex<Settings>,
    /// Changes with the settings.
    epoch: AtomicU64,
}

/// What comes into each bucket, and how much it holds.
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
        // At the burst's rate, what was saved lasts for its seconds.
        let saved = above.saturating_sub(per_second) * u64::from(seconds.min(BURST_SECONDS_MAX));
        [rate(per_second, saved + slack(per_second)), rate(above, slack(above))]
    };
    let [requests, in_burst] = pair(caps.requests, REQUESTS_MAX, 1);
    let [bytes, bytes_in_burst] = pair(caps.bytes, BYTES_MAX, SECTOR);
    [requests, in_burst, bytes, bytes_in_burst]
}

impl Throttle {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        // Settings are replaced whole: a panic elsewhere leaves them whole.
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other caps from now on (`now` in nanoseconds). What was saved up, or is owed, stays so.
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

    /// What is saved up, or owed, at `now`; nothing where nothing is capped.
    pub(crate) fn saved(&self, now: u64) -> TokenBalance {
        let settings = self.settings();
        let mut saved = TokenBalance::default();
        for ((saved, refill_curve), bucket) in
            saved.iter_mut().zip(&settings.lines).zip(&self.buckets)
        {
            *saved = refill_curve.map_or(0, |refill_curve| refill_curve.saved(bucket, now));
        }
        saved
    }

    /// So much is saved up, or owed, from now on; no more than fits.
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

    /// The caps in force.
    pub(crate) fn caps(&self) -> Caps {
        self.settings().caps
    }
}

/// One queue's view of the caps.
#[derive(Debug, Default)]
pub(crate) struct QueueThrottle {
    epoch: u64,
    on: bool,
    lines: Lines,
}

impl QueueThrottle {
    /// Looks whether the caps have changed; true when they have.
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

    /// There is a cap.
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Takes a turn for a request; `None`: nothing holds requests of this kind back.
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

    /// When a turn comes, in nanoseconds, as the caps are now.
    pub(crate) fn due(&self, token_grant: &TokenGrant) -> u64 {
        let each = token_grant.0.iter().zip(&self.lines);
        each.filter_map(|(first, refill_curve)| Some(refill_curve.as_ref()?.due((*first)?)))
            .max()
            .unwrap_or(0)
    }
}

/// The turn of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenGrant(Ticket);

#[cfg(test)]
mod tests;
