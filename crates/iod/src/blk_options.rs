//! Command line of `ringway-blk`: QEMU's conventions for backend programs, and our own options.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::{ArgGroup, Parser, ValueEnum};
use model::spec::{
    Backend, CacheMode, Caps, DiskSpec, MAX_QUEUES, MAX_SERIAL_BYTES, OnFull, PollMode, SpecError,
    parse_size, parse_time_ms,
};

use crate::open::CONNECTED;

/// What `--print-capabilities` prints: QEMU's `vhost-user.json`, `VHostUserBackendCapabilities`.
pub const CAPABILITIES: &str = r#"{"type":"block","features":["read-only","blk-file"]}"#;

/// Serve one disk to virtual machines over vhost-user.
///
/// The disk is a raw image file, a block device, memory, or nothing at all. Any virtual machine
/// monitor that speaks vhost-user can use it; one front-end is served at a time, the next one
/// waits. Ends cleanly on SIGTERM and SIGINT. Logs go to standard error; RINGWAY_LOG=debug shows
/// more of them.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "ringway-blk",
    version,
    after_help = EXAMPLE,
    group = ArgGroup::new("socket").args(["socket_path", "fd"]).required(true),
    group = ArgGroup::new("disk").args(["blk_file", "memory", "null"]).required(true),
)]
pub struct BlkOptions {
    /// Unix socket of the front-end: listen there, or connect to it with --connect
    #[arg(long, value_name = "PATH")]
    pub socket_path: Option<PathBuf>,
    /// Number of an open socket that is connected to the front-end; ends when that does
    #[arg(long, value_name = "FDNUM")]
    pub fd: Option<RawFd>,
    /// Connect to a front-end that listens on --socket-path, again and again until it is there
    #[arg(long, conflicts_with = "fd")]
    pub connect: bool,
    /// Print what this program can do as JSON, and exit
    #[arg(long)]
    pub print_capabilities: bool,

    /// Raw image file or block device
    #[arg(long, value_name = "PATH", help_heading = "Disk (one of)")]
    pub blk_file: Option<PathBuf>,
    /// Zeroed memory of this size, for example 512M
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Disk (one of)")]
    pub memory: Option<u64>,
    /// No data at all: reads are answered with whatever is there, writes are forgotten
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Disk (one of)")]
    pub null: Option<u64>,

    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Number of queues offered to the guest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = queues())]
    pub num_queues: u16,
    /// Serial that the guest sees, up to 20 characters
    #[arg(long, value_name = "TEXT", value_parser = serial)]
    pub serial: Option<String>,
    /// Logical block size in bytes; without it, what the storage asks of direct I/O
    #[arg(long, value_name = "BYTES")]
    pub block_size: Option<u32>,
    /// Caching on the host: none is direct I/O, writeback uses the page cache until a flush
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Cache::None)]
    pub cache: Cache,
    /// Whether to spin for requests; always spends a CPU on each reactor
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Poll::Off)]
    pub poll: Poll,
    /// What a write does on full storage: wait for room, or fail
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Full::Wait)]
    pub on_full: Full,
    /// Requests a second that the guest may make in the long run
    #[arg(long, value_name = "N", help_heading = "Caps")]
    pub iops: Option<u64>,
    /// Requests a second in a burst
    #[arg(long, value_name = "N", requires = "iops", help_heading = "Caps")]
    pub iops_burst: Option<u64>,
    /// Bytes a second that the guest may read and write in the long run, for example 100M
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Caps")]
    pub bps: Option<u64>,
    /// Bytes a second in a burst
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "bps", help_heading = "Caps")]
    pub bps_burst: Option<u64>,
    /// Seconds for which a full burst lasts; it fills while the guest does less than its caps
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Caps")]
    pub burst_seconds: u32,
    /// How long a stop waits for storage that hangs, for example 30s or 500ms; past it the
    /// front-end is sent away and what the storage holds is left to the kernel
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub stop_deadline: u64,
    /// Record where the time of requests goes, for metrics and `ringway why`
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Record::On)]
    pub record: Record,
    /// Number of reactor threads; without it, one for each CPU and at most one for each queue
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

    /// Keep a worker that serves the disk, and replace it when it dies; the socket and the bytes of
    /// a memory disk stay
    #[arg(long, conflicts_with = "fd", help_heading = "Supervision")]
    pub supervise: bool,
    /// Longest pause before a worker that died again and again is replaced, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000, help_heading = "Supervision")]
    pub restart_pause_max: u32,
    /// Serve under the keeper at the other end of standard input
    #[arg(long, hide = true)]
    pub worker: bool,
}

const EXAMPLE: &str = "Example, with QEMU:
  ringway-blk --socket-path /tmp/d.sock --blk-file disk.img &
  qemu-system-x86_64 -m 512M -object memory-backend-memfd,id=m,size=512M,share=on \\
    -machine q35,memory-backend=m -chardev socket,id=c,path=/tmp/d.sock \\
    -device vhost-user-blk-pci,chardev=c ...";

/// Caching on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    /// O_DIRECT.
    None,
    /// Through the page cache.
    Writeback,
}

/// Whether times are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Record {
    /// The default: `ringway lab run stats-cost` measures what it costs on this host.
    On,
    /// No clock is read.
    Off,
}

/// Whether reactors spin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Poll {
    /// Sleep until kicked.
    Off,
    /// Spin for ever.
    Always,
}

/// Behaviour on full storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Full {
    /// Wait for room.
    Wait,
    /// Fail.
    Error,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.problem)
}

fn time(text: &str) -> Result<u64, String> {
    parse_time_ms(text).map_err(|error| error.problem)
}

fn queues() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(MAX_QUEUES))
}

fn serial(text: &str) -> Result<String, String> {
    if text.len() > MAX_SERIAL_BYTES {
        return Err(format!("{} bytes long, virtio-blk carries {MAX_SERIAL_BYTES}", text.len()));
    }
    Ok(text.into())
}

pub(crate) fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("is not octal permissions such as 660".into()),
    }
}

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

    /// The disk that was asked for, with everything checked that needs no look at the host.
    ///
    /// # Errors
    /// The first field that cannot be served.
    pub fn spec(&self) -> Result<DiskSpec, SpecError> {
        let backend = match (&self.blk_file, self.memory, self.null) {
            (Some(path), ..) => Backend::File(path.clone()),
            (None, Some(size), _) => Backend::Memory(size),
            (None, None, size) => Backend::Null(size.unwrap_or(0)),
        };
        let socket = match (&self.socket_path, self.fd) {
            (Some(path), _) => path.clone(),
            (None, fd) => format!("{CONNECTED}{}", fd.unwrap_or(-1)).into(),
        };
        let spec = DiskSpec {
            queues: self.num_queues,
            read_only: self.read_only,
            serial: self.serial.clone(),
            block_size: self.block_size,
            cache: match self.cache {
                Cache::None => CacheMode::None,
                Cache::Writeback => CacheMode::Writeback,
            },
            poll: match self.poll {
                Poll::Off => PollMode::Off,
                Poll::Always => PollMode::Always,
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
            ..DiskSpec::new("disk", socket, backend)
        };
        spec.validate()?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<BlkOptions, clap::Error> {
        BlkOptions::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_is_sound() {
        BlkOptions::command().debug_assert();
        let capabilities: serde_json::Value = serde_json::from_str(CAPABILITIES).unwrap();
        assert_eq!(capabilities["type"], "block");
    }

    #[test]
    fn every_option_reaches_the_spec() {
        let line = "ringway-blk --socket-path /s --blk-file /i --read-only --num-queues 4 \
                    --serial A1 --block-size 512 --cache writeback --poll always \
                    --on-full error --socket-mode 640 --socket-group kvm \
                    --stop-deadline 5s --iops 100 --iops-burst 300 --bps 10M --bps-burst 20M \
                    --burst-seconds 60 --record off";
        let spec = parse(line).unwrap().spec().unwrap();
        let expected = DiskSpec {
            queues: 4,
            read_only: true,
            serial: Some("A1".into()),
            block_size: Some(512),
            cache: CacheMode::Writeback,
            poll: PollMode::Always,
            on_full: OnFull::Error,
            record: false,
            stop_deadline_ms: 5000,
            caps: Some(Caps {
                iops: Some(100),
                iops_burst: Some(300),
                bytes_per_second: Some(10 << 20),
                bytes_burst: Some(20 << 20),
                burst_seconds: 60,
            }),
            socket_mode: Some(0o640),
            socket_group: Some("kvm".into()),
            ..DiskSpec::new("disk", "/s", Backend::File("/i".into()))
        };
        assert_eq!(spec, expected);
        let spec = parse("ringway-blk --fd 3 --memory 1G").unwrap().spec().unwrap();
        assert_eq!(spec.backend, Backend::Memory(1 << 30));
        let spec = parse("ringway-blk --socket-path=/s --null=2M").unwrap().spec().unwrap();
        assert_eq!(spec, DiskSpec::new("disk", "/s", Backend::Null(2 << 20)));
    }

    #[test]
    fn each_refusal_names_the_option() {
        for (line, named) in [
            ("ringway-blk --null 1M", "--socket-path"),
            ("ringway-blk --socket-path /s", "--blk-file"),
            ("ringway-blk --socket-path /s --fd 3 --null 1M", "--fd"),
            ("ringway-blk --socket-path /s --null 1M --memory 1M", "--memory"),
            ("ringway-blk --fd 3 --connect --null 1M", "--connect"),
            ("ringway-blk --fd 3 --supervise --null 1M", "--supervise"),
            ("ringway-blk --socket-path /s --null 1M --frob", "--frob"),
            ("ringway-blk --socket-path /s --null 1M --num-queues 0", "--num-queues"),
            ("ringway-blk --socket-path /s --null 1M --num-queues 257", "--num-queues"),
            ("ringway-blk --socket-path /s --null 1M --num-queues many", "--num-queues"),
            ("ringway-blk --socket-path /s --null 1X", "--null"),
            ("ringway-blk --socket-path /s --null 1M --cache some", "--cache"),
            ("ringway-blk --socket-path /s --null 1M --poll maybe", "--poll"),
            ("ringway-blk --socket-path /s --null 1M --socket-mode 999", "--socket-mode"),
            ("ringway-blk --socket-path /s --null 1M --reactors 0", "--reactors"),
            ("ringway-blk --socket-path /s --null 1M --iops many", "--iops"),
            ("ringway-blk --socket-path /s --null 1M --iops-burst 9", "--iops"),
            ("ringway-blk --socket-path /s --null 1M --stop-deadline soon", "--stop-deadline"),
            ("ringway-blk --socket-path /s --null 1M --serial 123456789012345678901", "--serial"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(named), "{line}: {error}");
        }
        for (line, field) in [
            ("ringway-blk --socket-path /s --null 0", "backend"),
            ("ringway-blk --socket-path /s --null 513", "backend"),
            ("ringway-blk --socket-path /s --null 1M --stop-deadline 0", "stop_deadline_ms"),
            ("ringway-blk --socket-path /s --null 1M --iops 0", "caps.iops"),
            ("ringway-blk --socket-path /s --null 1M --bps 1", "caps.bytes_per_second"),
            ("ringway-blk --socket-path /s --null 1M --block-size 100", "block_size"),
        ] {
            assert_eq!(parse(line).unwrap().spec().unwrap_err().field, field, "{line}");
        }
    }
}
