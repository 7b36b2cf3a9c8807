//! Control groups of one test's daemon, read as an administrator reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::process::PROCESS_DEADLINE;

/// Pause before the next attempt to remove a group, while the kernel removes processes that ended.
const LEAVE_PAUSE: Duration = Duration::from_millis(10);
/// Names of the three slices.
const ALL: [&str; 3] = ["control", "datapath", "guests"];

/// Slices of a daemon. Groups are named below them: `guests/UUID`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slices {
    base: PathBuf,
    name: String,
}

impl Slices {
    /// Returns the slices that clients of this socket may join. `None`: there are none.
    pub(super) fn of(socket: &Path) -> Option<Self> {
        let mut link = socket.as_os_str().to_owned();
        link.push(".control");
        let entrance = fs::read_link(link).ok()?;
        // The link leads to BASE/NAME-control/clients/FILE.
        let control = entrance.parent()?.parent()?;
        let name = control.file_name()?.to_str()?.strip_suffix("-control")?;
        Some(Self { base: control.parent()?.to_owned(), name: name.to_owned() })
    }

    /// Returns the path of a slice or of a group in it.
    #[must_use]
    pub fn path(&self, group: &str) -> PathBuf {
        self.base.join(format!("{}-{group}", self.name))
    }

    /// Returns the path of the group above the slices. Its processes are in no slice.
    #[must_use]
    pub fn outside(&self) -> &Path {
        &self.base
    }

    /// Returns the processes in a group, or none if there is no such group.
    #[must_use]
    pub fn members(&self, group: &str) -> BTreeSet<u32> {
        let text = fs::read_to_string(self.path(group).join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Returns the groups in a slice, with the processes in each.
    #[must_use]
    pub fn leaves(&self, slice: &str) -> BTreeMap<String, BTreeSet<u32>> {
        let entries = fs::read_dir(self.path(slice)).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        let names = folders.filter_map(|entry| entry.file_name().into_string().ok());
        names.map(|name| (name.clone(), self.members(&format!("{slice}/{name}")))).collect()
    }

    /// Returns the weights of control, datapath and guests, in units of cgroup version 2.
    #[must_use]
    pub fn weights(&self) -> [Option<u32>; 3] {
        let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u32>().ok();
        ALL.map(|slice| {
            let folder = self.path(slice);
            let shares =
                || Some(number(folder.join("cpu.shares"))?.saturating_mul(100).div_ceil(1024));
            number(folder.join("cpu.weight")).or_else(shares)
        })
    }

    /// Changes the weight of a slice without the daemon, in units of cgroup version 2.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses.
    pub fn set_weight(&self, slice: &str, weight: u32) -> Result<()> {
        let folder = self.path(slice);
        let (file, number) = match folder.join("cpu.weight") {
            file if file.exists() => (file, weight),
            _ => (folder.join("cpu.shares"), weight.saturating_mul(1024) / 100),
        };
        let set = fs::write(&file, number.to_string());
        set.map_err(|e| Error::io(format!("cannot write {}", file.display()), e))
    }

    /// Moves a process into a group. Creates the group if it does not exist.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses.
    pub fn put(&self, group: &str, pid: u32) -> Result<()> {
        let folder = self.path(group);
        let put = fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("cgroup.procs"), pid.to_string()));
        put.map_err(|e| Error::io(format!("cannot put {pid} into {}", folder.display()), e))
    }

    /// Moves a process out of all slices.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses.
    pub fn take_out(&self, pid: u32) -> Result<()> {
        let taken = fs::write(self.base.join("cgroup.procs"), pid.to_string());
        taken.map_err(|e| Error::io(format!("cannot take {pid} out of its slice"), e))
    }

    /// Returns whether any of the slices exists.
    #[must_use]
    pub fn are_there(&self) -> bool {
        ALL.iter().any(|slice| self.path(slice).exists())
    }

    /// Removes the slices, after the kernel has removed all processes that ended.
    pub(super) fn remove(&self) {
        let began = Instant::now();
        while self.are_there() && began.elapsed() < PROCESS_DEADLINE {
            for slice in ALL {
                for name in self.leaves(slice).keys() {
                    // Fails while a process in the group is ending.
                    let _busy = fs::remove_dir(self.path(&format!("{slice}/{name}")));
                }
                let _busy = fs::remove_dir(self.path(slice));
            }
            if self.are_there() {
                std::thread::sleep(LEAVE_PAUSE);
            }
        }
    }
}
