//! Systems of the block experiments: how to start them, and their names.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use testkit::process::{Backend, StorageDaemon, Target, find_binary};

use super::client::{self, Access, Arrivals, Load, Pattern, Wait, Window};
use super::copy;
use super::eventfd_pair;
use super::fleet::BackendKind;
use super::formats::{self, Disk};
use super::image::{DISK_BYTES, Images};
use super::loopback::Loopback;
use super::medium::Medium;
use crate::cpu::{self, Placement};
use crate::experiment::Sample;
use crate::fio::{self, To};
use crate::host::HostTime;
use crate::other_binary;
use crate::peer::Peer;

/// `--poll` mode of our programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// Never poll.
    Off,
    /// Poll while it pays. This is the default.
    Auto,
    /// Poll all the time.
    Always,
}

impl Poll {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Off, Self::Auto, Self::Always];

    /// Returns the mode's name on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Always => "always",
        }
    }
}

/// System of a block experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// `ringway-blk`.
    Ringway {
        /// Polling mode.
        poll: Poll,
        /// True for `--cache writeback`, false for `--cache none`.
        writeback: bool,
    },
    /// `ringway-blk` with a null disk, for any medium.
    RingwayNull(Poll),
    /// `qemu-storage-daemon`.
    Daemon {
        /// Value of `poll-max-ns`. `None` means its default.
        poll_max_ns: Option<u64>,
        /// True for `cache.direct=on` with files.
        direct: bool,
    },
    /// Loopback device, the limit of the client itself.
    Loopback,
    /// Only one system call per request, which reads the file.
    Preadv2,
    /// Two threads, two words and an eventfd, with a reply before the client can fall asleep.
    BarePair,
    /// The same pair with a reply once the client sleeps: the shortest path to a sleeping client.
    BareWake,
    /// glibc's memcpy over the addresses of the load.
    Memcpy,
    /// glibc's memcpy over the addresses of the load, from huge pages, which memory disks have.
    MemcpyHuge,
    /// fio on the file itself.
    Fio,
    /// Backend that the user has started, by its index among the peers.
    Peer(usize),
    /// The `ringway-blk` of `--other-binary`, with `--poll auto`.
    Other,
    /// Server of a disk in image files, with direct I/O and its default polling.
    Formatted(BackendKind, Disk),
}

/// Resources of an experiment.
#[derive(Debug)]
pub struct Place {
    /// Disk images.
    pub images: Images,
    /// CPUs of client and backend.
    pub placement: Placement,
    /// Backends that the user has started.
    pub peers: Vec<Peer>,
    /// Another build of `ringway-blk`.
    pub other_binary: Option<PathBuf>,
}

impl System {
    /// Returns `ringway-blk` for a medium, with `--cache writeback` if the page cache is measured.
    #[must_use]
    pub fn ours(poll: Poll, medium: Medium) -> Self {
        Self::Ringway { poll, writeback: medium == Medium::Cached }
    }

    /// `qemu-storage-daemon` with direct I/O and its default polling.
    pub const DAEMON: Self = Self::Daemon { poll_max_ns: None, direct: true };
    /// `qemu-storage-daemon` with direct I/O and no polling.
    pub const DAEMON_NO_POLL: Self = Self::Daemon { poll_max_ns: Some(0), direct: true };
    /// `qemu-storage-daemon` through the page cache, with its default polling.
    pub const DAEMON_BUFFERED: Self = Self::Daemon { poll_max_ns: None, direct: false };

    /// Returns the name for tables.
    #[must_use]
    pub fn name(&self, medium: Medium) -> String {
        match self {
            Self::Ringway { poll, writeback } => {
                let cache = match (medium.is_file(), writeback) {
                    (false, _) => "",
                    (true, true) => " --cache writeback",
                    (true, false) => " --cache none",
                };
                format!("ringway-blk --poll {}{cache}", poll.word())
            }
            Self::RingwayNull(poll) => format!("ringway-blk --poll {}, null", poll.word()),
            Self::Daemon { poll_max_ns, direct } => {
                let poll = poll_max_ns.map(|ns| format!(" poll-max-ns={ns}")).unwrap_or_default();
                let cache = match (medium.is_file(), direct) {
                    (false, _) => "",
                    (true, true) => " direct",
                    (true, false) => " buffered",
                };
                format!("qsd{poll}{cache}")
            }
            Self::Loopback => "(client's own limit)".to_owned(),
            Self::Preadv2 => "(preadv2)".to_owned(),
            Self::BarePair => "(bare eventfd pair)".to_owned(),
            Self::BareWake => "(bare eventfd pair, asleep)".to_owned(),
            Self::Memcpy => "(memcpy)".to_owned(),
            Self::MemcpyHuge => "(memcpy, huge pages)".to_owned(),
            Self::Fio => "fio io_uring".to_owned(),
            // The caller replaces this name with the peer's own.
            Self::Peer(place) => format!("peer {place}"),
            Self::Other => other_binary::NAME.to_owned(),
            Self::Formatted(BackendKind::Ringway, disk) => format!("ringway-blk {}", disk.name()),
            Self::Formatted(BackendKind::Daemon, disk) => format!("qsd {}", disk.name()),
        }
    }

    /// Returns whether the system is one of ours.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(
            self,
            Self::Ringway { .. } | Self::RingwayNull(_) | Self::Formatted(BackendKind::Ringway, _)
        )
    }

    /// Returns the peer that replaces this system in a control run. Peers replace themselves.
    #[must_use]
    pub fn stand_in(self) -> Self {
        match self {
            Self::Ringway { poll, writeback } => {
                let poll_max_ns = (poll == Poll::Off).then_some(0);
                Self::Daemon { poll_max_ns, direct: !writeback }
            }
            Self::RingwayNull(_) => Self::Daemon { poll_max_ns: None, direct: true },
            Self::Formatted(_, disk) => Self::Formatted(BackendKind::Daemon, disk),
            other => other,
        }
    }

    /// Starts the system on its CPU, measures it, and ends it.
    ///
    /// # Errors
    /// The system does not start or does not serve.
    pub fn measure(
        self,
        medium: Medium,
        place: &mut Place,
        load: Load,
        window: Window,
    ) -> Result<Sample> {
        let placement = place.placement;
        match self {
            Self::Loopback => return loopback(placement, load, window),
            Self::Preadv2 => {
                let file = File::open(&place.images.disk)?;
                return copy::preadv2(placement, load, window, (file, DISK_BYTES));
            }
            Self::BarePair => return eventfd_pair::measure(placement, window, false),
            Self::BareWake => return eventfd_pair::measure(placement, window, true),
            Self::Memcpy => return copy::memcpy(placement, load, window, DISK_BYTES),
            Self::MemcpyHuge => return copy::memcpy_huge(placement, load, window, DISK_BYTES),
            Self::Fio => return fio(place, load, window),
            Self::Peer(number) => {
                let peer = place.peers.get_mut(number).context("there is no such peer")?;
                return peer.measure(load, window, placement.client);
            }
            Self::Formatted(server, disk) => {
                disk.make(server, place.images.folder(), formats::disk_bytes(load, window))?;
            }
            Self::Ringway { .. } | Self::RingwayNull(_) | Self::Daemon { .. } | Self::Other => {}
        }
        let backend = self.start(medium, place, &[])?;
        if medium == Medium::Memory && !matches!(self, Self::RingwayNull(_)) {
            client::fill(backend.socket())?;
        }
        let pid = backend.process.id();
        let time = || cpu::process_time_s(pid);
        let mut sample = client::measure(backend.socket(), load, window, placement.client, time)?;
        if let Self::Formatted(server, disk) = self {
            formats::end(server, backend)?;
            sample.insert("image_mib".into(), disk.finish(server, place.images.folder())?);
        }
        Ok(sample)
    }

    /// Starts a backend process on the backend's CPU. `more` are additional options for ours.
    ///
    /// # Errors
    /// The process does not start.
    pub fn start(self, medium: Medium, place: &Place, more: &[&str]) -> Result<Backend> {
        cpu::started_on(place.placement.backend, || self.process(medium, place, more))
    }

    fn process(self, medium: Medium, place: &Place, more: &[&str]) -> Result<Backend> {
        let images = &place.images;
        match self {
            Self::Ringway { poll, writeback } => {
                ringway(&find_binary("ringway-blk")?, (poll, writeback), medium, images, more)
            }
            Self::RingwayNull(poll) => {
                Self::Ringway { poll, writeback: false }.process(Medium::Null, place, more)
            }
            Self::Other => {
                let program = place.other_binary.as_ref().context("there is no other binary")?;
                let cached = medium == Medium::Cached;
                ringway(program, (Poll::Auto, cached), medium, images, more)
            }
            Self::Daemon { poll_max_ns, direct } => {
                let target = match medium {
                    Medium::Null => Target::Null(DISK_BYTES),
                    Medium::Memory => Target::File(images.tmpfs.clone()),
                    Medium::Cached | Medium::Direct => Target::File(images.disk.clone()),
                };
                let mut options = StorageDaemon::new(target);
                options.direct = direct && medium != Medium::Memory;
                options.poll_max_ns = poll_max_ns;
                Ok(Backend::storage_daemon(&options)?)
            }
            Self::Formatted(server, disk) => disk.start(server, images.folder()),
            _ => bail!("{} is not a process of the lab", self.name(medium)),
        }
    }
}

/// Starts a `ringway-blk`.
fn ringway(
    program: &Path,
    (poll, writeback): (Poll, bool),
    medium: Medium,
    images: &Images,
    more: &[&str],
) -> Result<Backend> {
    let size = DISK_BYTES.to_string();
    let file = images.disk.display().to_string();
    let (option, value) = match medium {
        Medium::Null => ("--null", &size),
        Medium::Memory => ("--memory", &size),
        Medium::Cached | Medium::Direct => ("--blk-file", &file),
    };
    let cache = if writeback { "writeback" } else { "none" };
    let options = [option, value, "--poll", poll.word(), "--cache", cache];
    Ok(Backend::ringway_blk_at(program, &[&options[..], more].concat())?)
}

/// Measures a device in this process in place of a backend.
fn loopback(placement: Placement, load: Load, window: Window) -> Result<Sample> {
    let device = Loopback::start(placement.backend, DISK_BYTES)?;
    let time = || device.time_s();
    let sample = client::measure(device.socket(), load, window, placement.client, time)?;
    device.finish()?;
    Ok(sample)
}

/// Measures fio in place of client and backend.
fn fio(place: &Place, load: Load, window: Window) -> Result<Sample> {
    let Load { access, pattern, bytes, depth, wait: _, sample_every: _, arrivals } = load;
    if access == Access::Write || matches!(pattern, Pattern::EachOnce(_)) {
        bail!("fio only reads here");
    }
    if arrivals != Arrivals::Next {
        bail!("fio sends each request after the last one; it has no arrivals at random");
    }
    let mode = if pattern == Pattern::Random { "randread" } else { "read" };
    let dir = tempfile::Builder::new().prefix("ringway-lab-").tempdir()?;
    let load = fio::Load { mode, bytes, depth };
    let (host, start) = (HostTime::now()?, std::time::Instant::now());
    let to = To::Direct(&place.images.disk);
    let ran = fio::run(to, DISK_BYTES, dir.path(), load, window.measure, place.placement.client)?;
    let busy_s = HostTime::now()?.busy_s - host.busy_s;
    let mut sample = ran.sample;
    let other = (busy_s - ran.cpu_s).max(0.0) / start.elapsed().as_secs_f64();
    sample.insert("other_cpus".into(), other);
    Ok(sample)
}

/// Returns the client's way to wait, for cell ids.
#[must_use]
pub fn wait_id(wait: Wait) -> &'static str {
    if wait == Wait::Sleep { "sleep" } else { "poll" }
}
