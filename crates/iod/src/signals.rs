//! SIGTERM and SIGINT.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Exit code of a process that a second signal ended before it was done.
const IMPATIENT: i32 = 130;

/// A descriptor from which one byte can be read for each signal that has come. Nothing else
/// happens: whoever reads it decides.
///
/// # Errors
/// The process may open no more descriptors.
pub fn count() -> io::Result<OwnedFd> {
    let (reader, writer) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader.into())
}

/// A descriptor that becomes readable when one of the signals has come. The second signal ends
/// the process at once: a flush on storage that hangs must not hold the terminal.
///
/// # Errors
/// The process may open no more descriptors.
pub fn watch() -> io::Result<OwnedFd> {
    let (reader, writer) = UnixStream::pair()?;
    let seen = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal finds the flag unset.
        flag::register_conditional_shutdown(signal, IMPATIENT, Arc::clone(&seen))?;
        flag::register(signal, Arc::clone(&seen))?;
        low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader.into())
}
