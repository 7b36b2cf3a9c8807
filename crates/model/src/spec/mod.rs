//! Specification of a disk.

mod backend;
#[cfg(test)]
mod backend_tests;
mod boot_set;
mod chain;
mod check;
mod golden;
mod model_disk;
mod overlay;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use crate::caps::Caps;
use crate::image::ImageFormat;
use crate::poll;
pub use crate::poll::{EffectivePolling, PollMode, PollSpec};
pub use crate::share::DiskShare;
pub use backend::{Backend, FileRef, MAX_TREE_BYTES, MAX_TREE_DEPTH, MAX_TREE_FDS, MAX_TREE_FILES};
pub use boot_set::{BOOT_SET_BLOCKS_MAX, BootSet};
pub use check::{validate_block_size, validate_id, validate_socket};
use check::{validate_no_socket, validate_serial};
pub use golden::{
    DIGEST_PREFIX, GoldenImage, GoldenSource, HostPort, HttpAddress, MAX_GOLDEN_BYTES,
    MIN_GOLDEN_RAM_BYTES, MIN_GOLDEN_RATE, NbdAddress, NbdServerAddress,
};
pub use model_disk::{
    DeviceModel, DeviceSpeed, FlashModel, MAX_MODEL_DISK_BYTES, ModelDisk, PipeModel, SpindleModel,
};
pub use overlay::{
    MAX_OVERLAY_RAM_BYTES, MIN_OVERFLOW_BYTES, MIN_OVERLAY_RAM_BYTES, OVERLAY_BLOCK_BYTES,
};
pub use text::{parse_size, parse_time_ms};

/// Maximum number of queues of a disk. QEMU's limit for a virtio device is 1024. With 256, two
/// descriptors a queue stay far below any sane `RLIMIT_NOFILE`.
pub const MAX_QUEUES: u16 = 256;
/// Longest serial number that virtio-blk can carry (virtio 1.2, 5.2.6: 20 bytes, unterminated).
pub const MAX_SERIAL_BYTES: usize = 20;
/// Longest path of a Unix socket: `sun_path` has 108 bytes with the terminator.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Longest disk id in bytes; ids become file names and metric labels.
pub const MAX_ID_BYTES: usize = 64;
/// Largest disk in bytes. Sector counts are u64, and byte offsets must stay below the lock bytes
/// above 2^62.
pub const MAX_DISK_BYTES: u64 = 1 << 60;

/// Default time that a stop waits for storage, in milliseconds.
pub const DEFAULT_STOP_DEADLINE_MS: u64 = 30_000;
/// Maximum time that a stop waits for storage, in milliseconds: an hour. With a longer deadline
/// every stop on hung storage would itself hang.
pub const MAX_STOP_DEADLINE_MS: u64 = 3_600_000;

/// Host cache mode of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheMode {
    /// O_DIRECT: without the page cache.
    #[default]
    None,
    /// Buffered; durable at FLUSH.
    Writeback,
}

/// Logical block size of a disk. On the wire: a number of bytes, or `"storage"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockSize {
    /// The size that direct I/O on the storage needs; 512 bytes with the page cache. For disks whose
    /// guests were told that size before.
    Storage,
    /// This number of bytes, whatever the storage needs.
    #[serde(untagged)]
    Bytes(u32),
}

impl BlockSize {
    /// Default block size in bytes. Every driver accepts it.
    pub const DEFAULT_BYTES: u32 = 512;
}

impl std::str::FromStr for BlockSize {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text == "storage" {
            return Ok(Self::Storage);
        }
        text.parse().map(Self::Bytes).or_else(|_| {
            refuse("block_size", format!("{text:?} is neither a number of bytes nor \"storage\""))
        })
    }
}

/// Behaviour of a write when the storage is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// The request waits until there is space.
    #[default]
    Wait,
    /// The guest sees an I/O error.
    Error,
}

/// A disk to serve: the parameters of `disk.attach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// Name of the disk within the process.
    pub id: String,
    /// Unix socket to listen on. A disk without one serves no guest and stays inactive: it is there
    /// for NBD exports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Backend that stores the bytes.
    pub backend: Backend,
    /// `raw` states that the raw files of the backend are raw, whatever they begin like. Without it,
    /// one that begins like another image is refused at its first attach. Other formats are nodes of
    /// the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImageFormat>,
    /// Number of virtqueues offered.
    #[serde(default = "one")]
    pub queues: u16,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Answer to GET_ID; empty when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Logical block size; 512 bytes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<BlockSize>,
    /// Host cache mode.
    #[serde(default)]
    pub cache: CacheMode,
    /// Polling mode of its queues. The default of the process when absent, as for the next two.
    /// `disk.poll` changes it.
    #[serde(default, deserialize_with = "poll::mode", skip_serializing_if = "Option::is_none")]
    pub poll: Option<PollMode>,
    /// Maximum polling time per wait, in microseconds.
    #[serde(default, deserialize_with = "poll::max_us", skip_serializing_if = "Option::is_none")]
    pub poll_max_us: Option<u16>,
    /// Percentage of a CPU that must be idle for a polling reactor.
    #[serde(
        default,
        deserialize_with = "poll::idle_threshold",
        skip_serializing_if = "Option::is_none"
    )]
    pub poll_idle_threshold: Option<u8>,
    /// Behaviour on full storage.
    #[serde(default)]
    pub on_full: OnFull,
    /// Limits of requests and bytes a second. `disk.caps` changes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caps: Option<Caps>,
    /// Share of the storage when other disks want it; weight 100 when absent. `disk.weight` changes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<DiskShare>,
    /// Time that a stop waits for storage to end its I/O, in milliseconds (stop of a ring, pause,
    /// deactivate, detach, shutdown). After that, the requests are abandoned to the kernel and the
    /// disk's state is `stuck`.
    #[serde(default = "stop_deadline_ms")]
    pub stop_deadline_ms: u64,
    /// Permission bits of the socket, for example 0o660.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<u32>,
    /// Group that owns the socket, by name or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
    /// Whether to take the lock and serve at once. Without a socket, this has no effect.
    #[serde(default = "yes")]
    pub activate: bool,
    /// Whether to measure request times, for `ringway why`, `ringway top` and metrics.
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

/// An invalid spec: the field, its value, and the accepted values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// Name of the field on the wire.
    pub field: &'static str,
    /// The problem, and the accepted values.
    pub problem: String,
}

pub(crate) fn refuse<T>(field: &'static str, problem: impl Into<String>) -> Result<T, SpecError> {
    Err(SpecError { field, problem: problem.into() })
}

impl DiskSpec {
    /// Creates a disk with default values.
    pub fn new(id: impl Into<String>, socket: impl Into<PathBuf>, backend: Backend) -> Self {
        Self { socket: Some(socket.into()), ..Self::without_socket(id, backend) }
    }

    /// Creates a disk without a socket, with default values.
    pub fn without_socket(id: impl Into<String>, backend: Backend) -> Self {
        Self {
            id: id.into(),
            socket: None,
            backend,
            format: None,
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
            share: None,
            stop_deadline_ms: DEFAULT_STOP_DEADLINE_MS,
            socket_mode: None,
            socket_group: None,
            activate: true,
            record: true,
        }
    }

    /// Checks the fields without accessing the host.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), SpecError> {
        validate_id(&self.id)?;
        match &self.socket {
            Some(socket) => validate_socket(socket, self.socket_mode)?,
            None => validate_no_socket(self.socket_mode, self.socket_group.as_deref())?,
        }
        if self.queues == 0 || self.queues > MAX_QUEUES {
            return refuse("queues", format!("{} is not in 1 to {MAX_QUEUES}", self.queues));
        }
        if let Some(other) = self.format.filter(|format| *format != ImageFormat::Raw) {
            let name = other.name();
            return refuse(
                "format",
                format!(
                    "is raw or absent; a {name} image is the backend {{\"{name}\":{{\"file\":...}}}}"
                ),
            );
        }
        validate_serial(self.serial.as_deref())?;
        if let Some(BlockSize::Bytes(size)) = self.block_size {
            validate_block_size(size)?;
        }
        self.caps.map_or(Ok(()), |caps| caps.validate())?;
        self.share.map_or(Ok(()), |share| share.validate())?;
        self.polling().validate()?;
        if !(1..=MAX_STOP_DEADLINE_MS).contains(&self.stop_deadline_ms) {
            let problem =
                format!("{} is not in 1 to {MAX_STOP_DEADLINE_MS}", self.stop_deadline_ms);
            return refuse("stop_deadline_ms", problem);
        }
        if !self.read_only && self.backend.is_golden_alone() {
            let problem = "is false, and a golden image is never written; give true, or put a \
                           qcow2 image above it for the writes of the disk";
            return refuse("read_only", problem);
        }
        if self.read_only && self.backend.is_overlay() {
            let problem =
                "is true, and an overlay is there for writes; give its base as the backend";
            return refuse("read_only", problem);
        }
        self.backend.validate(self.block_bytes().unwrap_or(BlockSize::DEFAULT_BYTES).into())
    }

    /// Returns whether an attach takes the lock and serves the disk at once.
    pub fn activates(&self) -> bool {
        self.activate && self.socket.is_some()
    }

    /// Returns the requested polling settings.
    pub fn polling(&self) -> PollSpec {
        let &Self { poll, poll_max_us, poll_idle_threshold, .. } = self;
        PollSpec { poll, poll_max_us, poll_idle_threshold }
    }

    /// Returns the same spec with other polling settings.
    #[must_use]
    pub fn with_polling(self, polling: PollSpec) -> Self {
        let PollSpec { poll, poll_max_us, poll_idle_threshold } = polling;
        Self { poll, poll_max_us, poll_idle_threshold, ..self }
    }

    /// Returns the logical block size in bytes. `None` if the storage determines it.
    pub fn block_bytes(&self) -> Option<u32> {
        match self.block_size {
            None => Some(BlockSize::DEFAULT_BYTES),
            Some(BlockSize::Bytes(bytes)) => Some(bytes),
            Some(BlockSize::Storage) => None,
        }
    }
}
