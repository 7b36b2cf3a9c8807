//! Command line of `ringway-blk`: QEMU's conventions for backend programs, and Ringway's own
//! options.

#[cfg(test)]
mod tests;
mod values;

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::{ArgGroup, Parser};
use model::image::ImageFormat;
use model::image_arg::ImageArg;
use model::spec::{Backend, BlockSize, CacheMode, Caps, DiskSpec, OnFull, SpecError};

use crate::open_disk::CONNECTED;
use crate::options::poll::PollOptions;
use crate::options::share::ShareOptions;
pub(crate) use values::mode;
pub use values::{Cache, Full, Record};
use values::{backend, queues, serial, size, time};

/// Output of `--print-capabilities`: `VHostUserBackendCapabilities` in QEMU's `vhost-user.json`.
pub const CAPABILITIES: &str = r#"{"type":"block","features":["read-only","blk-file"]}"#;

/// Serve one disk to virtual machines over vhost-user.
///
/// The disk is an image file (raw, qcow2 or VHD), a block device, memory, or a null device. Any
/// virtual machine monitor that speaks vhost-user can use it. The program serves one front-end at a
/// time; the next one waits. SIGTERM, SIGINT and SIGHUP end the program cleanly. Logs go to standard error, without
/// waiting for their reader; RINGWAY_LOG=debug logs more.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "ringway-blk",
    version,
    after_help = EXAMPLE,
    group = ArgGroup::new("socket").args(["socket_path", "fd"]).required(true),
    group = ArgGroup::new("disk").args(["blk_file", "memory", "null", "backend"]).required(true),
)]
pub struct BlkOptions {
    /// Unix socket of the front-end: listen there, or connect to it with --connect
    #[arg(long, value_name = "PATH")]
    pub socket_path: Option<PathBuf>,
    /// Number of an open socket that is connected to the front-end. The program ends when this
    /// connection ends
    #[arg(long, value_name = "FDNUM")]
    pub fd: Option<RawFd>,
    /// Connect to a front-end that listens on --socket-path, and retry until it does
    #[arg(long, conflicts_with = "fd")]
    pub connect: bool,
    /// Print the capabilities of this program as JSON, and exit
    #[arg(long)]
    pub print_capabilities: bool,

    /// Image file or block device; raw unless --format says otherwise
    #[arg(long, value_name = "PATH", help_heading = "Disk (one of)")]
    pub blk_file: Option<PathBuf>,
    /// Zeroed memory of this size, for example 512M
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Disk (one of)")]
    pub memory: Option<u64>,
    /// Null device of this size: reads return arbitrary bytes, writes are discarded
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Disk (one of)")]
    pub null: Option<u64>,

    /// Tree of files as JSON, for example '{"raw":{"child":{"file":"a.img"},"offset":1048576,
    /// "size":8388608}}' for one partition. A file is a path or {"fd":N}, where N is an inherited
    /// descriptor
    #[arg(long, value_name = "JSON", value_parser = backend, help_heading = "Disk (one of)")]
    pub backend: Option<Backend>,

    /// Format of the image file. It is never guessed: a guest can write the header of another format
    /// into a raw image. A file that begins like another image is served for the first time only if
    /// raw is stated. With --backend, raw states that of its files [default: raw]
    #[arg(long, value_name = "raw|qcow2|vhd", conflicts_with_all = EMPTY, help_heading = IMAGE)]
    pub format: Option<ImageFormat>,
    /// Image that has what the image does not have; repeated for the next image below
    #[arg(long, value_name = "PATH", requires = "backing_format", conflicts_with_all = OTHERS)]
    #[arg(help_heading = IMAGE)]
    pub backing: Vec<PathBuf>,
    /// Format of the backing
    #[arg(long, value_name = "raw|qcow2|vhd", requires = "backing", help_heading = IMAGE)]
    pub backing_format: Vec<ImageFormat>,

    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Number of queues offered to the guest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = queues())]
    pub num_queues: u16,
    /// Serial number that the guest sees, up to 20 characters
    #[arg(long, value_name = "TEXT", value_parser = serial)]
    pub serial: Option<String>,
    /// Logical block size in bytes, or storage for the one that direct I/O on the storage requires
    /// [default: 512]
    #[arg(long, value_name = "BYTES")]
    pub block_size: Option<BlockSize>,
    /// Caching on the host: none is direct I/O, writeback uses the page cache until a flush
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Cache::None)]
    pub cache: Cache,
    /// Effect of a write on full storage: wait for space, or fail
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Full::Wait)]
    pub on_full: Full,
    /// Long-term limit of the guest's requests per second
    #[arg(long, value_name = "N", help_heading = "Caps")]
    pub iops: Option<u64>,
    /// Limit of requests per second during a burst
    #[arg(long, value_name = "N", requires = "iops", help_heading = "Caps")]
    pub iops_burst: Option<u64>,
    /// Long-term limit of the guest's reads and writes in bytes per second, for example 100M
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Caps")]
    pub bps: Option<u64>,
    /// Limit of bytes per second during a burst
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "bps", help_heading = "Caps")]
    pub bps_burst: Option<u64>,
    /// Duration of a full burst in seconds. It refills while the guest stays below its caps
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Caps")]
    pub burst_seconds: u32,
    /// Longest wait of a stop for hung storage, for example 30s or 500ms. After it, the rings are
    /// closed and I/O in flight is abandoned to the kernel. A front-end without an in-flight region
    /// is disconnected
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub stop_deadline: u64,
    /// Record the time of requests by stage, for metrics and `ringway why`
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Record::On)]
    pub record: Record,
    /// Number of reactor threads [default: one for each CPU, at most one for each queue]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub reactors: Option<u16>,

    /// Permissions of the socket, octal, for example 660
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub socket_mode: Option<u32>,
    /// Group that owns the socket, by name or number
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// Write a newline to this descriptor when front-ends can connect
    #[arg(long, value_name = "FDNUM")]
    pub ready_fd: Option<RawFd>,

    /// How queues wait while they have no work.
    #[command(flatten)]
    pub polling: PollOptions,

    /// Storages that several processes share
    #[command(flatten)]
    pub sharing: ShareOptions,

    /// Run a keeper, which restarts the worker that serves the disk. The socket and the bytes of a
    /// memory disk survive a worker crash. When the keeper dies, the worker ends in order, so that
    /// you can start it again. The worker of a memory disk continues, since it has the only copy of
    /// the bytes
    #[arg(long, conflicts_with = "fd", help_heading = "Supervision")]
    pub supervise: bool,
    /// Longest pause before a worker that dies repeatedly is restarted, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000, help_heading = "Supervision")]
    pub restart_pause_max: u32,
    /// Serve under the keeper at the other end of standard input
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// Heading of the options of an image file.
const IMAGE: &str = "Image file";
/// Disks without a file.
const EMPTY: [&str; 2] = ["memory", "null"];
/// Disks that are no image file.
const OTHERS: [&str; 3] = ["memory", "null", "backend"];

const EXAMPLE: &str = "Example, with QEMU:
  ringway-blk --socket-path /tmp/d.sock --blk-file disk.img &
  qemu-system-x86_64 -m 512M -object memory-backend-memfd,id=m,size=512M,share=on \\
    -machine q35,memory-backend=m -chardev socket,id=c,path=/tmp/d.sock \\
    -device vhost-user-blk-pci,chardev=c ...

Upgrade: replace the program's file, then end the process and start it again with the same options,
with SIGTERM (in order) or SIGKILL. To a front-end that reconnects and keeps an in-flight region, as
QEMU does, that is a pause; bytes of a memory disk are lost. ringway-io is upgraded without one.";

impl BlkOptions {
    fn caps(&self) -> Option<Caps> {
        let caps = Caps {
            iops: self.iops,
            iops_burst: self.iops_burst,
            bytes_per_second: self.bps,
            bytes_burst: self.bps_burst,
            burst_seconds: self.burst_seconds,
        };
        (!caps.is_none()).then_some(caps)
    }

    /// Returns the requested disk, after all checks that do not need the host.
    ///
    /// # Errors
    /// The first field that is invalid.
    pub fn spec(&self) -> Result<DiskSpec, SpecError> {
        let mut stated = self.format.filter(|_| self.blk_file.is_none());
        let backend = match (&self.backend, &self.blk_file, self.memory, self.null) {
            (Some(backend), ..) => backend.clone(),
            (None, Some(path), ..) => {
                let image = ImageArg {
                    file: path.clone(),
                    format: self.format,
                    backing: self.backing.clone(),
                    backing_format: self.backing_format.clone(),
                };
                stated = image.stated_raw();
                image.backend()?
            }
            (None, None, Some(size), _) => Backend::Memory(size),
            (None, None, None, size) => Backend::Null(size.unwrap_or(0)),
        };
        let socket = match (&self.socket_path, self.fd) {
            (Some(path), _) => path.clone(),
            (None, fd) => format!("{CONNECTED}{}", fd.unwrap_or(-1)).into(),
        };
        let spec = DiskSpec {
            format: stated,
            queues: self.num_queues,
            read_only: self.read_only,
            serial: self.serial.clone(),
            block_size: self.block_size,
            cache: match self.cache {
                Cache::None => CacheMode::None,
                Cache::Writeback => CacheMode::Writeback,
            },
            record: self.record == Record::On,
            on_full: match self.on_full {
                Full::Wait => OnFull::Wait,
                Full::Error => OnFull::Error,
            },
            caps: self.caps(),
            stop_deadline_ms: self.stop_deadline,
            socket_mode: self.socket_mode,
            socket_group: self.socket_group.clone(),
            ..DiskSpec::new("disk", socket, backend).with_polling(self.polling.spec())
        };
        spec.validate()?;
        Ok(spec)
    }
}
