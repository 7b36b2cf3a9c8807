//! Use of a device by others, from the kernel's counters.

use std::path::PathBuf;

use rustix::fs::{Dev, major, minor};

/// Requests of a whole device since the host started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceCounts {
    /// Number of reads, writes and discards that the device has completed.
    pub(crate) requests: u64,
    /// Number of requests in flight.
    pub(crate) in_flight: u64,
}

impl DeviceCounts {
    /// Reads the counts of the device with this number. `None` for storage without a block device,
    /// for example on the network.
    pub(crate) fn read(device: Dev) -> Option<Self> {
        let path =
            PathBuf::from(format!("/sys/dev/block/{}:{}/stat", major(device), minor(device)));
        Self::parse(&std::fs::read_to_string(path).ok()?)
    }

    /// Parses a `stat` file (Linux, Documentation/block/stat.rst).
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<u64> =
            text.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let field = |at: usize| fields.get(at).copied();
        // Kernels before 4.18 count no discards.
        let requests = field(0)? + field(4)? + field(11).unwrap_or(0);
        Some(Self { requests, in_flight: field(8)? })
    }

    /// Returns whether requests came or were in flight between two reads, during which the caller
    /// had none.
    pub(crate) fn is_used_until(self, later: Self) -> bool {
        later.in_flight > 0 || later.requests > self.requests + STRAY
    }
}

/// Requests that do not count as use: a file system writes its journal now and then.
const STRAY: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_a_device_tell_its_use() {
        let text = "  100 0 800 30 50 0 400 20 0 60 50 7 0 0 0 0 0\n";
        let counts = DeviceCounts::parse(text).unwrap();
        assert_eq!(counts, DeviceCounts { requests: 157, in_flight: 0 });
        assert_eq!(DeviceCounts::parse("1 2 3"), None);
        assert_eq!(DeviceCounts::parse("1 0 1 1 1 0 1 1 2 1 1").unwrap().requests, 2);
        let later = |requests, in_flight| DeviceCounts { requests, in_flight };
        assert!(!counts.is_used_until(later(160, 0)));
        assert!(counts.is_used_until(later(170, 0)) && counts.is_used_until(later(157, 1)));
    }
}
