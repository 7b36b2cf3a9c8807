//! Share of a disk in its storage, when other disks want it at the same time.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::caps::{MAX_BYTES_PER_SECOND, MAX_IOPS};
use crate::diagnosis::bytes;
use crate::spec::{SpecError, refuse};

/// Range of a disk's weight.
pub const WEIGHTS: RangeInclusive<u16> = 1..=1000;
/// Weight of a disk whose weight nobody set.
pub const DEFAULT_WEIGHT: u16 = 100;

/// Share of a disk in its storage. Disks that want the storage at the same time get device time by
/// their weights. A disk with a floor gets that many requests or bytes a second first.
///
/// It has an effect on storage with a profile (`ringway calibrate --store`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskShare {
    /// Weight, 1 to 1000.
    #[serde(default = "default_weight")]
    pub weight: u16,
    /// Requests a second that the disk gets at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_iops: Option<u64>,
    /// Bytes a second that the disk gets at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_bytes: Option<u64>,
}

fn default_weight() -> u16 {
    DEFAULT_WEIGHT
}

impl Default for DiskShare {
    fn default() -> Self {
        Self { weight: DEFAULT_WEIGHT, floor_iops: None, floor_bytes: None }
    }
}

impl DiskShare {
    /// Checks that every number is in its range.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), SpecError> {
        if !WEIGHTS.contains(&self.weight) {
            let (least, most) = WEIGHTS.into_inner();
            return refuse("share.weight", format!("{} is not in {least} to {most}", self.weight));
        }
        floor("share.floor_iops", self.floor_iops, MAX_IOPS)?;
        floor("share.floor_bytes", self.floor_bytes, MAX_BYTES_PER_SECOND)
    }
}

impl fmt::Display for DiskShare {
    /// Formats the share as `weight 100 and a floor of 50 requests and 1 MiB a second`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {}", self.weight)?;
        let iops = self.floor_iops.map(|count| format!("{count} requests"));
        let floors: Vec<_> = iops.into_iter().chain(self.floor_bytes.map(bytes)).collect();
        if floors.is_empty() {
            return Ok(());
        }
        write!(f, " and a floor of {} a second", floors.join(" and "))
    }
}

fn floor(field: &'static str, floor: Option<u64>, most: u64) -> Result<(), SpecError> {
    match floor {
        Some(floor) if !(1..=most).contains(&floor) => {
            refuse(field, format!("{floor} is not in 1 to {most}; leave it out for no floor"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_defaults_and_limits() {
        let parse = |text| serde_json::from_str::<DiskShare>(text).unwrap();
        assert_eq!(parse("{}"), DiskShare::default());
        let whole = parse(r#"{"weight":400,"floor_iops":10,"floor_bytes":4096}"#);
        assert_eq!((whole.weight, whole.validate()), (400, Ok(())));
        for (text, field) in [
            (r#"{"weight":0}"#, "share.weight"),
            (r#"{"weight":1001}"#, "share.weight"),
            (r#"{"floor_iops":0}"#, "share.floor_iops"),
            (r#"{"floor_bytes":2000000000000}"#, "share.floor_bytes"),
        ] {
            assert_eq!(parse(text).validate().unwrap_err().field, field);
        }
    }
}
