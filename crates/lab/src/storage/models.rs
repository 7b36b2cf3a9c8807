//! Models of devices, as `disk.attach` has them.

use serde_json::{Value, json};

/// Size of a disk on a model, in bytes. Only what is written takes memory.
pub(super) const MODEL_DISK_BYTES: u64 = 1 << 30;

/// Model of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Model {
    /// Array of 820 MB/s; one reader of 4 MiB at a time gets 580 MB/s.
    Array,
    /// The array, with 50 us for each request: 20,000 requests a second at most.
    SlowArray,
    /// Striped flash of 256 MB/s, half of it for one request. A device that is eight times as fast needs
    /// more CPU time than small hosts have.
    Striped,
    /// Flash of 256 MB/s, whose requests are on one channel each.
    Unstriped,
    /// Disk that spins.
    Spindle,
}

impl Model {
    /// Returns the device.
    fn device(self) -> Value {
        match self {
            Self::Array => json!({"pipe": {}}),
            Self::SlowArray => json!({"pipe": {"request_ns": 50_000}}),
            Self::Striped => json!({"flash": {"bytes_per_second": 8_000_000,
                "request_bytes_per_second": 128_000_000}}),
            Self::Unstriped => json!({"flash": {"channels": 4, "bytes_per_second": 64_000_000,
                "request_bytes_per_second": 128_000_000, "stripe": 64 << 20}}),
            Self::Spindle => json!({"spindle": {}}),
        }
    }

    /// Returns the backend of a disk on the model. `profile` is whether its disks share it.
    pub(super) fn backend(self, profile: bool) -> Value {
        json!({"model": {"name": "storage", "size": MODEL_DISK_BYTES, "device": self.device(),
                         "profile": profile}})
    }

    /// Returns the most bytes a second of requests of this size.
    pub(super) fn limit(self, bytes: usize) -> f64 {
        let request_s = if self == Self::SlowArray { 50e-6 } else { 2e-6 };
        bytes as f64 / (request_s + bytes as f64 / 820e6)
    }
}
