//! SIGHUP, which a terminal sends when it closes.
//!
//! A program that was started with this signal ignored, as by nohup(1), must go on ignoring it.

use std::io;

use rustix::process::Signal as Number;
use tokio::signal::unix::Signal;

/// Returns whether this process ignores SIGHUP. Call it before a handler is installed.
///
/// # Errors
/// The process cannot read its own status.
pub fn is_ignored() -> io::Result<bool> {
    Ok(is_ignored_in(&std::fs::read_to_string("/proc/self/status")?))
}

/// Waits for SIGHUP; for ever, if the process ignores it.
pub async fn recv(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns whether a process with this status (proc_pid_status(5)) ignores SIGHUP.
fn is_ignored_in(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (Number::HUP.as_raw() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let status = |mask| format!("Name:\tringway\nSigBlk:\t1\nSigIgn:\t{mask}\nSigCgt:\t1\n");
        assert!(is_ignored_in(&status("0000000000001001")));
        assert!(!is_ignored_in(&status("0000000000001000")) && !is_ignored_in(""));
    }
}
