//! Caps of a disk: limits of requests and bytes a second.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::spec::SpecError;

/// Highest cap of requests a second. No storage does more, so a larger number is a mistake. A
/// process could not count more in its lifetime.
pub const MAX_IOPS: u64 = 1 << 32;
/// Highest cap of bytes a second, for the same reasons: 1 TiB.
pub const MAX_BYTES_PER_SECOND: u64 = 1 << 40;
/// Lowest cap of bytes a second. Below it, the largest request of a guest would wait for minutes,
/// and the guest would seem to hang. Pause the disk instead.
pub const MIN_BYTES_PER_SECOND: u64 = 4096;
/// Longest burst in seconds: a day.
pub const MAX_BURST_SECONDS: u32 = 86_400;

/// Caps of one disk, over all its queues. An absent value means no cap.
///
/// A cap slows a guest and never stops it. A request larger than the remaining tokens passes, and
/// later requests wait. Reads and writes count as a request and by their bytes. Discards and
/// write-zeroes count as a request. A flush is never delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caps {
    /// Requests a second in the long run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Requests a second in a burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_burst: Option<u64>,
    /// Bytes a second in the long run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// Bytes a second in a burst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_burst: Option<u64>,
    /// Seconds that a full burst lasts. It refills while the disk does less than its cap.
    #[serde(default = "one")]
    pub burst_seconds: u32,
}

fn one() -> u32 {
    1
}

impl Default for Caps {
    fn default() -> Self {
        let (iops, iops_burst, bytes_per_second, bytes_burst) = (None, None, None, None);
        Self { iops, iops_burst, bytes_per_second, bytes_burst, burst_seconds: 1 }
    }
}

impl Caps {
    /// Returns whether there is no cap.
    pub fn is_none(&self) -> bool {
        self.iops.is_none() && self.bytes_per_second.is_none()
    }

    /// Checks that every rate is in its range.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), SpecError> {
        let (bytes, bytes_per_second) = (self.bytes_burst, self.bytes_per_second);
        let range = MIN_BYTES_PER_SECOND..=MAX_BYTES_PER_SECOND;
        rate("caps.iops", self.iops, 1..=MAX_IOPS)?;
        rate("caps.bytes_per_second", bytes_per_second, range)?;
        burst("caps.iops_burst", self.iops_burst, self.iops, "iops", MAX_IOPS)?;
        let of = "bytes_per_second";
        burst("caps.bytes_burst", bytes, bytes_per_second, of, MAX_BYTES_PER_SECOND)?;
        if !(1..=MAX_BURST_SECONDS).contains(&self.burst_seconds) {
            let problem = format!("{} is not in 1 to {MAX_BURST_SECONDS}", self.burst_seconds);
            return Err(SpecError { field: "caps.burst_seconds", problem });
        }
        Ok(())
    }
}

fn rate(
    field: &'static str,
    rate: Option<u64>,
    range: RangeInclusive<u64>,
) -> Result<(), SpecError> {
    let Some(rate) = rate.filter(|rate| !range.contains(rate)) else { return Ok(()) };
    let (least, most) = range.into_inner();
    let next = match rate {
        0 => "leave it out for no cap, or pause the disk to stop it",
        _ if rate < least => "a guest would look hung; pause the disk to stop it",
        _ => "leave it out for no cap",
    };
    let problem = format!("{rate} is not in {least} to {most}; {next}");
    Err(SpecError { field, problem })
}

fn burst(
    field: &'static str,
    burst: Option<u64>,
    cap: Option<u64>,
    of: &str,
    most: u64,
) -> Result<(), SpecError> {
    let refuse = |problem| Err(SpecError { field, problem });
    match (burst, cap) {
        (None, _) => Ok(()),
        (Some(_), None) => refuse(format!("a burst needs a cap; give {of} too")),
        (Some(burst), Some(cap)) if burst < cap => {
            refuse(format!("{burst} is less than {of}, which is {cap}"))
        }
        (Some(burst), Some(_)) => rate(field, Some(burst), 1..=most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Caps, String> {
        let caps: Caps = serde_json::from_str(text).map_err(|error| error.to_string())?;
        caps.validate().map_err(|error| error.to_string())?;
        Ok(caps)
    }

    #[test]
    fn the_wire_form() {
        let caps = parsed(r#"{"iops":500,"iops_burst":2000,"burst_seconds":30}"#).unwrap();
        let expected =
            Caps { iops: Some(500), iops_burst: Some(2000), burst_seconds: 30, ..Caps::default() };
        assert_eq!(caps, expected);
        assert_eq!(parsed("{}").unwrap(), Caps::default());
        assert!(Caps::default().is_none() && !expected.is_none());
        // The highest accepted values.
        parsed(
            r#"{"iops":4294967296,"iops_burst":4294967296,"bytes_per_second":1099511627776,
                "bytes_burst":1099511627776,"burst_seconds":86400}"#,
        )
        .unwrap();
        let text = serde_json::to_string(&expected).unwrap();
        assert_eq!(text, r#"{"iops":500,"iops_burst":2000,"burst_seconds":30}"#);
    }

    #[test]
    fn what_cannot_be_kept_is_refused_with_a_way_out() {
        for (text, says) in [
            (r#"{"iops":0}"#, "pause the disk"),
            (r#"{"bytes_per_second":0}"#, "pause the disk"),
            (r#"{"bytes_per_second":1}"#, "look hung"),
            (r#"{"iops":18446744073709551615}"#, "leave it out"),
            (r#"{"bytes_per_second":18446744073709551615}"#, "leave it out"),
            (r#"{"iops":4294967297}"#, "1 to 4294967296; leave it out"),
            (r#"{"bytes_per_second":1099511627777}"#, "4096 to 1099511627776; leave it out"),
            (r#"{"iops":10,"iops_burst":4294967297}"#, "not in"),
            (r#"{"bytes_per_second":4096,"bytes_burst":1099511627777}"#, "not in"),
            // 2^64 does not fit into a u64.
            (r#"{"iops":18446744073709551616}"#, "expected u64"),
            (r#"{"iops":-1}"#, "expected u64"),
            (r#"{"iops":1.5}"#, "expected u64"),
            (r#"{"iops_burst":10}"#, "give iops too"),
            (r#"{"iops":10,"iops_burst":9}"#, "less than iops"),
            (r#"{"iops":10,"iops_burst":18446744073709551615}"#, "not in"),
            (r#"{"bytes_per_second":4096,"bytes_burst":1}"#, "less than bytes_per_second"),
            (r#"{"iops":10,"burst_seconds":0}"#, "burst_seconds"),
            (r#"{"iops":10,"burst_seconds":4294967295}"#, "burst_seconds"),
            (r#"{"bps":10}"#, "unknown field"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
