//! Caps of a disk, as requested and in its device's form, and its share of the storage.

use std::sync::Arc;
use std::time::Instant;

use blk::Cap;
use model::caps::{MAX_BURST_SECONDS, MAX_BYTES_PER_SECOND, MAX_IOPS};
use model::report::ShareReport;
use model::share::DiskShare;
use model::spec::Caps;

use super::replace::DRAIN_WITHIN;
use super::{ServedDisk, ServedDiskError, lock};
use crate::open_disk::TreeFile;

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

    /// Returns whether a file of the disk is on this whole device.
    pub(crate) fn is_on(&self, device: u64) -> bool {
        let is_there = |on: u64| calibrate::whole_device(on) == device;
        self.tree().files.iter().any(|file| is_there(file.identity.device))
    }

    /// Returns whether the storages of all files dispatch the requests of new channels.
    pub(crate) fn is_scheduled(&self) -> bool {
        self.tree().files.iter().all(|file| file.disk.shares_storage())
    }

    /// Puts the disk on the storages of its files that have got a profile. Rings that are served get
    /// new channels, because those of before know no scheduler.
    ///
    /// # Errors
    /// Storage does not complete the I/O in flight in time. The channels stay.
    pub(crate) fn join_storages(self: &Arc<Self>) -> Result<(), ServedDiskError> {
        self.refuse_stuck("storage.profile")?;
        let tree = self.tree();
        let join = |file: &&TreeFile| tree.storage_disks.join(&file.disk, &file.name);
        if tree.files.iter().filter(join).count() == 0 {
            return Ok(());
        }
        let deadline = Instant::now() + DRAIN_WITHIN;
        let not_drained = || ServedDiskError::NotDrained { place: self.backend_text() };
        let mut queues = self.queues.lock_until(deadline).ok_or_else(not_drained)?;
        if !queues.quiesce(deadline) {
            return Err(not_drained());
        }
        self.serve_again(&mut queues);
        Ok(())
    }

    /// Returns the share of the storage of the top file or of the model, if that has a scheduler.
    pub fn share_report(&self) -> Option<ShareReport> {
        let tree = self.tree();
        let top = tree.files.first().map(|file| &*file.disk);
        let (share, storage_disk) = tree.storage_disks.report(top)?;
        let (stats, storage) = (storage_disk.stats(), storage_disk.storage_stats());
        Some(ShareReport {
            share,
            waited_seconds: stats.waited_ns as f64 / 1e9,
            waiting: stats.held,
            behind: storage_disk.waits_behind(),
            splits: stats.splits,
            piece_bytes: storage.piece.map(|piece| piece.bytes),
            depth_seconds: storage.depth_ns as f64 / 1e9,
            in_flight: storage.in_flight,
            tightened: storage.tightened,
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
