//! Processes that have been killed, but still have files open.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process_exit::exits_within;

/// `PF_EXITING` of the flags in `/proc/PID/stat` (proc(5)): the kernel ends this thread.
const EXITING: u64 = 4;
/// SIGKILL in the masks of pending signals in `/proc/PID/status`.
const KILLED: u64 = 1 << 8;

/// Waits until a process has ended, if it is about to. Returns false if it lives on.
pub(super) fn wait_end(pid: u32, at_most: Duration) -> bool {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let process = match pidfd_open(id, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(error) => return error == Errno::SRCH,
    };
    if !is_ending(pid) {
        return exits_within(&process, Duration::ZERO);
    }
    tracing::info!("waiting for the end of process {pid}");
    exits_within(&process, at_most)
}

fn is_ending(pid: u32) -> bool {
    let text = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    // First the signal: the kernel clears it before it sets the flag.
    text("status").is_ok_and(|status| is_killed(&status))
        || text("stat").is_ok_and(|stat| exits(&stat))
}

/// Returns whether `/proc/PID/status` has a pending SIGKILL.
fn is_killed(status: &str) -> bool {
    let masks = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    let mut masks = masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    masks.any(|mask| mask & KILLED != 0)
}

/// Returns whether `/proc/PID/stat` has the flag of an exit.
fn exits(stat: &str) -> bool {
    // The name of the program is in parentheses, and may have any characters.
    let behind_name = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = behind_name.split_whitespace().nth(6).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_end_is_told_from_proc() {
        let status = |pending: &str, shared: &str| {
            format!("Name:\tx\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\tffffffffffffffff\n")
        };
        assert!(is_killed(&status("0000000000000100", "0000000000000000")));
        assert!(is_killed(&status("0000000000000000", "0000000000000100")));
        assert!(!is_killed(&status("0000000000000200", "0000000000004000")));
        assert!(exits("7 (a ) b) S 1 7 7 0 -1 4194308 0 0"));
        assert!(!exits("7 (a ) b) S 1 7 7 0 -1 4194304 0 0"));
        for odd in ["", ")", "7 (a) S", "7 (a) S 1 7 7 0 -1 x"] {
            assert!(!exits(odd) && !is_killed(odd), "{odd}");
        }
    }

    #[test]
    fn only_the_end_of_a_killed_process_is_awaited() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(!wait_end(child.id(), Duration::from_secs(60)), "it lives");
        child.kill().unwrap();
        assert!(wait_end(child.id(), Duration::from_secs(60)));
        child.wait().unwrap();
        assert!(wait_end(child.id(), Duration::from_secs(60)), "it is gone");
        assert!(!wait_end(0, Duration::ZERO) && !wait_end(u32::MAX, Duration::ZERO));
    }
}
