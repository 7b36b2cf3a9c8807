//! Slices of one instance.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::Pid;

use super::leaf::Slice;
use super::op::{CgroupOp, is, members, os, remove};
use super::remove_leaf::{PAUSE, TURNS};
use super::{CgroupError, Leaf, PROCESSES, Version, Weights, controller, units, v1, v2};

/// Longest name of an instance, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 32;

/// Slices of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceTree {
    version: Version,
    base: PathBuf,
    name: String,
    /// Path of `systemctl`, if the slices belong to systemd.
    systemctl: Option<PathBuf>,
}

impl SliceTree {
    /// Finds the tree of the instance `name`, even if its groups do not exist. `root` is `/` except
    /// in tests.
    ///
    /// # Errors
    /// The name is invalid, or the host has no CPU controller, or systemd manages the groups and
    /// has no units for this instance.
    pub fn find(root: &Path, name: &str) -> Result<Self, CgroupError> {
        check_name(name)?;
        let (version, base) = controller(root).ok_or(CgroupError::NoController)?;
        let systemctl = match units::manages(root) {
            false => None,
            true => {
                let managed = || CgroupError::Managed { name: name.to_owned() };
                Some(units::found(root, &base, name).ok_or_else(managed)?)
            }
        };
        Ok(Self { version, base, name: name.to_owned(), systemctl })
    }

    /// Creates the slices, and the leaves of the control slice.
    ///
    /// # Errors
    /// A system call failed.
    pub fn make(&self) -> Result<(), CgroupError> {
        self.slices().iter().try_for_each(CgroupOp::carry_out)?;
        self.add(Leaf::Daemon)?;
        self.add(Leaf::Clients)
    }

    /// Sets the weights of the slices. They apply at once, also to running processes.
    ///
    /// # Errors
    /// A weight is out of range, the tree does not exist, or systemd refuses.
    pub fn set(&self, weights: Weights) -> Result<(), CgroupError> {
        weights.check()?;
        Slice::ALL.iter().try_for_each(|slice| self.weight(*slice, weights).carry_out())
    }

    /// Returns the weights of the slices; `None` if the tree does not exist.
    pub fn weights(&self) -> Option<Weights> {
        let of = |slice| match self.version {
            Version::One => v1::read(&self.slice(slice)),
            Version::Two => v2::read(&self.slice(slice)),
        };
        Some(Weights {
            control: of(Slice::Control)?,
            datapath: of(Slice::Datapath)?,
            guests: of(Slice::Guests)?,
        })
    }

    /// Creates a leaf.
    ///
    /// # Errors
    /// A system call failed, or the tree does not exist.
    pub fn add(&self, group: Leaf) -> Result<(), CgroupError> {
        CgroupOp::Make(self.path(group)).carry_out()
    }

    /// Returns the path of a leaf.
    pub fn path(&self, group: Leaf) -> PathBuf {
        self.folder(group.slice()).join(group.name())
    }

    /// Returns the file through which a single-threaded process joins the leaf itself, as
    /// [`client_access::enter`](super::client_access::enter) does.
    ///
    /// Moving a process with all its threads waits until no process of the host starts or ends a
    /// process. In version 1 a thread can join alone, without this wait.
    pub fn join_file(&self, group: Leaf) -> PathBuf {
        self.path(group).join(match self.version {
            Version::One => v1::THREADS,
            Version::Two => PROCESSES,
        })
    }

    /// Moves a process with all its threads into a leaf. Processes and threads that it starts join
    /// the same leaf.
    ///
    /// # Errors
    /// The process or the leaf does not exist, or a system call failed.
    pub fn join(&self, group: Leaf, pid: u32) -> Result<(), CgroupError> {
        let file = self.path(group).join(PROCESSES);
        match CgroupOp::Write(file, pid.to_string()).carry_out() {
            Err(CgroupError::Os { source, .. }) if is(&source, Errno::SRCH) => {
                Err(CgroupError::Gone { pid })
            }
            outcome => outcome,
        }
    }

    /// Ensures that a process is in a leaf and that its threads have the shortest time slices.
    ///
    /// Creates the leaf if it does not exist. Returns true if the process was elsewhere.
    ///
    /// # Errors
    /// The errors of [`Self::add`] and [`Self::join`].
    pub fn ensure_member(&self, group: Leaf, pid: u32) -> Result<bool, CgroupError> {
        let elsewhere = !members(&self.path(group)).contains(&pid);
        if elsewhere {
            self.add(group)?;
            self.join(group, pid)?;
        }
        shorten(pid);
        Ok(elsewhere)
    }

    /// Ensures that this process is in the control slice and that its threads have the shortest
    /// time slices.
    ///
    /// These threads do little work when they wake, and clients wait for it. systemd moves its own
    /// units there itself.
    ///
    /// # Errors
    /// The errors of [`Self::join`].
    pub fn join_control(&self) -> Result<(), CgroupError> {
        let slice = self.slice(Slice::Control);
        let there = self.systemctl.is_some()
            && self.group_of_self().is_some_and(|group| group.starts_with(&slice));
        if !there {
            return self.ensure_member(Leaf::Daemon, std::process::id()).map(drop);
        }
        shorten(std::process::id());
        Ok(())
    }

    /// Returns the group of this process.
    pub fn group_of_self(&self) -> Option<PathBuf> {
        let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = match self.version {
            Version::One => v1::path(&text),
            Version::Two => v2::path(&text),
        };
        Some(self.base.join(path?.trim_start_matches('/')))
    }

    /// Returns every existing leaf, including leaves of machines that ended before a restart.
    ///
    /// # Errors
    /// The hierarchy cannot be read.
    pub fn leaves(&self) -> Result<Vec<Leaf>, CgroupError> {
        let mut found = Vec::new();
        for slice in Slice::ALL {
            let folder = self.folder(slice);
            let entries = match std::fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries.map_err(|source| os("read", &folder, source))?,
            };
            for entry in entries {
                let name = entry.map_err(|source| os("read", &folder, source))?.file_name();
                found.extend(name.to_str().and_then(|name| Leaf::parse(slice, name)));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Removes a leaf. Does nothing if it does not exist.
    ///
    /// # Errors
    /// The leaf contains processes, or a system call failed.
    pub fn remove(&self, group: Leaf) -> Result<(), CgroupError> {
        remove(&self.path(group))
    }

    /// Removes every empty leaf of a machine, a storage repository or the switch, and returns these
    /// leaves.
    ///
    /// # Errors
    /// The hierarchy cannot be read.
    pub fn sweep(&self) -> Result<Vec<Leaf>, CgroupError> {
        let swept = |group: &Leaf| group.is_of_machines() && self.remove(*group).is_ok();
        Ok(self.leaves()?.into_iter().filter(swept).collect())
    }

    /// Removes all leaves, and the slices unless they belong to systemd.
    ///
    /// # Errors
    /// A leaf contains processes, or a system call failed. Other leaves may already be removed.
    pub fn clear(&self) -> Result<(), CgroupError> {
        self.leaves()?.into_iter().try_for_each(|group| self.remove(group))?;
        if self.systemctl.is_some() {
            return Ok(());
        }
        Slice::ALL.into_iter().try_for_each(|slice| remove(&self.folder(slice)))
    }

    /// Moves all processes of the control slice into the group `home` and removes all groups, if no
    /// machine, storage repository or switch has a leaf.
    ///
    /// A daemon that ends so leaves no unused groups. Returns false if a leaf is in use, or if the
    /// slices belong to systemd. Blocks for up to half a second.
    ///
    /// # Errors
    /// A system call failed.
    pub fn tear_down(&self, home: &Path) -> Result<bool, CgroupError> {
        self.sweep()?;
        let used = |group: Leaf| group.is_of_machines();
        if self.systemctl.is_some() || self.leaves()?.into_iter().any(used) {
            return Ok(false);
        }
        // The kernel removes a thread shortly after its exit, without a notification. A member may
        // also be starting another process.
        let mut turns = 1..TURNS;
        loop {
            self.send_home(home)?;
            match self.clear() {
                Err(CgroupError::Busy { .. }) if turns.next().is_some() => {
                    std::thread::sleep(PAUSE)
                }
                cleared => return cleared.map(|()| true),
            }
        }
    }

    fn send_home(&self, home: &Path) -> Result<(), CgroupError> {
        let file = home.join(PROCESSES);
        for pid in [Leaf::Daemon, Leaf::Clients].map(|leaf| members(&self.path(leaf))).concat() {
            match CgroupOp::Write(file.clone(), pid.to_string()).carry_out() {
                Err(CgroupError::Os { source, .. }) if is(&source, Errno::SRCH) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Returns the directory that contains the leaves of a slice.
    fn folder(&self, slice: Slice) -> PathBuf {
        match self.systemctl {
            Some(_) => units::folder(&self.base, slice),
            None => self.slice(slice),
        }
    }

    /// Returns the group that has the slice's weight.
    fn slice(&self, slice: Slice) -> PathBuf {
        self.base.join(match self.systemctl {
            Some(_) => units::unit(slice),
            None => format!("{}-{}", self.name, slice.name()),
        })
    }

    pub(super) fn weight(&self, slice: Slice, weights: Weights) -> CgroupOp {
        let (folder, weight) = (self.slice(slice), weights.of(slice));
        let plain = match self.version {
            Version::One => v1::weight(&folder, weight),
            Version::Two => v2::weight(&folder, weight),
        };
        match &self.systemctl {
            Some(systemctl) => units::ask(systemctl, slice, weight, plain),
            None => plain,
        }
    }

    /// Returns the changes that create the slices, without those that belong to systemd.
    pub(super) fn slices(&self) -> Vec<CgroupOp> {
        let two = self.version == Version::Two;
        if self.systemctl.is_some() {
            // In version 2 the process that systemd started there prevents delegation. It must stay
            // alive, so move it down.
            let steps =
                |folder: PathBuf| [CgroupOp::MoveDown(folder.clone()), CgroupOp::HandDown(folder)];
            let folders = Slice::ALL.into_iter().filter(|_| two).map(|slice| self.folder(slice));
            return folders.flat_map(steps).collect();
        }
        let hand_down = |folder| two.then_some(CgroupOp::HandDown(folder));
        let mut cgroup_ops: Vec<_> = hand_down(self.base.clone()).into_iter().collect();
        for slice in Slice::ALL {
            cgroup_ops.push(CgroupOp::Make(self.folder(slice)));
            cgroup_ops.extend(hand_down(self.folder(slice)));
        }
        cgroup_ops
    }
}

impl fmt::Display for SliceTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [control, datapath, guests] = Slice::ALL.map(|slice| self.slice(slice));
        let name =
            |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (datapath, guests) = (name(&datapath), name(&guests));
        let version = self.version.number();
        write!(f, "version {version}: {}, {datapath}, {guests}", control.display())
    }
}

/// Sets the shortest time slices for the threads of a process, if the kernel has time slices.
///
/// Failures are only logged: they affect only threads that wait for a CPU beside these.
fn shorten(pid: u32) {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    match sched::set_slices(Some(process), sched::MIN_SLICE) {
        // The process has ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(pid, "its threads keep the default slice: {error}"),
        Ok(_) => {}
    }
}

/// Checks an instance name: 1 to 32 lower-case letters and digits.
///
/// # Errors
/// [`CgroupError::Name`].
pub fn check_name(name: &str) -> Result<(), CgroupError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
        let name = name.chars().take(2 * NAME_BYTES_MAX).collect();
        return Err(CgroupError::Name { name, most: NAME_BYTES_MAX });
    }
    Ok(())
}
