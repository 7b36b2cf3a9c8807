//! Disk on the model of a storage device, for tests and measurements.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{SpecError, refuse, validate_id};

/// Most bytes of a disk on a model: they are memory of the process.
pub const MAX_MODEL_DISK_BYTES: u64 = 64 << 30;
/// Most changes of speed.
const MAX_SPEEDS: usize = 64;

/// Range of rates, in bytes a second.
const RATES: RangeInclusive<u64> = 1_000_000..=1_000_000_000_000;
/// Range of times, in nanoseconds.
const TIMES: RangeInclusive<u64> = 0..=10_000_000_000;
/// Range of numbers of queue places, connections and channels.
const COUNTS: RangeInclusive<u64> = 1..=1024;

/// Disk in memory whose requests take as long as on the model of a storage device. Disks of one
/// process whose models have one name are on one device.
///
/// It is for tests and measurements, never for data: the bytes last as long as those of
/// `{"memory":BYTES}`, that is through a crash and an upgrade. The device is idle then, and its speeds
/// begin anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelDisk {
    /// Name of the device, as a disk's id.
    pub name: String,
    /// Size of the disk in bytes, at most [`MAX_MODEL_DISK_BYTES`].
    pub size: u64,
    /// The device.
    pub device: DeviceModel,
    /// Speeds of the device over time, in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub speeds: Vec<DeviceSpeed>,
    /// True if the device has a profile, so that its disks share it by their weights.
    #[serde(default = "yes")]
    pub profile: bool,
}

fn yes() -> bool {
    true
}

/// Model of a storage device. A number that is absent is that of the default device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceModel {
    /// Array or network storage; an array of 820 MB/s by default.
    Pipe(PipeModel),
    /// Flash; striped flash of 2 GB/s by default.
    Flash(FlashModel),
    /// Disk that spins; one of 1 TB and 7,200 rotations a minute by default.
    Spindle(SpindleModel),
}

/// Speed of a device from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpeed {
    /// Time since the first request, in milliseconds.
    pub from_ms: u64,
    /// Speed in percent, 1 to 1000.
    pub percent: u64,
}

/// Array or network storage: one pipe behind connections and a latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PipeModel {
    /// Bytes a second of the pipe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// Time of a request in the pipe besides its data, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_ns: Option<u64>,
    /// Latency in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<u64>,
    /// Requests that it runs at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// Connections, which requests use in turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Bytes a second of a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_bytes_per_second: Option<u64>,
}

/// Flash: channels that work side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlashModel {
    /// Number of channels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u64>,
    /// Bytes a second that a channel reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// Latency in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<u64>,
    /// Bytes after which the next channel follows, at least 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stripe: Option<u64>,
    /// Bytes a second of one request at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_bytes_per_second: Option<u64>,
    /// Time of a write in percent of a read's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_percent: Option<u64>,
    /// Interval at which each channel stalls, in nanoseconds; 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_every_ns: Option<u64>,
    /// Length of a stall in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_ns: Option<u64>,
}

/// Disk that spins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpindleModel {
    /// Bytes a second of a sequential transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// Size of the device in bytes, over which the longest seek goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Shortest seek in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seek_min_ns: Option<u64>,
    /// Longest seek in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seek_max_ns: Option<u64>,
    /// Half a rotation in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation_ns: Option<u64>,
}

impl ModelDisk {
    /// Checks that every number is in its range. The size is checked with that of all backends.
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        if let Err(SpecError { problem, .. }) = validate_id(&self.name) {
            return refuse("backend", format!("the name of the model {problem}"));
        }
        check("size", self.size, 1..=MAX_MODEL_DISK_BYTES)?;
        if self.speeds.len() > MAX_SPEEDS {
            let problem = format!("{} speeds, at most {MAX_SPEEDS} can be", self.speeds.len());
            return refuse("backend", problem);
        }
        let mut last = 0;
        for speed in &self.speeds {
            check("speeds.percent", speed.percent, 1..=1000)?;
            // A day.
            check("speeds.from_ms", speed.from_ms, last..=86_400_000)?;
            last = speed.from_ms;
        }
        self.device.numbers().into_iter().try_for_each(|(name, value, range)| {
            value.map_or(Ok(()), |value| check(name, value, range))
        })
    }
}

impl DeviceModel {
    /// Returns the numbers with their ranges.
    fn numbers(&self) -> Vec<(&'static str, Option<u64>, RangeInclusive<u64>)> {
        match self {
            Self::Pipe(pipe) => vec![
                ("bytes_per_second", pipe.bytes_per_second, RATES),
                ("request_ns", pipe.request_ns, TIMES),
                ("latency_ns", pipe.latency_ns, TIMES),
                ("queue", pipe.queue, COUNTS),
                ("connections", pipe.connections, COUNTS),
                ("connection_bytes_per_second", pipe.connection_bytes_per_second, RATES),
            ],
            Self::Flash(flash) => vec![
                ("channels", flash.channels, COUNTS),
                ("bytes_per_second", flash.bytes_per_second, RATES),
                ("latency_ns", flash.latency_ns, TIMES),
                ("stripe", flash.stripe, 4096..=1 << 40),
                ("request_bytes_per_second", flash.request_bytes_per_second, RATES),
                ("write_percent", flash.write_percent, 1..=10_000),
                ("stall_every_ns", flash.stall_every_ns, TIMES),
                ("stall_ns", flash.stall_ns, TIMES),
            ],
            Self::Spindle(spindle) => vec![
                ("bytes_per_second", spindle.bytes_per_second, RATES),
                ("size", spindle.size, 1..=1 << 50),
                ("seek_min_ns", spindle.seek_min_ns, TIMES),
                ("seek_max_ns", spindle.seek_max_ns, TIMES),
                ("rotation_ns", spindle.rotation_ns, TIMES),
            ],
        }
    }
}

fn check(name: &str, value: u64, range: RangeInclusive<u64>) -> Result<(), SpecError> {
    if range.contains(&value) {
        return Ok(());
    }
    let (low, high) = range.into_inner();
    refuse("backend", format!("{name} of the model, {value}, is not in {low} to {high}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(wire: Value) -> Result<ModelDisk, String> {
        let disk: ModelDisk = serde_json::from_value(wire).map_err(|error| error.to_string())?;
        disk.validate().map(|()| disk).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_that_are_absent_stay_so() {
        let wire = json!({"name": "array", "size": 4096, "device": {"pipe": {"queue": 4}},
                          "profile": false});
        let disk = parse(wire.clone()).unwrap();
        assert_eq!((disk.profile, &disk.speeds[..]), (false, &[][..]));
        assert_eq!(serde_json::to_value(&disk).unwrap(), wire);
        for device in ["pipe", "flash", "spindle"] {
            parse(json!({"name": "a", "size": 512, "device": {device: {}}})).unwrap();
        }
    }

    #[test]
    fn a_model_that_cannot_be_is_refused_with_the_reason() {
        let with = |name: &str, value: Value| {
            let mut wire = json!({"name": "a", "size": 512, "device": {"flash": {}}});
            wire[name] = value;
            parse(wire).unwrap_err()
        };
        for (name, value, reason) in [
            ("name", json!("a/b"), "the name of the model"),
            ("size", json!(MAX_MODEL_DISK_BYTES + 1), "size of the model"),
            ("size", json!(0), "size of the model, 0, is not in 1 to"),
            ("sise", json!(1), "unknown field `sise`"),
            ("device", json!({"tape": {}}), "unknown variant `tape`"),
            ("device", json!({"flash": {"queue": 1}}), "unknown field `queue`"),
            ("device", json!({"flash": {"channels": 0}}), "channels of the model, 0"),
            ("device", json!({"flash": {"stripe": 1}}), "stripe of the model, 1,"),
            ("device", json!({"pipe": {"bytes_per_second": 1}}), "is not in 1000000 to"),
            ("device", json!({"spindle": {"rotation_ns": u64::MAX}}), "rotation_ns of the model"),
            ("speeds", json!([{"from_ms": 0, "percent": 0}]), "speeds.percent of the model, 0"),
            (
                "speeds",
                json!([{"from_ms": 5, "percent": 1}, {"from_ms": 4, "percent": 1}]),
                "speeds.from_ms of the model, 4, is not in 5 to",
            ),
            ("speeds", json!(vec![json!({"from_ms": 0, "percent": 1}); 65]), "65 speeds"),
        ] {
            let error = with(name, value);
            assert!(error.contains(reason), "{error} lacks {reason}");
        }
    }
}
