//! SIGTERM and SIGINT.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Exit code of a process that a second signal ended early.
const IMPATIENT: i32 = 130;

/// Returns a descriptor from which one byte can be read for each signal. Signals have no other
/// effect: the reader decides.
///
/// # Errors
/// The process cannot open more descriptors.
pub fn count() -> io::Result<OwnedFd> {
    let (reader, writer) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader.into())
}

/// Returns a descriptor that becomes readable on the first signal. The second signal ends the
/// process at once, because a flush on hung storage must not block the terminal.
///
/// # Errors
/// The process cannot open more descriptors.
pub fn watch() -> io::Result<OwnedFd> {
    let (reader, writer) = UnixStream::pair()?;
    let seen = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // The order matters: the first signal must find the flag unset.
        flag::register_conditional_shutdown(signal, IMPATIENT, Arc::clone(&seen))?;
        flag::register(signal, Arc::clone(&seen))?;
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader.into())
}
