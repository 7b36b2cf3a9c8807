//! The systems of the block experiments: how each is started, and what it is called.

use std::path::{Path, PathBuf};

use anyhow::Result;
use testkit::process::{Backend, StorageDaemon, Target};

use super::client::{self, Load, Window};
use super::loopback::Loopback;
use crate::cpu::{self, Placement};
use crate::experiment::Sample;

/// Bytes of null and memory disks, and of images.
pub const DISK_BYTES: u64 = 64 << 20;

/// What is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Nothing; no data moves.
    Null,
    /// Memory: ours of the process, the peer's a file on tmpfs.
    Memory,
    /// A file that is in the page cache.
    Cached,
    /// The same file, read past the page cache.
    Direct,
}

/// One system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// `ringway-blk`, polling or not; `writeback` is its cache mode for files.
    Ringway {
        /// `--poll always`, else `--poll off`.
        poll: bool,
        /// `--cache writeback`, else `--cache none`.
        writeback: bool,
    },
    /// `qemu-storage-daemon`.
    Daemon {
        /// `poll-max-ns=0`, else its default.
        no_poll: bool,
        /// `cache.direct=on` for files.
        direct: bool,
    },
    /// The client's own limit.
    Loopback,
}

/// The images, removed when dropped.
#[derive(Debug)]
pub struct Images {
    /// On a disk.
    pub disk: PathBuf,
    /// On tmpfs.
    pub tmpfs: PathBuf,
    _dirs: [tempfile::TempDir; 2],
}

impl Images {
    /// Makes the images and brings them into the page cache.
    ///
    /// # Errors
    /// If there is no room.
    pub fn create(scratch: &Path) -> Result<Self> {
        let dirs = [image_dir(scratch)?, image_dir(Path::new("/dev/shm"))?];
        let disk = dirs[0].path().join("disk.img");
        let tmpfs = dirs[1].path().join("memory.img");
        super::image::create(&disk, DISK_BYTES)?;
        super::image::create(&tmpfs, DISK_BYTES)?;
        Ok(Self { disk, tmpfs, _dirs: dirs })
    }
}

fn image_dir(parent: &Path) -> Result<tempfile::TempDir> {
    use anyhow::Context;
    let made = tempfile::Builder::new().prefix("ringway-lab-").tempdir_in(parent);
    made.with_context(|| format!("cannot make images in {}; give --scratch", parent.display()))
}

impl System {
    /// The name in tables.
    #[must_use]
    pub fn name(&self, medium: Medium) -> String {
        let is_file = matches!(medium, Medium::Cached | Medium::Direct);
        match self {
            Self::Ringway { poll, writeback } => {
                let poll = if *poll { "always" } else { "off" };
                let cache = match (is_file, writeback) {
                    (false, _) => "",
                    (true, true) => " --cache writeback",
                    (true, false) => " --cache none",
                };
                format!("ringway-blk --poll {poll}{cache}")
            }
            Self::Daemon { no_poll, direct } => {
                let poll = if *no_poll { " poll-max-ns=0" } else { "" };
                let cache = match (is_file, direct) {
                    (false, _) => "",
                    (true, true) => " direct",
                    (true, false) => " buffered",
                };
                format!("qsd{poll}{cache}")
            }
            Self::Loopback => "(client's own limit)".to_owned(),
        }
    }

    /// The peer that stands in for this system in a control run; peers stand in for themselves.
    #[must_use]
    pub fn stand_in(self) -> Self {
        match self {
            Self::Ringway { poll, writeback } => {
                Self::Daemon { no_poll: !poll, direct: !writeback }
            }
            other => other,
        }
    }

    /// Starts the system on its CPU, measures it, ends it.
    ///
    /// # Errors
    /// If it does not start or does not serve.
    pub fn measure(
        self,
        medium: Medium,
        images: &Images,
        load: Load,
        window: Window,
        placement: Placement,
    ) -> Result<Sample> {
        if self == Self::Loopback {
            let device = Loopback::start(placement.backend, DISK_BYTES)?;
            let time = || device.time_s();
            let sample = client::measure(device.socket(), load, window, placement.client, time)?;
            device.finish()?;
            return Ok(sample);
        }
        let backend = cpu::started_on(placement.backend, || self.start(medium, images))?;
        if medium == Medium::Memory {
            client::fill(backend.socket())?;
        }
        let pid = backend.process.id();
        let time = || cpu::process_time_s(pid);
        client::measure(backend.socket(), load, window, placement.client, time)
    }

    fn start(self, medium: Medium, images: &Images) -> Result<Backend> {
        match self {
            Self::Ringway { poll, writeback } => {
                let size = DISK_BYTES.to_string();
                let file = images.disk.display().to_string();
                let (option, value) = match medium {
                    Medium::Null => ("--null", &size),
                    Medium::Memory => ("--memory", &size),
                    Medium::Cached | Medium::Direct => ("--blk-file", &file),
                };
                let poll = if poll { "always" } else { "off" };
                let cache = if writeback { "writeback" } else { "none" };
                let options = [option, value, "--poll", poll, "--cache", cache];
                Ok(Backend::ringway_blk(&options)?)
            }
            Self::Daemon { no_poll, direct } => {
                let target = match medium {
                    Medium::Null => Target::Null(DISK_BYTES),
                    Medium::Memory => Target::File(images.tmpfs.clone()),
                    Medium::Cached | Medium::Direct => Target::File(images.disk.clone()),
                };
                let mut options = StorageDaemon::new(target);
                options.direct = direct && medium != Medium::Memory;
                options.poll_max_ns = no_poll.then_some(0);
                Ok(Backend::storage_daemon(&options)?)
            }
            Self::Loopback => anyhow::bail!("the loopback device is no process"),
        }
    }
}
