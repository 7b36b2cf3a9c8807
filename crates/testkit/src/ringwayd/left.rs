//! What belongs to one test's daemon, told by its directory.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::process::PROCESS_DEADLINE;
use crate::raw::guest::wait_readable;

/// A process that names the directory in its command line.
pub(super) struct Found {
    pub(super) pid: u32,
    pub(super) words: String,
    pidfd: OwnedFd,
}

/// Those that are there now, the dead ones that nobody has waited for left out.
pub(super) fn processes(dir: &Path) -> Vec<Found> {
    let name = dir.display().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        // First the descriptor, then the look: the number may belong to another by then.
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let found = Found { pid: pid.unsigned_abs(), words, pidfd };
        found.words.contains(&name).then_some(found)
    })
    .collect()
}

/// Ends them all.
pub(super) fn end(dir: &Path) {
    // One that is ended may have started another just before.
    while let found = processes(dir)
        && !found.is_empty()
    {
        for one in found {
            let _ = pidfd_send_signal(&one.pidfd, Signal::KILL);
            let _ = wait_readable(&[one.pidfd.as_fd()], PROCESS_DEADLINE);
        }
    }
}
