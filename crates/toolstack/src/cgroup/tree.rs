//! The slices of one instance.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::Pid;

use super::leaf::Slice;
use super::op::{CgroupOp, is, members, os, remove};
use super::remove_leaf::{PAUSE, TURNS};
use super::{CgroupError, Leaf, PROCESSES, Version, Weights, controller, units, v1, v2};

/// Longest name of an instance.
pub(super) const NAME_BYTES_MAX: usize = 32;

/// The slices of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceTree {
    version: Version,
    base: PathBuf,
    name: String,
    /// Who asks systemd, where the slices are systemd's.
    systemctl: Option<PathBuf>,
}

impl SliceTree {
    /// The tree of the instance `name`, whether it was made or not. `root` is `/` but in tests.
    ///
    /// # Errors
    /// The name is none, there is no CPU controller, or systemd manages the groups of this host and
    /// has none for this instance.
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

    /// Makes the slices, and the leaves of the control slice.
    ///
    /// # Errors
    /// The system refuses.
    pub fn make(&self) -> Result<(), CgroupError> {
        self.slices().iter().try_for_each(CgroupOp::carry_out)?;
        self.add(Leaf::Daemon)?;
        self.add(Leaf::Clients)
    }

    /// Gives the slices these weights, at once and for who is in them.
    ///
    /// # Errors
    /// A weight is out of bounds, or the tree was not made, or systemd refuses.
    pub fn set(&self, weights: Weights) -> Result<(), CgroupError> {
        weights.check()?;
        Slice::ALL.iter().try_for_each(|slice| self.weight(*slice, weights).carry_out())
    }

    /// What the slices' weights are; `None`: it was not made.
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

    /// Makes a leaf.
    ///
    /// # Errors
    /// The system refuses, or the tree was not made.
    pub fn add(&self, group: Leaf) -> Result<(), CgroupError> {
        CgroupOp::Make(self.path(group)).carry_out()
    }

    /// Where a leaf is.
    pub fn path(&self, group: Leaf) -> PathBuf {
        self.folder(group.slice()).join(group.name())
    }

    /// The file of a leaf by which a process without other threads joins it by itself, as
    /// [`door::enter`](super::door::enter) does.
    ///
    /// Whoever moves a process with all its threads waits until no process of the host begins or ends
    /// one. A thread that joins alone, as version 1 lets it, waits for nobody.
    pub fn join_file(&self, group: Leaf) -> PathBuf {
        self.path(group).join(match self.version {
            Version::One => v1::THREADS,
            Version::Two => PROCESSES,
        })
    }

    /// Puts a process with all its threads into a leaf; what they start will be there too.
    ///
    /// # Errors
    /// There is no such process or leaf, or the system refuses.
    pub fn join(&self, group: Leaf, pid: u32) -> Result<(), CgroupError> {
        let file = self.path(group).join(PROCESSES);
        match CgroupOp::Write(file, pid.to_string()).carry_out() {
            Err(CgroupError::Os { source, .. }) if is(&source, Errno::SRCH) => {
                Err(CgroupError::Gone { pid })
            }
            outcome => outcome,
        }
    }

    /// Sees that a process is in a leaf, which is made if it is not there, and that its threads have
    /// the shortest turns. True: the process was elsewhere.
    ///
    /// # Errors
    /// As [`Self::add`] and [`Self::join`].
    pub fn ensure_member(&self, group: Leaf, pid: u32) -> Result<bool, CgroupError> {
        let elsewhere = !members(&self.path(group)).contains(&pid);
        if elsewhere {
            self.add(group)?;
            self.join(group, pid)?;
        }
        shorten(pid);
        Ok(elsewhere)
    }

    /// Sees that this process is in the control slice, and that its threads have the shortest turns:
    /// they do little when they wake, and it is waited for. systemd puts its own units there.
    ///
    /// # Errors
    /// As [`Self::join`].
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

    /// The group in which this process is.
    pub fn group_of_self(&self) -> Option<PathBuf> {
        let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = match self.version {
            Version::One => v1::path(&text),
            Version::Two => v2::path(&text),
        };
        Some(self.base.join(path?.trim_start_matches('/')))
    }

    /// Every leaf that is there, whoever made it: after a restart those of machines that are gone.
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

    /// Removes a leaf. Nothing happens if it is not there.
    ///
    /// # Errors
    /// Processes are in it, or the system refuses.
    pub fn remove(&self, group: Leaf) -> Result<(), CgroupError> {
        remove(&self.path(group))
    }

    /// Removes every leaf of a machine or of storage in which nobody is; those.
    ///
    /// # Errors
    /// The hierarchy cannot be read.
    pub fn sweep(&self) -> Result<Vec<Leaf>, CgroupError> {
        let swept = |group: &Leaf| group.is_of_machines() && self.remove(*group).is_ok();
        Ok(self.leaves()?.into_iter().filter(swept).collect())
    }

    /// Removes all leaves, and the slices unless they are systemd's.
    ///
    /// # Errors
    /// Processes are in one of them, or the system refuses; the others may be gone then.
    pub fn clear(&self) -> Result<(), CgroupError> {
        self.leaves()?.into_iter().try_for_each(|group| self.remove(group))?;
        if self.systemctl.is_some() {
            return Ok(());
        }
        Slice::ALL.into_iter().try_for_each(|slice| remove(&self.folder(slice)))
    }

    /// Puts everybody of the control slice into the group `home` and removes everything, if no machine
    /// and no storage has a leaf: a daemon that ends leaves nothing behind that nobody uses. False:
    /// somebody does, or the slices are systemd's. Blocks for up to half a second.
    ///
    /// # Errors
    /// The system refuses.
    pub fn tear_down(&self, home: &Path) -> Result<bool, CgroupError> {
        self.sweep()?;
        let used = |group: Leaf| group.is_of_machines();
        if self.systemctl.is_some() || self.leaves()?.into_iter().any(used) {
            return Ok(false);
        }
        // The kernel takes a thread out a moment after its end, and tells nobody; and somebody may
        // be just beginning another process.
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

    /// Where the leaves of a slice lie.
    fn folder(&self, slice: Slice) -> PathBuf {
        match self.systemctl {
            Some(_) => units::folder(&self.base, slice),
            None => self.slice(slice),
        }
    }

    /// The group that has the weight.
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

    /// What makes the slices, as far as they are ours to make.
    pub(super) fn slices(&self) -> Vec<CgroupOp> {
        let two = self.version == Version::Two;
        if self.systemctl.is_some() {
            // What systemd has started there keeps the place, and is in the way in version 2.
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

/// Gives the threads of a process the shortest turns, if they have any. What cannot be had is told in
/// the log: only who waits for a CPU beside them notices.
fn shorten(pid: u32) {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    match sched::set_turns(Some(process), sched::SHORTEST) {
        // It has ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(pid, "its threads have turns as usual: {error}"),
        Ok(_) => {}
    }
}

/// Whether groups can be named so: 1 to 32 lower-case letters and digits.
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
