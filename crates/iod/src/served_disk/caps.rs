//! Caps of a disk, as they are asked for and as its device keeps them.

use blk::Cap;
use model::caps::{MAX_BURST_SECONDS, MAX_BYTES_PER_SECOND, MAX_IOPS};
use model::spec::Caps;

use super::{ServedDisk, lock};

// What is accepted is kept as it was asked for.
const _: () = assert!(
    MAX_IOPS <= blk::REQUESTS_MAX
        && MAX_BYTES_PER_SECOND <= blk::BYTES_MAX
        && MAX_BURST_SECONDS <= blk::BURST_SECONDS_MAX
);

/// Caps as a device takes them.
pub(super) fn of(caps: Option<Caps>) -> blk::Caps {
    let caps = caps.unwrap_or_default();
    let cap = |rate: Option<u64>, burst: Option<u64>| {
        let burst = burst.map(|rate| (rate, caps.burst_seconds));
        rate.map(|per_second| Cap { per_second, burst })
    };
    blk::Caps {
        requests: cap(caps.iops, caps.iops_burst),
        bytes: cap(caps.bytes_per_second, caps.bytes_burst),
    }
}

impl ServedDisk {
    /// Caps in force, as they were asked for.
    pub fn caps(&self) -> Option<Caps> {
        *lock(&self.caps)
    }

    /// Other caps from now on. Never waits for storage.
    pub fn set_caps(&self, caps: Option<Caps>) {
        let caps = caps.filter(|caps| !caps.is_none());
        *lock(&self.caps) = caps;
        self.device.set_caps(of(caps));
        self.look_again();
    }
}
