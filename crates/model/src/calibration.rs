//! Wire types of a storage's measurement: parameters and results of `storage.calibrate`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::{SpecError, parse_size, refuse};

/// Time of the loads of a whole matrix unless its caller says otherwise, in seconds.
pub const DEFAULT_CALIBRATE_S: u16 = 100;
/// Time of the loads of a short measurement unless its caller says otherwise, in seconds.
pub const DEFAULT_SHORT_S: u16 = 10;
/// Shortest and longest time of the loads in seconds.
pub const CALIBRATE_S: std::ops::RangeInclusive<u16> = 2..=600;
/// Nanoseconds of a second.
const NS: u64 = 1_000_000_000;
/// Name of the file with the [`StorageProfile`] of a folder's storage, in that folder.
pub const PROFILE_FILE: &str = ".ringway-profile";
/// Version of [`StorageProfile`].
pub const PROFILE_VERSION: u32 = 1;

/// Parameters of `storage.calibrate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibrate {
    /// Absolute path of a folder, where a scratch file is written, or of a block device.
    pub path: PathBuf,
    /// Whether a block device is written to, which destroys its content.
    #[serde(default)]
    pub write: bool,
    /// Whether only the cells that a profile needs are measured.
    #[serde(default)]
    pub short: bool,
    /// Bytes of the scratch file; by default 1 GiB, and a quarter of the free space at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Whether the profile is stored in the folder, and used by attached disks at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub store: bool,
    /// Time of the loads in seconds, 2 to 600; by default 100, or 10 for a short measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u16>,
}

impl Calibrate {
    /// Creates the measurement of a whole matrix, which writes to no block device.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let (size_bytes, seconds) = (None, None);
        Self { path: path.into(), write: false, short: false, size_bytes, store: false, seconds }
    }

    /// Returns the time of the loads in seconds.
    pub fn load_seconds(&self) -> u16 {
        let usual = if self.short { DEFAULT_SHORT_S } else { DEFAULT_CALIBRATE_S };
        self.seconds.unwrap_or(usual)
    }

    /// Checks the fields without accessing the host.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), SpecError> {
        ProfileQuery { path: self.path.clone() }.validate()?;
        if self.store && self.write {
            return refuse("store", "needs a folder, and only a block device is written to");
        }
        let seconds = self.load_seconds();
        if !CALIBRATE_S.contains(&seconds) {
            let (least, most) = CALIBRATE_S.into_inner();
            return refuse("seconds", format!("{seconds} is not in {least} to {most}"));
        }
        Ok(())
    }
}

/// Result of `storage.calibrate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    /// Path that was measured.
    pub path: PathBuf,
    /// Bytes of the scratch file that was written and removed; 0 for a block device.
    pub scratch_bytes: u64,
    /// Share of the time in which others used the device, in percent. `None` if the kernel does not
    /// count its requests.
    pub others_percent: Option<u8>,
    /// Measured cells.
    pub cells: Vec<CellReport>,
    /// Profile of the storage, fitted to the cells.
    pub profile: StorageProfile,
    /// Use of the profile. `None` unless it was to be stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<ProfileReply>,
}

/// Parameters of `storage.profile`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileQuery {
    /// Absolute path of a folder.
    pub path: PathBuf,
}

impl ProfileQuery {
    /// Checks the path without accessing the host.
    ///
    /// # Errors
    /// The path is not absolute.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.path.is_absolute() { Ok(()) } else { refuse("path", "must be absolute") }
    }
}

/// Reply to `storage.profile`: the profile in a folder, which attached disks use from the call on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileReply {
    /// The profile. `None` if there is none, or if it cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<StorageProfile>,
    /// Ids of the disks that use it.
    #[serde(default)]
    pub disks: Vec<String>,
    /// Reasons why the profile or a disk does not, with remedies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Throughput of requests of one size, a number of them at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellReport {
    /// True for writes, false for reads.
    pub write: bool,
    /// Bytes of a request.
    pub bytes: u32,
    /// Number of requests at a time.
    pub depth: u32,
    /// Throughput.
    pub bytes_per_second: u64,
    /// Median time of a request, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile of the time of a request, in nanoseconds.
    pub p99_ns: u64,
}

/// Properties of a storage, from which the scheduler computes what a request costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageProfile {
    /// Version of the format: [`PROFILE_VERSION`].
    pub version: u32,
    /// Device that was measured.
    pub device: StorageDevice,
    /// Cost of reads.
    pub reads: RequestCost,
    /// Cost of writes; that of reads if writes were not measured.
    pub writes: RequestCost,
    /// Smallest device time of requests in flight that gives 95% of the best throughput, in
    /// nanoseconds.
    pub knee_ns: u64,
    /// Number of large requests at a time that gives 95% of the best throughput.
    pub requests_min: u32,
    /// Median time of a 4 KiB read, or of the smallest possible one, alone, in nanoseconds.
    pub latency_ns: u64,
    /// Size in bytes into which large requests are split while few are in flight, if that pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece_bytes: Option<u32>,
    /// Throughput of a large request in pieces over the whole one, in percent more.
    #[serde(default)]
    pub piece_gain_percent: u32,
    /// True if a random place takes longer than the next one, as on a spindle.
    pub seeks: bool,
}

/// Cost of a request: device time when the device is at its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestCost {
    /// Nanoseconds for each request.
    pub request_ns: u64,
    /// Nanoseconds for each MiB.
    pub mib_ns: u64,
}

impl RequestCost {
    /// Returns the device time of a request in nanoseconds.
    pub fn of(self, bytes: u64) -> u64 {
        let of_bytes = (u128::from(self.mib_ns) * u128::from(bytes)) >> 20;
        self.request_ns.saturating_add(u64::try_from(of_bytes).unwrap_or(u64::MAX))
    }
}

impl StorageProfile {
    /// Returns the summary: names and values of the knee and of the limits.
    pub fn summary(&self) -> [(&'static str, u64); 5] {
        let requests = |cost: RequestCost| NS / cost.of(4 << 10).max(1);
        let bytes = |cost: RequestCost| (NS << 20) / cost.of(1 << 20).max(1);
        [
            ("profile-knee-us", self.knee_ns / 1000),
            ("profile-read-iops", requests(self.reads)),
            ("profile-read-bytes-per-second", bytes(self.reads)),
            ("profile-write-iops", requests(self.writes)),
            ("profile-write-bytes-per-second", bytes(self.writes)),
        ]
    }

    /// Returns how many machines with this load the storage serves before it is at its limit.
    pub fn machines(&self, load: &MachineLoad) -> u64 {
        let (read, write) = (self.reads.of(load.bytes), self.writes.of(load.bytes));
        let ns =
            u128::from(load.reads) * u128::from(read) + u128::from(load.writes) * u128::from(write);
        u64::try_from(u128::from(NS) / ns.max(1)).unwrap_or(u64::MAX)
    }
}

/// Load of one machine on its storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineLoad {
    /// Reads a second.
    pub reads: u32,
    /// Writes a second.
    pub writes: u32,
    /// Bytes of a request.
    pub bytes: u64,
}

impl MachineLoad {
    /// Returns loads of usual machines with their names: a desktop, a builder, a backup.
    pub fn usual() -> [(&'static str, Self); 3] {
        [
            ("a desktop", Self { reads: 10, writes: 20, bytes: 8 << 10 }),
            ("a builder", Self { reads: 200, writes: 200, bytes: 32 << 10 }),
            ("a backup", Self { reads: 64, writes: 0, bytes: 1 << 20 }),
        ]
    }
}

impl std::fmt::Display for MachineLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { reads, writes, bytes } = self;
        write!(f, "{reads} reads and {writes} writes a second of {bytes} bytes")
    }
}

impl std::str::FromStr for MachineLoad {
    type Err = SpecError;

    /// Parses `reads=N,writes=N,size=SIZE`.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut load = Self { bytes: 4096, ..Self::default() };
        for part in text.split(',') {
            let number = |value: &str| {
                value
                    .parse()
                    .or_else(|_| refuse("machine", format!("{value:?} is not a whole number")))
            };
            match part.split_once('=') {
                Some(("reads", value)) => load.reads = number(value)?,
                Some(("writes", value)) => load.writes = number(value)?,
                Some(("size", value)) => load.bytes = parse_size(value)?,
                _ => {
                    let problem = format!("{part:?} is not reads=N, writes=N or size=SIZE");
                    return refuse("machine", problem);
                }
            }
        }
        if load.reads == 0 && load.writes == 0 {
            return refuse("machine", "has neither reads nor writes");
        }
        Ok(load)
    }
}

/// Identity of a storage device, as the kernel tells it. Empty for storage without a block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageDevice {
    /// Kernel's name, for example `nvme0n1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Whether the kernel takes it for a spindle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// The kernel's I/O scheduler of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
}

/// Progress of a running measurement, in the reply to `storage.progress`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibrateProgress {
    /// Path that is measured.
    pub path: PathBuf,
    /// Number of cells that are done.
    pub done_cells: u32,
    /// Number of all cells; 0 while the scratch file is written.
    pub total_cells: u32,
    /// Time until the end in seconds, as far as is known.
    pub left_s: u32,
}

/// Reply to `storage.progress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibrateProgressReply {
    /// Running measurements.
    pub calibrating: Vec<CalibrateProgress>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_costs_its_share_of_the_device() {
        let cost = RequestCost { request_ns: 2_000, mib_ns: 500_000 };
        assert_eq!((cost.of(0), cost.of(1 << 20), cost.of(4 << 10)), (2_000, 502_000, 3_953));
        assert_eq!(RequestCost { request_ns: 1, mib_ns: u64::MAX }.of(u64::MAX), u64::MAX);
    }

    #[test]
    fn machines_fit_as_long_as_their_requests_do() {
        let profile = StorageProfile {
            version: PROFILE_VERSION,
            device: StorageDevice::default(),
            reads: RequestCost { request_ns: 10_000, mib_ns: 0 },
            writes: RequestCost { request_ns: 20_000, mib_ns: 0 },
            knee_ns: 100_000,
            requests_min: 2,
            latency_ns: 80_000,
            piece_bytes: None,
            piece_gain_percent: 0,
            seeks: false,
        };
        let load: MachineLoad = "reads=50,writes=25,size=8K".parse().unwrap();
        assert_eq!((load.bytes, profile.machines(&load)), (8192, 1000));
        let limits = profile.summary().map(|(_, value)| value);
        assert_eq!(limits, [100, 100_000, 104_857_600_000, 50_000, 52_428_800_000]);
        for (text, told) in [
            ("reads=0", "neither"),
            ("reads=x", "whole number"),
            ("read=1", "is not reads=N"),
            ("reads=1,size=x", "x"),
        ] {
            let error = text.parse::<MachineLoad>().unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
    }

    #[test]
    fn parameters_have_defaults_and_limits() {
        let parse = |text| serde_json::from_str::<Calibrate>(text).unwrap();
        let plain = parse(r#"{"path":"/srv"}"#);
        assert_eq!((&plain, plain.load_seconds()), (&Calibrate::new("/srv"), 100));
        assert_eq!(plain.validate(), Ok(()));
        assert_eq!(parse(r#"{"path":"/srv","short":true}"#).load_seconds(), 10);
        for (text, field) in [
            (r#"{"path":"srv"}"#, "path"),
            (r#"{"path":"/srv","write":true,"store":true}"#, "store"),
            (r#"{"path":"/srv","seconds":1}"#, "seconds"),
            (r#"{"path":"/srv","seconds":601}"#, "seconds"),
        ] {
            assert_eq!(parse(text).validate().unwrap_err().field, field);
        }
    }
}
