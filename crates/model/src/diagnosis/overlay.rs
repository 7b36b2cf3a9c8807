//! Diagnosis of a disk with an overlay: full memory, and how soon that comes.

use super::units::{bytes, duration};
use super::{Cause, DiskFacts, DiskVerdict};
use crate::report::{OverlayStats, Stage};

/// Time before an overlay is full from which on that is said with every verdict.
const SOON_SECONDS: u64 = 3600;

/// Returns a verdict if writes wait because memory and overflow file are full.
pub(super) fn full(facts: &DiskFacts<'_>) -> Option<DiskVerdict> {
    let (disk, overlay) = (facts.disk, facts.disk.overlay.as_ref()?);
    if !overlay.is_full || disk.waiting == 0 {
        return None;
    }
    let sentence = format!(
        "{} waits for room in its overlay: {} have no room in {} ({}).",
        disk.id,
        bytes(overlay.waiting_bytes),
        match overlay.has_overflow {
            true => "memory and overflow file",
            false => "memory, and there is no overflow file",
        },
        fill(overlay),
    );
    let step = match overlay.room_step(&disk.id) {
        Some(step) => format!("{step}; or delete files in the guest, which discards their blocks"),
        None => {
            "delete files in the guest, which discards their blocks; or attach the disk with an \
             overflow file, which loses its writes"
                .into()
        }
    };
    Some(DiskVerdict::new(Cause::Full, sentence).at(Stage::Device).next(step))
}

/// Returns a sentence if the overlay will soon be full.
pub(super) fn warning(facts: &DiskFacts<'_>) -> Option<String> {
    let overlay = facts.disk.overlay.as_ref().filter(|overlay| !overlay.is_full)?;
    let soon = overlay.full_in_seconds.filter(|seconds| *seconds < SOON_SECONDS)?;
    let soon = duration(soon as f64);
    Some(format!("Its overlay is full in {soon} at the present rate: {}.", fill(overlay)))
}

/// Describes how full an overlay is.
fn fill(overlay: &OverlayStats) -> String {
    let ram =
        format!("{} of {} in memory", bytes(overlay.ram_used_bytes), bytes(overlay.ram_bytes));
    if !overlay.has_overflow {
        return ram;
    }
    let limit = overlay.overflow_limit_bytes;
    let limit = limit.map_or_else(String::new, |limit| format!(" of at most {}", bytes(limit)));
    format!("{ram}, {}{limit} in the overflow file", bytes(overlay.overflow_used_bytes))
}

impl OverlayStats {
    /// Returns sentences on fill, reads and forecast.
    pub fn summary(&self) -> String {
        let forecast = match self.full_in_seconds {
            Some(seconds) => format!("; full in {} at the present rate", duration(seconds as f64)),
            None => String::new(),
        };
        format!(
            "Its overlay has {}{forecast}. Reads: {} from memory, {} from the overflow file, {} from \
             the base. {} writes have waited for memory.",
            fill(self),
            self.hits,
            self.overflow_reads,
            self.base_reads,
            self.waits
        )
    }
}
