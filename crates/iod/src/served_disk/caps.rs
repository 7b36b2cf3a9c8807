//! Caps of a disk, as requested and in its device's form, and its share of the storage.

use blk::Cap;
use model::caps::{MAX_BURST_SECONDS, MAX_BYTES_PER_SECOND, MAX_IOPS};
use model::report::ShareReport;
use model::share::DiskShare;
use model::spec::Caps;

use super::{ServedDisk, lock};

// Every accepted cap can be stored unchanged.
const _: () = assert!(
    MAX_IOPS <= blk::REQUESTS_MAX
        && MAX_BYTES_PER_SECOND <= blk::BYTES_MAX
        && MAX_BURST_SECONDS <= blk::BURST_SECONDS_MAX
);

/// Converts caps to the device's form.
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
    /// Returns the caps in effect, as requested.
    pub fn caps(&self) -> Option<Caps> {
        *lock(&self.caps)
    }

    /// Sets the share of the storage. Never waits for storage.
    pub fn set_share(&self, share: DiskShare) {
        self.tree().storage_disks.set_share(share);
    }

    /// Returns the share of the storage of the top file or of the model, if that has a scheduler.
    pub fn share_report(&self) -> Option<ShareReport> {
        let tree = self.tree();
        let top = tree.files.first().map(|file| &*file.disk);
        let (share, storage_disk) = tree.storage_disks.report(top)?;
        let stats = storage_disk.stats();
        Some(ShareReport {
            share,
            waited_seconds: stats.waited_ns as f64 / 1e9,
            waiting: stats.held,
            behind: storage_disk.waits_behind(),
            splits: stats.splits,
        })
    }

    /// Sets the caps. Never waits for storage.
    pub fn set_caps(&self, caps: Option<Caps>) {
        let caps = caps.filter(|caps| !caps.is_none());
        *lock(&self.caps) = caps;
        self.device.set_caps(of(caps));
        self.recheck_queues();
    }
}
