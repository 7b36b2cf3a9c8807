//! Search for detached processes by how they were started.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::process_exit::exits_within;

/// Longest wait for a process to exit after each signal.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// Properties of a process to find. Every user can choose arguments and names, so these alone prove
/// nothing.
#[derive(Debug)]
pub(super) struct ProcessMatch<'a> {
    /// File name of the program that it runs.
    pub(super) program: &'a str,
    /// First argument.
    pub(super) first_arg: &'a str,
    /// Users that it may run as.
    pub(super) owners: &'a [u32],
}

impl ProcessMatch<'_> {
    /// Returns the matching processes in this network namespace.
    pub(super) fn running(&self) -> Vec<OwnedFd> {
        let own_netns = std::fs::read_link("/proc/self/ns/net").ok();
        let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_it = |id: i32| self.fits(id, own_netns.as_deref());
        let found = ids.filter(|id| is_it(*id)).filter_map(|id| {
            let process = pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()?;
            // Check again: the id may have been reused before the pidfd was opened.
            is_it(id).then_some(process)
        });
        found.collect()
    }

    fn fits(&self, id: i32, own_netns: Option<&Path>) -> bool {
        let proc_path = |what: &str| PathBuf::from(format!("/proc/{id}/{what}"));
        let line = std::fs::read(proc_path("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(self.first_arg.as_bytes())
            && std::fs::read_link(proc_path("exe")).is_ok_and(|file| is_named(&file, self.program))
            && std::fs::read_to_string(proc_path("status")).is_ok_and(|text| self.owns(&text))
            && std::fs::read_link(proc_path("ns/net")).ok().as_deref() == own_netns
    }

    /// Returns whether all user ids of the process, including the saved one, are in `owners`.
    fn owns(&self, status: &str) -> bool {
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        let is_owner = |word: &str| word.parse().is_ok_and(|user| self.owners.contains(&user));
        users.split_whitespace().count() > 0 && users.split_whitespace().all(is_owner)
    }
}

/// Returns whether this is the program's file, or was before an upgrade.
fn is_named(file: &Path, program: &str) -> bool {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_suffix(" (deleted)").unwrap_or(name) == program
}

/// Ends a process by SIGTERM, else by SIGKILL. Blocks. Returns whether it has exited.
pub(super) fn end(process: &OwnedFd) -> bool {
    [Signal::TERM, Signal::KILL].into_iter().any(|signal| {
        // The process may have exited already.
        let _gone = pidfd_send_signal(process, signal);
        exits_within(process, END_DEADLINE)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::Command;

    use rustix::process::geteuid;

    use super::*;
    use crate::binaries::in_path;

    #[test]
    fn a_process_is_found_by_what_it_is_and_not_by_what_it_is_called() {
        let file = in_path("sleep").unwrap().canonicalize().unwrap();
        let program = file.file_name().unwrap().to_str().unwrap();
        let (first_arg, owners) =
            ((100_000 + std::process::id()).to_string(), [geteuid().as_raw()]);
        let found = |program: &str, first_arg: &str, owners: &[u32]| {
            ProcessMatch { program, first_arg, owners }.running()
        };
        assert_eq!(found(program, &first_arg, &owners).len(), 0);
        let mut child = Command::new(&file).arg0("dnsmasq").arg(&first_arg).spawn().unwrap();
        // `spawn` returns just before the arguments can be read.
        let words = format!("/proc/{}/cmdline", child.id());
        while std::fs::read(&words).unwrap().is_empty() {
            std::thread::yield_now();
        }
        let others = [
            found("dnsmasq", &first_arg, &owners).len(),
            found(program, &first_arg[1..], &owners).len(),
            found(program, &first_arg, &[]).len(),
        ];
        let ended: Vec<_> = found(program, &first_arg, &owners).iter().map(end).collect();
        // End the child whatever the search found.
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!((others, ended), ([0, 0, 0], vec![true]));
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
        assert_eq!(found(program, &first_arg, &owners).len(), 0);
    }

    #[test]
    fn every_user_that_a_process_is_counts() {
        let process_match = ProcessMatch { program: "dnsmasq", first_arg: "", owners: &[0, 999] };
        for (text, owned) in [
            ("Name:\tdnsmasq\nUid:\t999\t999\t999\t999\nGid:\t1\t1\t1\t1\n", true),
            ("Name:\tdnsmasq\nUid:\t0\t999\t0\t999\n", true),
            ("Name:\tdnsmasq\nUid:\t1000\t0\t0\t0\n", false),
            ("Name:\tUid:\t0\nUid:\t1000\t1000\t1000\t1000\n", false),
            ("Uid:\n", false),
            ("", false),
        ] {
            assert_eq!(process_match.owns(text), owned, "{text}");
        }
        for (file, is_it) in [
            ("/usr/sbin/dnsmasq", true),
            ("/usr/sbin/dnsmasq (deleted)", true),
            ("/usr/sbin/not-dnsmasq", false),
            ("/", false),
        ] {
            assert_eq!(is_named(Path::new(file), "dnsmasq"), is_it, "{file}");
        }
    }
}
