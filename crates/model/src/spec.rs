//! What somebody asks of a disk, as data.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use crate::caps::Caps;
use crate::poll;
pub use crate::poll::{PollMode, PollSpec, Polling};

/// Most queues that one disk may have: QEMU's own bound for a virtio device is 1024; 256 keeps
/// two descriptors a queue far below any sane `RLIMIT_NOFILE`.
pub const MAX_QUEUES: u16 = 256;
/// Longest serial that virtio-blk can carry (virtio 1.2, 5.2.6: 20 bytes, unterminated).
pub const MAX_SERIAL_BYTES: usize = 20;
/// Longest path of a Unix socket: `sun_path` has 108 bytes and we keep the terminator.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Longest disk id; ids become file names and metric labels.
pub const MAX_ID_BYTES: usize = 64;
/// Largest disk: sector counts are u64, byte offsets must stay below the lock bytes above 2^62.
pub const MAX_DISK_BYTES: u64 = 1 << 60;

/// How long a stop waits for storage, in milliseconds, unless the spec says otherwise.
pub const DEFAULT_STOP_DEADLINE_MS: u64 = 30_000;
/// Longest such wait: whoever wants to wait longer than an hour wants no deadline at all, and
/// every stop would be a hang.
pub const MAX_STOP_DEADLINE_MS: u64 = 3_600_000;

/// Where the bytes of a disk are. On the wire: `{"file":"/img/a.raw"}`, `{"null":BYTES}`,
/// `{"memory":BYTES}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Backend {
    /// A raw image file or a block device.
    File(PathBuf),
    /// Moves no data: reads leave the buffers as they are, writes are forgotten; size in bytes.
    Null(u64),
    /// Anonymous memory; size in bytes.
    Memory(u64),
}

/// How a file is cached on the host (design 4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheMode {
    /// O_DIRECT: the page cache is not used.
    #[default]
    None,
    /// Buffered; durable at FLUSH.
    Writeback,
}

/// What happens to a write when the storage is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// The request waits until there is room.
    #[default]
    Wait,
    /// The guest sees an I/O error.
    Error,
}

/// One disk to serve: the parameters of `disk.attach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// Name of the disk within the process.
    pub id: String,
    /// Unix socket to listen on.
    pub socket: PathBuf,
    /// Where the bytes are.
    pub backend: Backend,
    /// Number of virtqueues offered.
    #[serde(default = "one")]
    pub queues: u16,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Answer to GET_ID; empty when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Logical block size in bytes; what direct I/O asks for when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Host caching.
    #[serde(default)]
    pub cache: CacheMode,
    /// Whether its queues are polled; as the process is set when absent, like the two that follow.
    /// Changed by `disk.poll`.
    #[serde(default, deserialize_with = "poll::mode", skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollMode>,
    /// Longest spin, in microseconds.
    #[serde(default, deserialize_with = "poll::max_us", skip_serializing_if = "Option::is_none")]
    pub poll_max_us: Option<u16>,
    /// How much of a CPU must be free for a reactor that spins, in percent.
    #[serde(
        default,
        deserialize_with = "poll::idle_threshold",
        skip_serializing_if = "Option::is_none"
    )]
    pub poll_idle_threshold: Option<u8>,
    /// Behaviour on full storage.
    #[serde(default)]
    pub on_full: OnFull,
    /// What its guest may do with it in a second. Changed by `disk.caps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caps: Option<Caps>,
    /// Milliseconds that a stop waits for storage to end what it was given (stop of a ring, pause,
    /// deactivate, detach, shutdown). Past it the requests are left to the kernel and the disk
    /// shows `stuck`.
    #[serde(default = "stop_deadline_ms")]
    pub stop_deadline_ms: u64,
    /// Permission bits of the socket, for example 0o660.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<u32>,
    /// Group that owns the socket, by name or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// Take the lock and serve at once.
    #[serde(default = "yes")]
    pub activate: bool,
    /// Measure where the time of requests goes, for `why`, `top` and metrics.
    #[serde(default = "yes")]
    pub record: bool,
}

fn one() -> u16 {
    1
}

fn stop_deadline_ms() -> u64 {
    DEFAULT_STOP_DEADLINE_MS
}

fn yes() -> bool {
    true
}

/// A spec that cannot be served: which field, what it said, what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// Name of the field, as on the wire.
    pub field: &'static str,
    /// What is wrong with it and what is accepted.
    pub problem: String,
}

pub(crate) fn refuse<T>(field: &'static str, problem: impl Into<String>) -> Result<T, SpecError> {
    Err(SpecError { field, problem: problem.into() })
}

impl DiskSpec {
    /// A disk with every default.
    pub fn new(id: impl Into<String>, socket: impl Into<PathBuf>, backend: Backend) -> Self {
        Self {
            id: id.into(),
            socket: socket.into(),
            backend,
            queues: 1,
            read_only: false,
            serial: None,
            block_size: None,
            cache: CacheMode::default(),
            poll: None,
            poll_max_us: None,
            poll_idle_threshold: None,
            on_full: OnFull::default(),
            caps: None,
            stop_deadline_ms: DEFAULT_STOP_DEADLINE_MS,
            socket_mode: None,
            socket_group: None,
            activate: true,
            record: true,
        }
    }

    /// Checks everything that can be checked without touching the host.
    ///
    /// # Errors
    /// The first field that cannot be served.
    pub fn validate(&self) -> Result<(), SpecError> {
        validate_id(&self.id)?;
        validate_socket(&self.socket, self.socket_mode)?;
        if self.queues == 0 || self.queues > MAX_QUEUES {
            return refuse("queues", format!("{} is not in 1 to {MAX_QUEUES}", self.queues));
        }
        validate_serial(self.serial.as_deref())?;
        if let Some(size) = self.block_size {
            validate_block_size(size)?;
        }
        self.caps.map_or(Ok(()), |caps| caps.validate())?;
        self.polling().validate()?;
        if !(1..=MAX_STOP_DEADLINE_MS).contains(&self.stop_deadline_ms) {
            let problem =
                format!("{} is not in 1 to {MAX_STOP_DEADLINE_MS}", self.stop_deadline_ms);
            return refuse("stop_deadline_ms", problem);
        }
        self.validate_backend()
    }

    /// What was asked for of polling.
    pub fn polling(&self) -> PollSpec {
        let &Self { poll, poll_max_us, poll_idle_threshold, .. } = self;
        PollSpec { poll, poll_max_us, poll_idle_threshold }
    }

    /// The same spec with this of polling.
    #[must_use]
    pub fn with_polling(self, polling: PollSpec) -> Self {
        let PollSpec { poll, poll_max_us, poll_idle_threshold } = polling;
        Self { poll, poll_max_us, poll_idle_threshold, ..self }
    }

    fn validate_backend(&self) -> Result<(), SpecError> {
        let size = match &self.backend {
            Backend::File(path) if path.as_os_str().is_empty() => {
                return refuse("backend", "file path is empty");
            }
            Backend::File(_) => return Ok(()),
            Backend::Null(size) | Backend::Memory(size) => *size,
        };
        let unit = u64::from(self.block_size.unwrap_or(512));
        if size == 0 || size > MAX_DISK_BYTES {
            return refuse("backend", format!("{size} bytes is not in 1 to {MAX_DISK_BYTES}"));
        }
        if size % unit != 0 {
            return refuse("backend", format!("{size} bytes is not a multiple of {unit}"));
        }
        Ok(())
    }
}

/// Checks a disk id: 1 to 64 of letters, digits, `.`, `_`, `-`, not starting with a dot or dash.
///
/// # Errors
/// Field `id`.
pub fn validate_id(id: &str) -> Result<(), SpecError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if id.is_empty() || id.len() > MAX_ID_BYTES || !id.chars().all(plain) {
        return refuse(
            "id",
            format!("{id:?} is not 1 to {MAX_ID_BYTES} of letters, digits, '.', '_', '-'"),
        );
    }
    if id.starts_with(['.', '-']) {
        return refuse("id", format!("{id:?} must start with a letter, a digit or '_'"));
    }
    Ok(())
}

/// Checks the path of a socket to listen on, and the permissions that it is to get.
///
/// # Errors
/// Fields `socket` and `socket_mode`.
pub fn validate_socket(path: &Path, mode: Option<u32>) -> Result<(), SpecError> {
    let bytes = path.as_os_str().as_encoded_bytes().len();
    if bytes == 0 {
        return refuse("socket", "is empty; give the path to listen on");
    }
    if bytes > MAX_SOCKET_PATH_BYTES {
        return refuse(
            "socket",
            format!(
                "path has {bytes} bytes, a Unix socket allows {MAX_SOCKET_PATH_BYTES}; \
                 use a shorter directory"
            ),
        );
    }
    if mode.is_some_and(|mode| mode > 0o777) {
        return refuse("socket_mode", "is not in 0 to 777 (octal)");
    }
    Ok(())
}

fn validate_serial(serial: Option<&str>) -> Result<(), SpecError> {
    let Some(serial) = serial else { return Ok(()) };
    if serial.len() > MAX_SERIAL_BYTES {
        return refuse(
            "serial",
            format!("{} bytes long, virtio-blk carries {MAX_SERIAL_BYTES}", serial.len()),
        );
    }
    if !serial.bytes().all(|b| b.is_ascii_graphic()) {
        return refuse("serial", "holds other than printable ASCII without spaces");
    }
    Ok(())
}

/// Checks a logical block size: a power of two from 512 to 4096 bytes (Linux guests take no more
/// than a page).
///
/// # Errors
/// Field `block_size`.
pub fn validate_block_size(size: u32) -> Result<(), SpecError> {
    if (512..=4096).contains(&size) && size.is_power_of_two() {
        Ok(())
    } else {
        refuse("block_size", format!("{size} is not 512, 1024, 2048 or 4096"))
    }
}

/// Parses a size: a number of bytes, or one with a suffix K, M, G or T (powers of 1024; `KiB`
/// and the like are accepted).
///
/// # Errors
/// Field `size`: not a number, unknown suffix, or more than [`MAX_DISK_BYTES`].
pub fn parse_size(text: &str) -> Result<u64, SpecError> {
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = trimmed.split_at(digits);
    let unit: u64 = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return refuse("size", format!("{text:?} has an unknown suffix; use K, M, G or T")),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    match bytes {
        Some(bytes) if bytes <= MAX_DISK_BYTES => Ok(bytes),
        Some(_) => refuse("size", format!("{text:?} is more than {MAX_DISK_BYTES} bytes")),
        None => refuse("size", format!("{text:?} is not a size; write for example 512M or 8G")),
    }
}

/// Parses a time: a number of seconds, or one with a suffix `ms`, `s` or `m`; in milliseconds.
///
/// # Errors
/// Field `time`: not a number, or an unknown suffix.
pub fn parse_time_ms(text: &str) -> Result<u64, SpecError> {
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = trimmed.split_at(digits);
    let unit: u64 = match suffix {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        _ => return refuse("time", format!("{text:?} has an unknown suffix; use ms, s or m")),
    };
    let parsed = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    let problem = || format!("{text:?} is not a time; write for example 500ms or 30s");
    parsed.map_or_else(|| refuse("time", problem()), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> DiskSpec {
        DiskSpec::new("d1", "/run/x/d1.sock", Backend::Null(1 << 20))
    }

    #[test]
    fn attach_parameters_of_the_manual_parse() {
        let text = r#"{"id":"d1","socket":"/run/x/d1.sock","backend":{"file":"/img/a.raw"},
            "queues":4,"read_only":false,"serial":"A1"}"#;
        let parsed: DiskSpec = serde_json::from_str(text).unwrap();
        let mut expected =
            DiskSpec::new("d1", "/run/x/d1.sock", Backend::File("/img/a.raw".into()));
        expected.queues = 4;
        expected.serial = Some("A1".into());
        assert_eq!(parsed, expected);
        assert_eq!(parsed.validate(), Ok(()));
    }

    #[test]
    fn polling_is_there_only_when_it_was_asked_for() {
        let plain = serde_json::to_value(spec()).unwrap();
        assert!(plain.as_object().unwrap().keys().all(|key| !key.starts_with("poll")), "{plain}");
        // As a former version wrote it, without the other two.
        let text = r#"{"id":"d1","socket":"/s","backend":{"null":512},"poll":"off"}"#;
        let parsed: DiskSpec = serde_json::from_str(text).unwrap();
        assert_eq!(parsed.polling().resolve().mode, PollMode::Off);
        let polling = PollSpec { poll_max_us: Some(9), ..parsed.polling() };
        let again = serde_json::to_value(parsed.with_polling(polling)).unwrap();
        assert_eq!((again["poll"].as_str(), again["poll_max_us"].as_u64()), (Some("off"), Some(9)));
        let error =
            serde_json::from_str::<DiskSpec>(&text.replace("\"off\"", "\"on\"")).unwrap_err();
        assert!(error.to_string().contains("\"always\""), "{error}");
    }

    #[test]
    fn unknown_fields_are_refused() {
        let text = r#"{"id":"d","socket":"/s","backend":{"null":512},"cash":"none"}"#;
        let error = serde_json::from_str::<DiskSpec>(text).unwrap_err().to_string();
        assert!(error.contains("cash"), "{error}");
    }

    #[test]
    fn each_bad_field_is_named() {
        type Break = fn(&mut DiskSpec);
        let cases: [(&str, Break); 14] = [
            ("id", |s| s.id = "a/b".into()),
            ("id", |s| s.id = "-a".into()),
            ("socket", |s| s.socket = "/".repeat(108).into()),
            ("queues", |s| s.queues = 0),
            ("queues", |s| s.queues = MAX_QUEUES + 1),
            ("serial", |s| s.serial = Some("x".repeat(21))),
            ("block_size", |s| s.block_size = Some(513)),
            ("caps.iops", |s| s.caps = Some(Caps { iops: Some(0), ..Caps::default() })),
            ("poll_max_us", |s| s.poll_max_us = Some(10_001)),
            ("poll_idle_threshold", |s| s.poll_idle_threshold = Some(101)),
            ("stop_deadline_ms", |s| s.stop_deadline_ms = 0),
            ("stop_deadline_ms", |s| s.stop_deadline_ms = u64::MAX),
            ("backend", |s| s.backend = Backend::Null(0)),
            ("backend", |s| s.backend = Backend::Memory(513)),
        ];
        for (field, break_it) in cases {
            let mut broken = spec();
            break_it(&mut broken);
            assert_eq!(broken.validate().unwrap_err().field, field);
        }
        assert_eq!(spec().validate(), Ok(()));
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("8G"), Ok(8 << 30));
        assert_eq!(parse_size("1 MiB"), Ok(1 << 20));
        for bad in ["", "G", "-1", "1.5G", "12X", "99999999999T"] {
            assert_eq!(parse_size(bad).unwrap_err().field, "size", "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(parse_time_ms("30"), Ok(30_000));
        assert_eq!(parse_time_ms("30s"), Ok(30_000));
        assert_eq!(parse_time_ms("250ms"), Ok(250));
        assert_eq!(parse_time_ms("2m"), Ok(120_000));
        for bad in ["", "s", "-1", "1.5s", "1h", "99999999999999999999", "18446744073709551615"] {
            assert_eq!(parse_time_ms(bad).unwrap_err().field, "time", "{bad}");
        }
    }

    proptest::proptest! {
        /// Whatever is typed or sent ends in a checked value or an error, never in a panic.
        #[test]
        fn any_text_is_a_size_or_an_error(text in ".{0,24}", digits in "[0-9]{1,30}[kKmMgGtT]?") {
            for text in [text, digits] {
                if let Ok(bytes) = parse_size(&text) {
                    proptest::prop_assert!(bytes <= MAX_DISK_BYTES);
                }
            }
        }

        /// A spec that validates holds every promise that the datapath builds on.
        #[test]
        fn what_validates_is_in_bounds(
            id in ".{0,70}", queues: u16, size: u64, block: u32, serial in ".{0,24}",
        ) {
            let mut any = DiskSpec::new(id, "/s", Backend::Null(size));
            (any.queues, any.block_size, any.serial) = (queues, Some(block), Some(serial));
            if any.validate().is_ok() {
                proptest::prop_assert!(any.queues >= 1 && any.queues <= MAX_QUEUES);
                proptest::prop_assert!(size.is_multiple_of(u64::from(block)) && size > 0);
                proptest::prop_assert!(any.serial.is_none_or(|s| s.len() <= MAX_SERIAL_BYTES));
                proptest::prop_assert!(!any.id.contains('/'));
            }
        }
    }
}
