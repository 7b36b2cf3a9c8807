//! Broken rings in handover records.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::report::RingKind;
use serde::{Deserialize, Serialize};
use virtq::BrokenRing;

/// Handover record of a broken ring. The destination does not start the ring, so it cannot find out
/// by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BrokenRingState {
    /// Index of the virtqueue.
    pub(crate) queue: u16,
    /// Purpose of the ring.
    pub(crate) kind: RingKind,
    cause: String,
    /// Time at which it broke, in nanoseconds since 1970.
    since_unix_ns: u64,
}

impl BrokenRingState {
    /// Returns the record of a ring.
    pub(crate) fn new(queue: u16, kind: RingKind, broken_ring: BrokenRing) -> Self {
        let BrokenRing { cause, since } = broken_ring;
        let since_unix_ns = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        Self { queue, kind, cause, since_unix_ns }
    }

    /// Returns the state of the ring.
    pub(crate) fn into_broken_ring(self) -> BrokenRing {
        let since = UNIX_EPOCH.checked_add(Duration::from_nanos(self.since_unix_ns));
        BrokenRing { cause: self.cause, since: since.unwrap_or_else(SystemTime::now) }
    }
}
