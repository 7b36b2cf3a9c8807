//! Disk settings in a slot's record: limits in `qos_algorithm_*`, the rest in `other_config`.

use std::collections::BTreeMap;

use crate::caps::Caps;
use crate::poll::{MAX_POLL_IDLE_THRESHOLD, MAX_POLL_US, PollMode, PollSpec};
use crate::share::DiskShare;
use crate::spec::{CacheMode, MAX_QUEUES, MIN_OVERFLOW_BYTES, SpecError, parse_size, refuse};

/// Algorithms that limit a disk. The first is Ringway's, the second XenServer's.
pub const ALGORITHMS: [&str; 2] = ["ringway", "ionice"];
/// Parameters of algorithm `ringway`.
const RINGWAY_KEYS: [&str; 8] =
    ["iops", "iops-burst", "bytes", "bytes-burst", "burst", "weight", "floor-iops", "floor-bytes"];
/// Parameters of algorithm `ionice`.
const IONICE_KEYS: [&str; 2] = ["sched", "class"];
/// Field that errors name.
const PARAMS: &str = "qos_algorithm_params";
/// Idle threshold in percent of a CPU for text that is not a number, as in XenServer.
const BAD_IDLE_THRESHOLD: u8 = 50;

/// Limits of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLimits {
    /// Caps of requests and bytes.
    pub caps: Caps,
    /// Share of the storage when other disks compete for it.
    pub share: DiskShare,
}

/// Where the writes of a disk go that has a golden image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// In memory, and in a file beyond that, until the machine stops.
    Ram,
    /// In an image of the disk's own, which stays.
    Persistent,
}

impl WriteCache {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "ram" => Some(Self::Ram),
            "persistent" => Some(Self::Persistent),
            _ => None,
        }
    }
}

/// Tuning of a disk. Absent fields are not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Polling settings.
    pub poll: PollSpec,
    /// Number of its queues, from the next plug on.
    pub queues: Option<u16>,
    /// Cache mode, from the next plug on.
    pub cache: Option<CacheMode>,
    /// Where its writes go if it has a golden image, from the next plug on.
    pub write_cache: Option<WriteCache>,
    /// Most bytes of the file for those writes that memory has no room for.
    pub write_cache_overflow: Option<u64>,
}

/// Key of [`Tuning::write_cache_overflow`].
pub const WRITE_CACHE_OVERFLOW: &str = "write-cache-overflow";

/// Returns the algorithm after parameters with the keys `set` were set: a parameter of `ringway`
/// turns an empty algorithm into `ringway`.
pub fn algorithm_with<'a>(algorithm: &'a str, mut set: impl Iterator<Item = &'a str>) -> &'a str {
    if algorithm.is_empty() && set.any(|key| RINGWAY_KEYS.contains(&key)) {
        ALGORITHMS[0]
    } else {
        algorithm
    }
}

/// Parses limits. An empty `algorithm` sets none, whatever the parameters.
///
/// Algorithm `ringway` has the parameters `iops` and `bytes` (both a second), `iops-burst` and
/// `bytes-burst` (the same, in a burst), `burst` (seconds of a full burst), `weight` (1 to 1000),
/// and `floor-iops` and `floor-bytes` (at least, both a second). Algorithm `ionice` has `sched` and `class` and sets a weight. As in XenServer, an unknown
/// `sched` counts as best effort and an unknown `class` as normal.
///
/// # Errors
/// Fields `qos_algorithm_type` and `qos_algorithm_params`: unknown, or out of range.
pub fn limits(algorithm: &str, params: &BTreeMap<String, String>) -> Result<DiskLimits, SpecError> {
    match algorithm {
        "" => Ok(DiskLimits::default()),
        "ringway" => ours(params),
        "ionice" => Ok(DiskLimits {
            share: DiskShare { weight: ionice(params), ..DiskShare::default() },
            ..DiskLimits::default()
        }),
        _ => refuse(
            "qos_algorithm_type",
            format!("{algorithm:?} is not known; use {} or nothing", ALGORITHMS.join(", ")),
        ),
    }
}

/// Checks that all settings of a disk are valid.
///
/// # Errors
/// Those of [`limits`], and field `qos_algorithm_params` for an unknown parameter of `ionice`.
pub fn check_limits(algorithm: &str, params: &BTreeMap<String, String>) -> Result<(), SpecError> {
    limits(algorithm, params)?;
    let unknown = params.keys().find(|key| !IONICE_KEYS.contains(&key.as_str()));
    match unknown.filter(|_| algorithm == "ionice") {
        Some(key) => {
            let known = IONICE_KEYS.join(", ");
            refuse(PARAMS, format!("{key:?} is not known; use {known}"))
        }
        None => Ok(()),
    }
}

/// Checks that the tuning in `other_config` is valid. Values of XenServer's keys for polling are all
/// valid, as there; see [`tuning`].
///
/// # Errors
/// Field `other_config`: `queues`, `cache`, `write-cache` or `write-cache-overflow` is out of range.
pub fn check_tuning(other_config: &BTreeMap<String, String>) -> Result<(), SpecError> {
    let Tuning { queues, cache, write_cache, write_cache_overflow, .. } = tuning(other_config);
    let check = |key: &str, is_valid: bool, valid: &str| match other_config.get(key) {
        Some(text) if !is_valid => refuse("other_config", format!("{key}: {text:?} is {valid}")),
        _ => Ok(()),
    };
    check("queues", queues.is_some(), &format!("not a number from 1 to {MAX_QUEUES}"))?;
    check("cache", cache.is_some(), "neither none nor writeback")?;
    check("write-cache", write_cache.is_some(), "neither ram nor persistent")?;
    let least = format!("no size of at least {MIN_OVERFLOW_BYTES} bytes");
    check(WRITE_CACHE_OVERFLOW, write_cache_overflow.is_some(), &least)
}

/// Parses the tuning. An invalid value in `other_config`, stored before calls checked it, has no
/// effect. There are two exceptions, as in XenServer: a `polling-duration` that is not a number turns
/// polling off, and a `polling-idle-threshold` that is not a number means 50.
///
/// `polling-duration` is in microseconds; 0 turns polling off, and values above [`MAX_POLL_US`] are
/// reduced to it. `polling-idle-threshold` is in percent of a CPU. `queues` is a number, `cache` is
/// `none` or `writeback`, `write-cache` is `ram` or `persistent`, `write-cache-overflow` is a size.
pub fn tuning(other_config: &BTreeMap<String, String>) -> Tuning {
    let get = |key| other_config.get(key).map(String::as_str);
    let (poll, poll_max_us) = match get("polling-duration").map(parse_duration) {
        None => (None, None),
        Some(0) => (Some(PollMode::Off), None),
        Some(us) => (Some(PollMode::Auto), Some(us)),
    };
    let poll_idle_threshold = get("polling-idle-threshold").map(parse_threshold);
    let queues = get("queues").and_then(|text| text.parse().ok());
    let cache = match get("cache") {
        Some("none") => Some(CacheMode::None),
        Some("writeback") => Some(CacheMode::Writeback),
        _ => None,
    };
    Tuning {
        poll: PollSpec { poll, poll_max_us, poll_idle_threshold },
        queues: queues.filter(|queues| (1..=MAX_QUEUES).contains(queues)),
        cache,
        write_cache: get("write-cache").and_then(WriteCache::parse),
        write_cache_overflow: get(WRITE_CACHE_OVERFLOW)
            .and_then(|text| parse_size(text).ok())
            .filter(|bytes| *bytes >= MIN_OVERFLOW_BYTES),
    }
}

fn ours(params: &BTreeMap<String, String>) -> Result<DiskLimits, SpecError> {
    let mut limits = DiskLimits::default();
    let DiskLimits { caps, share } = &mut limits;
    for (key, text) in params {
        match key.as_str() {
            "iops" => caps.iops = Some(number(key, text)?),
            "iops-burst" => caps.iops_burst = Some(number(key, text)?),
            "bytes" => caps.bytes_per_second = Some(bytes(key, text)?),
            "bytes-burst" => caps.bytes_burst = Some(bytes(key, text)?),
            "burst" => caps.burst_seconds = number(key, text)?,
            "weight" => share.weight = number(key, text)?,
            "floor-iops" => share.floor_iops = Some(number(key, text)?),
            "floor-bytes" => share.floor_bytes = Some(bytes(key, text)?),
            _ => {
                let known = RINGWAY_KEYS.join(", ");
                return refuse(PARAMS, format!("{key:?} is not known; use {known}"));
            }
        }
    }
    match limits.caps.validate().and_then(|()| limits.share.validate()) {
        Ok(()) => Ok(limits),
        Err(error) => refuse(PARAMS, error.to_string()),
    }
}

fn number<T: std::str::FromStr>(key: &str, text: &str) -> Result<T, SpecError> {
    let problem = || format!("{key}: {text:?} is not a whole number in range");
    text.parse().or_else(|_| refuse(PARAMS, problem()))
}

fn bytes(key: &str, text: &str) -> Result<u64, SpecError> {
    parse_size(text).or_else(|error| refuse(PARAMS, format!("{key}: {}", error.problem)))
}

/// Returns the weight of a class and level: real time 800 to 1000, best effort 100 to 700, idle 10.
fn ionice(params: &BTreeMap<String, String>) -> u16 {
    let level = level(params.get("class").map_or("", String::as_str));
    match params.get("sched").map_or("", String::as_str) {
        "idle" => 10,
        "rt" | "real-time" => 800 + 200 * level / 7,
        _ => 100 + 600 * level / 7,
    }
}

/// Parses a level from 0, the lowest, to 7, as in XenServer's manuals since 5.6.
fn level(text: &str) -> u16 {
    match text {
        "highest" => 7,
        "high" => 5,
        "low" => 2,
        "lowest" => 0,
        _ => text.parse().ok().filter(|level| *level <= 7).unwrap_or(4),
    }
}

fn parse_duration(text: &str) -> u16 {
    let us = text.parse::<i64>().unwrap_or(0).clamp(0, MAX_POLL_US.into());
    u16::try_from(us).unwrap_or(MAX_POLL_US)
}

fn parse_threshold(text: &str) -> u8 {
    let percent = text.parse::<i64>().unwrap_or(BAD_IDLE_THRESHOLD.into());
    let percent = percent.clamp(0, MAX_POLL_IDLE_THRESHOLD.into());
    u8::try_from(percent).unwrap_or(MAX_POLL_IDLE_THRESHOLD)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;

    fn map(text: &str) -> BTreeMap<String, String> {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.into(), value.into())).collect()
    }

    #[test]
    fn our_own_limits() {
        let params = "iops=500 iops-burst=2000 bytes=10M bytes-burst=20971520 burst=30 weight=300 \
                      floor-iops=50 floor-bytes=1M";
        let caps = Caps {
            iops: Some(500),
            iops_burst: Some(2000),
            bytes_per_second: Some(10 << 20),
            bytes_burst: Some(20 << 20),
            burst_seconds: 30,
        };
        let share = DiskShare { weight: 300, floor_iops: Some(50), floor_bytes: Some(1 << 20) };
        assert_eq!(limits("ringway", &map(params)), Ok(DiskLimits { caps, share }));
        assert!(map(params).keys().map(String::as_str).eq(BTreeSet::from(RINGWAY_KEYS)));
        assert_eq!(limits("ringway", &map("")), Ok(DiskLimits::default()));
        assert_eq!(limits("", &map("iops=nonsense")), Ok(DiskLimits::default()), "no algorithm");
        for algorithm in ALGORITHMS {
            assert!(limits(algorithm, &map("")).is_ok(), "{algorithm}");
        }
    }

    #[test]
    fn a_parameter_of_ringway_sets_an_empty_algorithm() {
        for (algorithm, keys, expected) in [
            ("", "", ""),
            ("", "weight", "ringway"),
            ("", "mine floor-iops", "ringway"),
            ("", "class sched mine", ""),
            ("ionice", "weight", "ionice"),
        ] {
            assert_eq!(algorithm_with(algorithm, keys.split(' ')), expected, "{keys}");
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused_by_its_key() {
        for (params, says) in [
            ("iops=x", "iops: \"x\""),
            ("iops=0", "pause the disk"),
            ("iops=-1", "whole number"),
            ("iops-burst=10", "give iops too"),
            ("bytes=1", "look hung"),
            ("bytes=10X", "bytes: \"10X\" has an unknown suffix"),
            ("iops=10 burst=0", "burst_seconds"),
            ("burst=4294967296", "burst: "),
            ("weight=0", "1 to 1000"),
            ("weight=1001", "1 to 1000"),
            ("floor-iops=0", "share.floor_iops: 0 is not in"),
            ("floor-iops=4.5", "floor-iops: \"4.5\" is not a whole number"),
            ("floor-bytes=2T", "share.floor_bytes"),
            ("floor-bytes=10X", "floor-bytes: \"10X\" has an unknown suffix"),
            ("speed=1", "\"speed\" is not known; use iops"),
        ] {
            let error = limits("ringway", &map(params)).unwrap_err();
            assert_eq!(error.field, PARAMS);
            assert!(error.problem.contains(says), "{params}: {error}");
        }
        let error = limits("cfq", &map("")).unwrap_err();
        assert_eq!(error.field, "qos_algorithm_type");
        assert!(error.problem.contains("ringway, ionice"), "{error}");
    }

    #[test]
    fn xenservers_classes_are_weights() {
        for (params, weight) in [
            ("sched=rt class=7", 1000),
            ("sched=real-time class=highest", 1000),
            ("sched=rt class=0", 800),
            ("sched=rt class=5", 942),
            ("sched=best-effort class=7", 700),
            ("sched=best-effort class=lowest", 100),
            ("class=high", 528),
            ("class=low", 271),
            ("class=normal", 442),
            ("", 442),
            ("sched=anything class=8", 442),
            ("sched=idle class=7", 10),
        ] {
            let expected = DiskLimits {
                share: DiskShare { weight, ..DiskShare::default() },
                ..DiskLimits::default()
            };
            assert_eq!(limits("ionice", &map(params)), Ok(expected), "{params}");
        }
    }

    #[test]
    fn polling_as_xenserver_reads_it() {
        let poll = |text: &str| tuning(&map(text)).poll;
        let set = |mode, us| PollSpec { poll: Some(mode), poll_max_us: us, ..PollSpec::default() };
        for (text, expected) in [
            ("", PollSpec::default()),
            ("polling-duration=1000", set(PollMode::Auto, Some(1000))),
            ("polling-duration=10001", set(PollMode::Auto, Some(10_000))),
            ("polling-duration=0", set(PollMode::Off, None)),
            ("polling-duration=-5", set(PollMode::Off, None)),
            ("polling-duration=often", set(PollMode::Off, None)),
            ("polling-duration=1.5", set(PollMode::Off, None)),
            ("polling-duration=99999999999999999999", set(PollMode::Off, None)),
        ] {
            assert_eq!(poll(text), expected, "{text}");
        }
        for (text, percent) in
            [("0", 0), ("75", 75), ("100", 100), ("101", 100), ("-1", 0), ("half", 50), ("7.5", 50)]
        {
            let text = format!("polling-idle-threshold={text}");
            assert_eq!(poll(&text).poll_idle_threshold, Some(percent), "{text}");
        }
    }

    #[test]
    fn queues_and_cache() {
        let both = tuning(&map("queues=4 cache=writeback owner=true"));
        assert_eq!((both.queues, both.cache), (Some(4), Some(CacheMode::Writeback)));
        assert_eq!(tuning(&map("cache=none")).cache, Some(CacheMode::None));
        for (text, queues) in
            [("1", Some(1)), ("256", Some(256)), ("0", None), ("257", None), ("two", None)]
        {
            assert_eq!(tuning(&map(&format!("queues={text}"))).queues, queues, "{text}");
        }
        assert_eq!(tuning(&map("cache=writethrough")), Tuning::default());
        for (text, expected) in [("ram", WriteCache::Ram), ("persistent", WriteCache::Persistent)] {
            let text = format!("write-cache={text}");
            assert_eq!(tuning(&map(&text)).write_cache, Some(expected));
        }
        for (text, expected) in [("1M", Some(1 << 20)), ("1023K", None), ("all", None)] {
            let text = format!("write-cache-overflow={text}");
            assert_eq!(tuning(&map(&text)).write_cache_overflow, expected, "{text}");
        }
    }

    #[test]
    fn what_is_misspelt_or_out_of_range_is_refused() {
        for params in ["sched=rt klass=7", "iops=5"] {
            let error = check_limits("ionice", &map(params)).unwrap_err();
            assert!(error.problem.contains("use sched, class"), "{error}");
            assert!(limits("ionice", &map(params)).is_ok(), "a stored weight stays in force");
        }
        assert_eq!(check_limits("ionice", &map("sched=rt class=7")), Ok(()));
        assert_eq!(check_limits("", &map("anything=1")), Ok(()));
        for valid in ["", "queues=1", "queues=256", "cache=none", "polling-duration=often x=y"] {
            assert_eq!(check_tuning(&map(valid)), Ok(()), "{valid}");
        }
        for (wrong, says) in [
            ("queues=0", "1 to 256"),
            ("queues=257", "1 to 256"),
            ("queues=two", "queues"),
            ("cache=writethrough", "none nor writeback"),
            ("write-cache=disk", "ram nor persistent"),
            ("write-cache-overflow=1000K", "\"1000K\" is no size of at least 1048576 bytes"),
            ("write-cache-overflow=", "write-cache-overflow: \"\" is no size"),
        ] {
            let error = check_tuning(&map(wrong)).unwrap_err();
            assert!(error.field == "other_config" && error.problem.contains(says), "{error}");
        }
    }

    /// Generates maps of known keys with values close to valid ones.
    fn any_map() -> impl Strategy<Value = BTreeMap<String, String>> {
        let key = "(iops|bytes|iops-burst|bytes-burst|burst|weight|floor-iops|floor-bytes|sched|class|queues|cache|write-cache|write-cache-overflow\
                   |polling-duration|polling-idle-threshold|[a-z]{0,3})";
        btree_map(key, "(-?[0-9]{0,21}[KMGT]?|[a-z]{0,4}|\\PC{0,8})", 0..5)
    }

    proptest! {
        #[test]
        fn whatever_is_taken_can_be_kept(params in any_map(), algorithm in "(ringway|ionice|)") {
            if let Ok(limits) = limits(&algorithm, &params) {
                prop_assert_eq!(limits.caps.validate(), Ok(()));
                prop_assert_eq!(limits.share.validate(), Ok(()));
            }
            let tuning = tuning(&params);
            prop_assert_eq!(tuning.poll.validate(), Ok(()));
            prop_assert!(tuning.queues.is_none_or(|queues| (1..=MAX_QUEUES).contains(&queues)));
        }
    }
}
