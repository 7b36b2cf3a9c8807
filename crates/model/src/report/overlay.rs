//! Report of the overlay of a disk.

use serde::{Deserialize, Serialize};

use crate::id::Uuid;
use crate::vbd::WRITE_CACHE_OVERFLOW;

/// Volatile write layer of a disk. Counts are since the process opened the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverlayStats {
    /// Memory for written blocks, in bytes.
    pub ram_bytes: u64,
    /// Bytes of it that have written blocks, or will have them soon.
    pub ram_used_bytes: u64,
    /// Whether there is an overflow file.
    pub has_overflow: bool,
    /// Bytes of written blocks in the overflow file.
    pub overflow_used_bytes: u64,
    /// Most bytes that the overflow file can have, with the room of its storage. Absent without one, or
    /// while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow_limit_bytes: Option<u64>,
    /// Most bytes of the overflow file that the disk allows. Absent if it does not limit them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overflow_size_bytes: Option<u64>,
    /// Most bytes of a file that the kernel lets the process write (RLIMIT_FSIZE). Absent if it does not
    /// limit them, or the overflow is no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_limit_bytes: Option<u64>,
    /// Bytes of blocks that were moved to the overflow file.
    pub moved_bytes: u64,
    /// Reads that memory alone has answered.
    pub hits: u64,
    /// Reads of the overflow file. A request may need several.
    pub overflow_reads: u64,
    /// Reads of the base.
    pub base_reads: u64,
    /// Bytes a second by which the written blocks grow now. Absent at first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// Seconds until memory and overflow file are full at this rate. Absent if they do not grow, or the
    /// room is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_in_seconds: Option<u64>,
    /// Writes that waited for memory.
    pub waits: u64,
    /// Bytes of the writes that wait for memory now.
    pub waiting_bytes: u64,
    /// Writes to the overflow file that failed. Their blocks stayed in memory.
    pub overflow_errors: u64,
    /// Whether memory and overflow file are full, so that writes wait.
    pub is_full: bool,
}

impl OverlayStats {
    /// Returns the bytes of all written blocks.
    pub fn used_bytes(&self) -> u64 {
        self.ram_used_bytes.saturating_add(self.overflow_used_bytes)
    }

    /// Returns the bytes that can still be written. `None` if that is not known.
    pub fn room_bytes(&self) -> Option<u64> {
        let overflow = match self.has_overflow {
            true => self.overflow_limit_bytes?.saturating_sub(self.overflow_used_bytes),
            false => 0,
        };
        Some(self.ram_bytes.saturating_sub(self.ram_used_bytes).saturating_add(overflow))
    }

    /// Returns what makes room for the overflow file of the full overlay of this disk. `None` without
    /// such a file. A disk that has a UUID is that of a VBD.
    pub fn room_step(&self, disk: &str) -> Option<String> {
        if !self.has_overflow {
            return None;
        }
        let is_vbd = disk.parse::<Uuid>().is_ok();
        let step = if self.is_at(self.overflow_size_bytes) && is_vbd {
            return Some(format!(
                "raise the limit of its overflow file with xe vbd-param-set uuid={disk} \
                 other-config:{WRITE_CACHE_OVERFLOW}=BYTES"
            ));
        } else if self.is_at(self.overflow_size_bytes) {
            "raise overflow_size with disk.replace"
        } else if self.is_at(self.file_limit_bytes) {
            "raise the limit of file sizes of the process that serves the disk (prlimit --fsize, or \
             LimitFSIZE= of its unit)"
        } else {
            "make room for the overflow file in its file system, or enlarge its block device"
        };
        Some(step.into())
    }

    /// Returns whether the overflow file is as large as a limit in bytes: more room would not help.
    fn is_at(&self, limit: Option<u64>) -> bool {
        // A place is 4 KiB, and the first one is the header.
        limit.is_some_and(|size| self.overflow_used_bytes + 2 * 4096 > size)
    }

    /// Sets [`Self::full_in_seconds`] from the other values.
    #[must_use]
    pub fn with_forecast(self) -> Self {
        let rate = self.bytes_per_second.filter(|rate| *rate > 0);
        let full_in_seconds = self.room_bytes().zip(rate).map(|(room, rate)| room / rate);
        Self { full_in_seconds, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forecast_is_the_room_at_the_present_rate() {
        let forecast = |stats: OverlayStats| stats.with_forecast().full_in_seconds;
        let ram = OverlayStats { ram_bytes: 1000, ram_used_bytes: 400, ..OverlayStats::default() };
        assert_eq!(forecast(ram.clone()), None, "no rate yet");
        let growing = OverlayStats { bytes_per_second: Some(10), ..ram.clone() };
        assert_eq!(forecast(growing.clone()), Some(60));
        assert_eq!(forecast(OverlayStats { bytes_per_second: Some(0), ..ram }), None);
        let both = OverlayStats { has_overflow: true, ..growing };
        assert_eq!(forecast(both.clone()), None, "the room is not known");
        let known =
            OverlayStats { overflow_limit_bytes: Some(2000), overflow_used_bytes: 1900, ..both };
        assert_eq!((known.used_bytes(), known.room_bytes()), (2300, Some(700)));
        assert_eq!(forecast(known.clone()), Some(70));
    }

    #[test]
    fn what_makes_room_depends_on_what_is_full() {
        let full = OverlayStats { overflow_used_bytes: 1900, ..OverlayStats::default() };
        assert_eq!(full.room_step("d"), None);
        let full = OverlayStats { has_overflow: true, ..full };
        let says = |full: &OverlayStats, part| {
            assert!(
                full.room_step("d").is_some_and(|step| step.contains(part)),
                "{part}: {full:?}"
            );
        };
        let far = OverlayStats {
            overflow_size_bytes: Some(1 << 20),
            file_limit_bytes: Some(1 << 20),
            ..full
        };
        says(&far, "make room for the overflow file");
        let process = OverlayStats { file_limit_bytes: Some(8000), ..far };
        says(&process, "prlimit --fsize");
        // Without more of it, more of the other would not help.
        let limited = OverlayStats { overflow_size_bytes: Some(8000), ..process };
        says(&limited, "raise overflow_size");
        let vbd = "6d2c3b1e-0c4b-4f5a-9f0e-1a2b3c4d5e6f";
        let says = limited.room_step(vbd).unwrap();
        let expected = format!("uuid={vbd} other-config:write-cache-overflow=BYTES");
        assert!(says.contains(&expected), "{says}");
    }
}
