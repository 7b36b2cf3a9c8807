//! Processes, files and devices of one test's daemon, identified by its directory.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::{Error, Result};
use crate::process::{PROCESS_DEADLINE, Worker, children};
use crate::raw::guest::wait_readable;

/// Prefixes of the files in the folder of a `ringway-io` that serves nothing.
const OF_DATAPATH: [&str; 5] = ["control.sock", "disks", "log", NICS, "owner.json"];
/// Folder that lists the NICs of a `ringway-io`.
const NICS: &str = "nics";
/// Prefix of the names of uplinks.
const UPLINK: &str = "rwu";

/// Words in the command lines of children that outlive a daemon. A child that still runs the
/// daemon's image has them too.
const OUTLIVE: [&str; 2] = ["qemu", "ringway-io"];

/// A process with the directory in its command line.
pub(super) struct LeftoverProcess {
    pub(super) pid: u32,
    pub(super) words: String,
    pidfd: OwnedFd,
}

/// Returns these processes, without zombies.
pub(super) fn processes(dir: &Path) -> Vec<LeftoverProcess> {
    let name = dir.display().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        // Open the descriptor first: otherwise the id might belong to another process by then.
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let leftover_process = LeftoverProcess { pid: pid.unsigned_abs(), words, pidfd };
        leftover_process.words.contains(&name).then_some(leftover_process)
    })
    .collect()
}

/// Returns the children of a daemon that end with it, with their command lines.
pub(super) fn helpers(daemon: u32) -> Result<Vec<(Worker, String)>> {
    let found = children(daemon).map_err(|e| Error::io("cannot find the daemon's children", e))?;
    let with_words = found.into_iter().map(|one| {
        let words = fs::read(format!("/proc/{}/cmdline", one.id())).unwrap_or_default();
        (one, String::from_utf8_lossy(&words).replace('\0', " "))
    });
    let is_helper =
        |words: &str| !words.is_empty() && !OUTLIVE.iter().any(|one| words.contains(one));
    Ok(with_words.filter(|(_, words)| is_helper(words)).collect())
}

/// Kills all these processes, and removes the network devices.
pub(super) fn end(dir: &Path) {
    // A process may have started another just before it was killed, so repeat.
    while let leftover_process = processes(dir)
        && !leftover_process.is_empty()
    {
        for one in leftover_process {
            let _ = pidfd_send_signal(&one.pidfd, Signal::KILL);
            let _ = wait_readable(&[one.pidfd.as_fd()], PROCESS_DEADLINE);
        }
    }
    for name in network_devices(dir) {
        // If the device does not exist, the goal is reached.
        let _gone = Command::new("ip").args(["link", "del", "dev", &name]).output();
    }
}

/// Returns bridges and TAP devices with the directory in their alias, which the daemon sets.
fn network_devices(dir: &Path) -> Vec<String> {
    let ours = dir.display().to_string();
    let is = |device: &PathBuf| {
        let alias = fs::read_to_string(device.join("ifalias"));
        alias.is_ok_and(|alias| alias.contains(&ours))
    };
    let devices = entries(Path::new("/sys/class/net")).into_iter().filter(is);
    devices.filter_map(|device| Some(device.file_name()?.to_str()?.to_owned())).collect()
}

/// Returns everything that belongs to VMs and their disks, one line each.
pub(super) fn of_machines(dir: &Path) -> Vec<String> {
    let run = dir.join("run");
    let mut left = of_processes(dir);
    left.extend(entries(&run.join("vm")).iter().map(|path| shown("domain", path)));
    for folder in entries(&run.join("io")) {
        for path in entries(&folder) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if OF_DATAPATH.iter().any(|known| name.starts_with(known)) {
                // Disks or NICs that the `ringway-io` serves.
                let what = if name == NICS { "nic" } else { "disk" };
                left.extend(entries(&path).iter().map(|path| shown(what, path)));
            } else {
                left.push(shown("file", &path));
            }
        }
    }
    let uplinks = network_devices(dir).into_iter().filter(|name| name.starts_with(UPLINK));
    left.extend(uplinks.map(|name| format!("uplink {name}")));
    left.extend(locked(&dir.join("state/sr")).iter().map(|path| shown("lock of", path)));
    left
}

/// Returns emulators, surplus keepers and workers of one control socket, and workers without a
/// keeper.
fn of_processes(dir: &Path) -> Vec<String> {
    let (mut left, mut keepers, mut workers) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for LeftoverProcess { pid, words, .. } in processes(dir) {
        let mut each = words.split(' ');
        let program = each.next().unwrap_or_default();
        if program.contains("qemu") {
            left.push(format!("process {pid} {program}"));
        } else if program.ends_with("ringway-io") {
            let control = each.skip_while(|word| *word != "--control").nth(1).unwrap_or_default();
            let serve = if words.contains(" --worker") { &mut workers } else { &mut keepers };
            if !serve.insert(control.to_owned()) {
                left.push(format!("process {pid}, another {program} of {control}"));
            }
        }
    }
    let orphans = workers.difference(&keepers);
    left.extend(orphans.map(|control| format!("process of {control}, a worker without a keeper")));
    left
}

fn shown(what: &str, path: &Path) -> String {
    format!("{what} {}", path.display())
}

/// Returns the entries of a directory, or none if it does not exist.
fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Returns the locked images below this directory.
fn locked(storage: &Path) -> Vec<PathBuf> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let inode = |line: &str| {
        let place = line.split_whitespace().find(|word| word.matches(':').count() == 2)?;
        place.rsplit(':').next()?.parse::<u64>().ok()
    };
    let locks: BTreeSet<u64> = locks.lines().filter_map(inode).collect();
    let images = entries(storage).into_iter().flat_map(|sr| entries(&sr));
    let held = |path: &PathBuf| fs::metadata(path).is_ok_and(|about| locks.contains(&about.ino()));
    images.filter(held).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::process::Process;

    use super::*;

    #[test]
    fn helpers_are_those_that_are_to_end_with_their_daemon() {
        // The second child is stopped, and its command line contains `ringway-io`.
        let script = "sleep 1000 & sh -c 'kill -STOP $$' ringway-io & wait";
        let daemon = Process::start(Command::new("sh").args(["-c", script])).unwrap();
        let end = Instant::now() + PROCESS_DEADLINE;
        // Wait until both children have executed their programs.
        let seen = loop {
            let seen = helpers(daemon.id()).unwrap();
            let words: Vec<_> = seen.iter().map(|(_, words)| words.trim_end()).collect();
            if words == ["sleep 1000"] && children(daemon.id()).unwrap().len() == 2 {
                break seen;
            }
            assert!(Instant::now() < end, "{words:?}");
        };
        let goes_on =
            |within| wait_readable(&[seen[0].0.ended().as_fd()], within).unwrap().is_none();
        assert!(goes_on(Duration::ZERO));
        drop(daemon);
        assert!(!goes_on(PROCESS_DEADLINE));
    }

    #[test]
    fn what_is_left_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        for made in ["run/vm", "run/io/ab/disks", "run/io/networks/nics", "state/sr/default"] {
            fs::create_dir_all(dir.path().join(made)).unwrap();
        }
        let file = |name: &str| fs::write(dir.path().join(name), "").unwrap();
        ["run/io/ab/control.sock", "run/io/ab/log", "state/sr/default/a.raw"]
            .into_iter()
            .for_each(file);
        assert_eq!(of_machines(dir.path()), Vec::<String>::new());
        fs::create_dir(dir.path().join("run/vm/uuid")).unwrap();
        let served = ["run/io/ab/x.sock", "run/io/ab/disks/x", "run/io/networks/nics/y"];
        served.into_iter().for_each(file);
        let image = fs::File::open(dir.path().join("state/sr/default/a.raw")).unwrap();
        rustix::fs::flock(&image, rustix::fs::FlockOperation::LockShared).unwrap();
        let mut left = of_machines(dir.path());
        left.sort();
        let ends = ["disks/x", "vm/uuid", "ab/x.sock", "default/a.raw", "nics/y"];
        assert_eq!(left.len(), ends.len(), "{left:?}");
        assert!(left.iter().zip(ends).all(|(line, end)| line.ends_with(end)), "{left:?}");
    }
}
