//! Signals.
//!
//! | signals | effect |
//! |---|---|
//! | SIGTERM, SIGINT, SIGHUP | the program ends in order |
//! | SIGQUIT, SIGILL, SIGABRT, SIGFPE, SIGSEGV, SIGBUS, SIGSYS, SIGTRAP | the process ends at once |
//! | SIGPIPE, SIGXFSZ, SIGXCPU, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR | none |
//!
//! A program that was started with SIGHUP ignored, as by nohup(1), goes on ignoring it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Exit code of a process that a second signal ended early.
const IMPATIENT: i32 = 130;

/// Signals without effect. The process itself can cause some of them: a write beyond the limit of a
/// file's size (SIGXFSZ) and a log line to the terminal of another job (SIGTTOU). As the signal is
/// blocked, the write fails or succeeds instead of ending or stopping the process.
const BLOCKED: [Signal; 12] = [
    Signal::SIGXFSZ,
    Signal::SIGXCPU,
    Signal::SIGTTOU,
    Signal::SIGTTIN,
    Signal::SIGPIPE,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGPWR,
];

/// Blocks the signals that have no effect. Threads inherit this, so a program calls it before it
/// starts the first one.
///
/// # Errors
/// The kernel knows none of these signals.
pub(crate) fn block() -> io::Result<()> {
    Ok(SigSet::from_iter(BLOCKED).thread_block()?)
}

/// Returns a descriptor from which one byte can be read for each signal to end. These signals have
/// no other effect: the reader decides.
///
/// # Errors
/// The process cannot open more descriptors.
pub fn count() -> io::Result<OwnedFd> {
    let (reader, writer) = UnixStream::pair()?;
    for signal in to_end()? {
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader.into())
}

/// Returns a descriptor that becomes readable on the first signal to end. The second signal ends
/// the process at once, because a flush on hung storage must not block the terminal.
///
/// # Errors
/// The process cannot open more descriptors.
pub fn watch() -> io::Result<OwnedFd> {
    let (reader, writer) = UnixStream::pair()?;
    let seen = Arc::new(AtomicBool::new(false));
    for signal in to_end()? {
        // The order matters: the first signal must find the flag unset.
        flag::register_conditional_shutdown(signal, IMPATIENT, Arc::clone(&seen))?;
        flag::register(signal, Arc::clone(&seen))?;
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader.into())
}

/// Returns the signals that end a program in order.
fn to_end() -> io::Result<Vec<i32>> {
    let mut signals = vec![SIGTERM, SIGINT];
    if !is_ignored(&std::fs::read_to_string("/proc/self/status")?, SIGHUP) {
        signals.push(SIGHUP);
    }
    Ok(signals)
}

/// Returns whether a process with this status (proc_pid_status(5)) ignores the signal.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "Name:\tringway-io\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, SIGHUP));
        assert!(!is_ignored(status, SIGINT) && !is_ignored("", SIGHUP));
    }
}
