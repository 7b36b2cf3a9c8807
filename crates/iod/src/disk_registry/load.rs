//! Load of all disks, for work that makes way for them.

use std::time::Duration;

use blk::{Op, Stage, clock_ns};

use super::DiskRegistry;
use crate::image_calls::DiskLoad;

impl DiskRegistry {
    /// Returns the requests of all disks since their start.
    pub(crate) fn load(&self) -> DiskLoad {
        let disks = self.disks();
        let disks: Vec<_> =
            disks.by_id.values().filter_map(|one| one.served_disk.clone()).collect();
        let mut load = DiskLoad::default();
        for device in disks.iter().map(|disk| disk.device()) {
            for times in [Op::Read, Op::Write].map(|op| device.durations(Stage::Device, op)) {
                let Some(times) = times else { continue };
                load.requests = load.requests.saturating_add(times.count());
                load.total_ns = load.total_ns.saturating_add(times.sum_ns());
            }
            if let Some(since) = device.oldest_in_disk_ns() {
                let age = Duration::from_nanos(clock_ns().saturating_sub(since));
                load.oldest = load.oldest.max(age);
            }
        }
        load
    }
}
