//! Limits of an interface, from its record and the record of its network.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::caps::{MAX_BYTES_PER_SECOND, MIN_BYTES_PER_SECOND};
use crate::nic::{Locked, MAX_LOCKED, NicLimits, NicRate};
use crate::spec::{SpecError, refuse};
use crate::wire_names::named;

/// Bytes of a kilobyte, the unit of rates.
const KILOBYTE: u64 = 1024;
/// Name of the algorithm that limits a rate.
const RATELIMIT: &str = "ratelimit";
/// Key of `other_config` for the limit of flooded frames a second.
pub const FLOOD_LIMIT: &str = "flood-limit";
/// Parameters of the algorithm.
const RATELIMIT_KEYS: [&str; 2] = ["kbps", "timeslice_us"];
/// Field that has the parameters.
const PARAMS: &str = "qos_algorithm_params";

named! {
    /// Address lock of an interface.
    LockingMode {
        /// The default of its network.
        NetworkDefault = "network_default",
        /// The interface may send only from its allowed addresses.
        Locked = "locked",
        /// The interface may send from any address.
        Unlocked = "unlocked",
        /// The interface may neither send nor receive.
        Disabled = "disabled",
    }
}

/// Settings of an interface.
#[derive(Clone, Copy, Debug)]
pub struct VifSettings<'a> {
    /// Algorithm that limits its rate: `ratelimit`, or empty.
    pub algorithm: &'a str,
    /// Parameters of the algorithm: `kbps` in kilobytes a second, and `timeslice_us`, the time
    /// whose bytes may be sent at once.
    pub params: &'a BTreeMap<String, String>,
    /// Address lock.
    pub mode: LockingMode,
    /// Whether the network's default is to disable interfaces.
    pub network_default_disabled: bool,
    /// IPv4 addresses that it may use when it is locked.
    pub ipv4: &'a [String],
    /// IPv6 addresses that it may use when it is locked.
    pub ipv6: &'a [String],
    /// Limit of flooded frames a second, `0` for no limit. The default applies if it is absent or
    /// not a number.
    pub flood: Option<&'a str>,
    /// Number of queue pairs. The default applies if it is absent or out of range.
    pub queues: Option<&'a str>,
}

/// Returns the limits. As in XenServer, an invalid rate means no limit, and an invalid address is
/// not allowed.
pub fn limits(vif_settings: &VifSettings<'_>) -> NicLimits {
    let rate = rate(vif_settings.algorithm, vif_settings.params).unwrap_or_default();
    let flood = flood(vif_settings.flood).unwrap_or_default();
    let open = NicLimits { rate, flood, ..NicLimits::default() };
    let (ipv4, ipv6) = (addresses(vif_settings.ipv4), addresses(vif_settings.ipv6));
    match vif_settings.mode {
        LockingMode::Disabled => NicLimits { disabled: true, ..open },
        LockingMode::NetworkDefault => {
            NicLimits { disabled: vif_settings.network_default_disabled, ..open }
        }
        LockingMode::Unlocked => open,
        LockingMode::Locked => NicLimits { locked: Some(Locked { ipv4, ipv6 }), ..open },
    }
}

/// Checks that all settings are valid.
///
/// # Errors
/// Fields `qos_algorithm_type`, `qos_algorithm_params`, `ipv4_allowed`, `ipv6_allowed` and
/// `other_config`: unknown, or out of range.
pub fn check_limits(vif_settings: &VifSettings<'_>) -> Result<(), SpecError> {
    rate(vif_settings.algorithm, vif_settings.params)?;
    known_keys(vif_settings.algorithm, vif_settings.params)?;
    flood(vif_settings.flood)?;
    if let Some(text) = vif_settings.queues
        && super::parse_queues(text).is_none()
    {
        let problem = format!("queues: {text:?} is not a number from 1 to {}", super::MAX_QUEUES);
        return refuse("other_config", problem);
    }
    all_addresses::<std::net::Ipv4Addr>("ipv4_allowed", vif_settings.ipv4)?;
    all_addresses::<std::net::Ipv6Addr>("ipv6_allowed", vif_settings.ipv6)
}

/// Refuses unknown parameters, because a misspelt one would set no limit. Without an algorithm no
/// parameter has a meaning, and clients may store what they like.
fn known_keys(algorithm: &str, params: &BTreeMap<String, String>) -> Result<(), SpecError> {
    let unknown = params.keys().find(|key| !RATELIMIT_KEYS.contains(&key.as_str()));
    match unknown.filter(|_| algorithm == RATELIMIT) {
        Some(key) => {
            let known = RATELIMIT_KEYS.join(", ");
            refuse(PARAMS, format!("{key:?} is not known; use {known}"))
        }
        None => Ok(()),
    }
}

fn flood(asked: Option<&str>) -> Result<Option<u32>, SpecError> {
    let parsed = asked.map(|text| text.parse().map_err(|_| text)).transpose();
    let problem = |text| format!("{FLOOD_LIMIT}: {text:?} is no number of frames a second");
    parsed.or_else(|text| refuse("other_config", problem(text)))
}

/// Returns the rate. Without `kbps` there is no limit yet, because clients set parameters singly.
fn rate(algorithm: &str, params: &BTreeMap<String, String>) -> Result<Option<NicRate>, SpecError> {
    match algorithm {
        "" => return Ok(None),
        RATELIMIT => {}
        _ => {
            let problem = format!("{algorithm:?} is not known; use {RATELIMIT} or nothing");
            return refuse("qos_algorithm_type", problem);
        }
    }
    let number = |key: &str| {
        let parsed = params.get(key).map(|text| text.parse::<u64>().map_err(|_| text));
        let problem = |text| format!("{key}: {text:?} is not a whole number");
        parsed.transpose().or_else(|text| refuse(PARAMS, problem(text)))
    };
    let (kilobytes, slice_us) = (number("kbps")?, number("timeslice_us")?);
    let Some(kilobytes) = kilobytes else { return Ok(None) };
    let bytes = kilobytes.saturating_mul(KILOBYTE);
    let range = MIN_BYTES_PER_SECOND..=MAX_BYTES_PER_SECOND;
    if !range.contains(&bytes) {
        let (least, most) = (range.start() / KILOBYTE, range.end() / KILOBYTE);
        return refuse(PARAMS, format!("kbps: {kilobytes} is not in {least} to {most}"));
    }
    let burst = |slice_us: u64| {
        let bytes = u128::from(bytes) * u128::from(slice_us) / 1_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).clamp(MIN_BYTES_PER_SECOND, MAX_BYTES_PER_SECOND)
    };
    let bytes_burst = slice_us.filter(|us| *us > 0).map(burst);
    Ok(Some(NicRate { bytes_per_second: bytes, bytes_burst }))
}

fn addresses<A: FromStr>(texts: &[String]) -> Vec<A> {
    texts.iter().filter_map(|text| text.parse().ok()).take(MAX_LOCKED).collect()
}

fn all_addresses<A: FromStr>(field: &'static str, texts: &[String]) -> Result<(), SpecError> {
    if texts.len() > MAX_LOCKED {
        return refuse(field, format!("{} addresses are more than {MAX_LOCKED}", texts.len()));
    }
    match texts.iter().find(|text| text.parse::<A>().is_err()) {
        Some(text) => refuse(field, format!("{text:?} is no such address")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|one| (*one).to_owned()).collect()
    }

    #[test]
    fn a_rate_is_in_kilobytes_a_second() {
        let rate = |pairs: &[_]| rate("ratelimit", &params(pairs));
        let bytes = |per_second, bytes_burst| {
            Ok(Some(NicRate { bytes_per_second: per_second, bytes_burst }))
        };
        assert_eq!(rate(&[("kbps", "100")]), bytes(102_400, None));
        let sliced = rate(&[("kbps", "1000"), ("timeslice_us", "500000")]);
        assert_eq!(sliced, bytes(1_024_000, Some(512_000)));
        assert_eq!(rate(&[("kbps", "100"), ("timeslice_us", "0")]), bytes(102_400, None));
        assert_eq!(rate(&[]), Ok(None), "it comes with the next call");
        assert_eq!(super::rate("", &params(&[("kbps", "100")])), Ok(None));
        for wrong in ["", "1", "x", "-5", "99999999999999999999", "9999999999999"] {
            assert_eq!(rate(&[("kbps", wrong)]).unwrap_err().field, PARAMS, "{wrong}");
        }
        let unknown = super::rate("other", &BTreeMap::new()).unwrap_err();
        assert_eq!(unknown.field, "qos_algorithm_type");
    }

    #[test]
    fn a_flood_limit_is_a_number_of_frames() {
        let none = params(&[]);
        let asked = |flood| VifSettings {
            algorithm: "",
            params: &none,
            mode: LockingMode::Locked,
            network_default_disabled: false,
            ipv4: &[],
            ipv6: &[],
            flood,
            queues: None,
        };
        for (text, flood) in [(None, None), (Some("0"), Some(0)), (Some("500"), Some(500))] {
            assert_eq!(check_limits(&asked(text)), Ok(()));
            assert_eq!(limits(&asked(text)).flood, flood);
        }
        for wrong in ["", "many", "-1", "4294967296"] {
            assert_eq!(check_limits(&asked(Some(wrong))).unwrap_err().field, "other_config");
            assert_eq!(limits(&asked(Some(wrong))).flood, None, "the usual");
        }
    }

    #[test]
    fn what_is_misspelt_or_out_of_range_is_refused_by_its_key() {
        let check = |algorithm, pairs: &[_], queues| {
            let params = params(pairs);
            let params = &params;
            let mode = LockingMode::Unlocked;
            let (ipv4, ipv6) = (&[][..], &[][..]);
            let (network_default_disabled, flood) = (false, None);
            check_limits(&VifSettings {
                algorithm,
                params,
                mode,
                network_default_disabled,
                ipv4,
                ipv6,
                flood,
                queues,
            })
        };
        let error = check("ratelimit", &[("kpbs", "100")], None).unwrap_err();
        assert!(
            error.field == PARAMS && error.problem.contains("use kbps, timeslice_us"),
            "{error}"
        );
        assert_eq!(check("", &[("kpbs", "100")], None), Ok(()), "it has no meaning");
        assert_eq!(check("ratelimit", &[("kbps", "100"), ("timeslice_us", "9")], None), Ok(()));
        for queues in ["1", "127"] {
            assert_eq!(check("", &[], Some(queues)), Ok(()), "{queues}");
        }
        for queues in ["0", "128", "-1", "two", ""] {
            let error = check("", &[], Some(queues)).unwrap_err();
            assert!(error.field == "other_config" && error.problem.contains("1 to 127"), "{error}");
        }
    }

    #[test]
    fn modes_are_those_of_xenserver() {
        let (none, v4, v6) = (params(&[]), texts(&["10.0.0.1", "nonsense"]), texts(&["fd00::1"]));
        for (mode, closed, disabled, locked) in [
            ("network_default", false, false, false),
            ("network_default", true, true, false),
            ("unlocked", true, false, false),
            ("locked", true, false, true),
            ("disabled", false, true, false),
        ] {
            let mode = LockingMode::parse(mode).unwrap();
            let (algorithm, params) = ("", &none);
            let flood = None;
            let vif_settings = VifSettings {
                algorithm,
                params,
                mode,
                network_default_disabled: closed,
                ipv4: &v4,
                ipv6: &v6,
                flood,
                queues: None,
            };
            let limits = limits(&vif_settings);
            assert_eq!(
                (limits.disabled, limits.locked.is_some()),
                (disabled, locked),
                "{vif_settings:?}"
            );
            if let Some(Locked { ipv4, ipv6 }) = limits.locked {
                assert_eq!((ipv4.len(), ipv6.len()), (1, 1), "what is no address allows nothing");
            }
            assert_eq!(check_limits(&vif_settings).unwrap_err().field, "ipv4_allowed");
            let many = vec!["fd00::1".to_owned(); MAX_LOCKED + 1];
            let vif_settings = VifSettings { ipv4: &[], ipv6: &many, ..vif_settings };
            assert_eq!(check_limits(&vif_settings).unwrap_err().field, "ipv6_allowed");
            assert_eq!(check_limits(&VifSettings { ipv6: &v6, ..vif_settings }), Ok(()));
        }
    }
}
