//! The time slice of a thread: how long the kernel lets it run before it considers another that
//! waits.
//!
//! No library has these system calls.
//!
//! # Model
//! A thread that wakes during another thread's time slice waits for the end of that time slice.
//! The kernel notices the end only at a tick, every 1 to 10 ms. A shorter time slice is usually
//! over by then, so a thread that wakes and has CPU time due runs at once. Time slices give no
//! thread more or less CPU time. Children and executed programs inherit the time slice.
//!
//! Source: sched_setattr(2); Linux 6.12 (857b158dc5e8, "sched/eevdf: Use sched_attr::sched_runtime
//! to set request/slice suggestion"). An older kernel has no time slices of threads, and keeps
//! none.
#![allow(unsafe_code)] // Two system calls.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::HashSet;
use std::fs;
use std::io;
use std::mem::{size_of, zeroed};
use std::time::Duration;

use libc::{
    ESRCH, SCHED_BATCH, SCHED_OTHER, SYS_sched_getattr, SYS_sched_setattr, c_int, sched_attr,
};
use rustix::thread::Pid;

/// Shortest time slice that the kernel grants.
pub const MIN_SLICE: Duration = Duration::from_micros(100);

/// Returns the time slice of `thread`, or of the calling thread for `None`.
///
/// The result is `None` if the thread has no time slice: the kernel is older, or the thread has
/// another scheduling policy.
///
/// # Errors
/// The thread does not exist, or a system call filter denies the call.
pub fn slice(thread: Option<Pid>) -> io::Result<Option<Duration>> {
    Ok(Some(attributes(thread)?).filter(has_slice).map(|of| Duration::from_nanos(of.sched_runtime)))
}

/// Sets the time slice of `thread`, or of the calling thread for `None`.
///
/// The kernel accepts 0.1 to 100 ms and clamps other values. Returns false, and changes nothing, if
/// the thread has no time slice.
///
/// # Errors
/// The thread does not exist, another user owns it, or this process lacks the permission.
pub fn set_slice(thread: Option<Pid>, slice: Duration) -> io::Result<bool> {
    let mut of = attributes(thread)?;
    if !has_slice(&of) {
        return Ok(false);
    }
    of.sched_runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    change(thread, &of).map(|()| true)
}

/// Sets the time slice of all threads of `process`, or of this process for `None`.
///
/// Threads that they start later inherit it. Returns false if no thread has a time slice.
///
/// # Errors
/// The errors of [`set_slice`] and of reading `/proc`. Some threads may already have the new time
/// slice then.
pub fn set_slices(process: Option<Pid>, slice: Duration) -> io::Result<bool> {
    let process = process.map_or_else(|| "self".to_owned(), |id| id.as_raw_nonzero().to_string());
    let (mut seen, mut any) = (HashSet::new(), false);
    loop {
        let before = seen.len();
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let number = thread?.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(thread) = number.and_then(Pid::from_raw) else { continue };
            if !seen.insert(thread) {
                continue;
            }
            match set_slice(Some(thread), slice) {
                Ok(has) => any |= has,
                // The thread has ended.
                Err(error) if error.raw_os_error() == Some(ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        // Repeat until no new thread appears: a thread without its new time slice may have started
        // another.
        if seen.len() == before {
            return Ok(any);
        }
    }
}

fn attributes(thread: Option<Pid>) -> io::Result<sched_attr> {
    // SAFETY: `sched_attr` consists of integers, for which all-zero bytes are valid.
    let mut of: sched_attr = unsafe { zeroed() };
    let bytes = size_of::<sched_attr>();
    // SAFETY: the kernel writes at most `bytes` bytes, the size of the structure.
    answered(unsafe { libc::syscall(SYS_sched_getattr, raw(thread), &raw mut of, bytes, 0) })?;
    Ok(of)
}

fn change(thread: Option<Pid>, of: &sched_attr) -> io::Result<()> {
    // SAFETY: `size` in the structure is its real size, and the kernel only reads it.
    answered(unsafe { libc::syscall(SYS_sched_setattr, raw(thread), &raw const *of, 0) })
}

fn has_slice(of: &sched_attr) -> bool {
    let fair =
        [SCHED_OTHER, SCHED_BATCH].iter().any(|fair| of.sched_policy == fair.cast_unsigned());
    fair && of.sched_runtime > 0
}

/// Converts a thread to the system call's argument: 0 is the calling thread.
fn raw(thread: Option<Pid>) -> c_int {
    thread.map_or(0, |thread| thread.as_raw_nonzero().get())
}

fn answered(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc::channel;

    use libc::SCHED_IDLE;

    use super::*;

    #[test]
    fn a_turn_is_kept_and_inherited_where_the_kernel_has_turns() {
        let Some(before) = slice(None).unwrap() else {
            eprintln!(
                "nothing here shows that turns are kept: this kernel has none (Linux 6.12 has)"
            );
            assert!(!set_slice(None, MIN_SLICE).unwrap());
            assert_eq!(slice(None).unwrap(), None);
            assert!(!set_slices(None, MIN_SLICE).unwrap());
            return;
        };
        assert!(before > MIN_SLICE, "{before:?}");
        assert!(set_slice(None, MIN_SLICE).unwrap());
        assert_eq!(slice(None).unwrap(), Some(MIN_SLICE));
        let child = std::thread::spawn(|| slice(None).unwrap());
        assert_eq!(child.join().unwrap(), Some(MIN_SLICE));
        assert!(set_slice(None, Duration::ZERO).unwrap(), "back to what is usual");
        assert_eq!(slice(None).unwrap(), Some(before));
        let other = rustix::thread::gettid();
        let set = std::thread::spawn(move || set_slice(Some(other), 2 * MIN_SLICE).unwrap());
        assert!(set.join().unwrap());
        assert_eq!(slice(Some(other)).unwrap(), Some(2 * MIN_SLICE));
        all_threads_of_this_process_get_one();
    }

    // The test changes the time slice of all threads of the process, so it is the only one that
    // does.
    fn all_threads_of_this_process_get_one() {
        // `SCHED_IDLE` has no time slices.
        let threads = [SCHED_IDLE, SCHED_OTHER].map(|policy| {
            let ((id_tx, id_rx), (end, ended)) = (channel(), channel::<()>());
            let thread = std::thread::spawn(move || {
                let mut of = attributes(None).unwrap();
                of.sched_policy = policy.cast_unsigned();
                change(None, &of).unwrap();
                id_tx.send(rustix::thread::gettid()).unwrap();
                ended.recv().unwrap_err();
            });
            (id_rx.recv().unwrap(), end, thread)
        });
        let wanted = 3 * MIN_SLICE;
        assert!(set_slices(None, wanted).unwrap());
        let slices = threads.each_ref().map(|(id, ..)| slice(Some(*id)).unwrap());
        assert_eq!(slices, [None, Some(wanted)]);
        for (_, end, thread) in threads {
            drop(end);
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_thread_that_is_not_there_is_told() {
        let nobody = Pid::from_raw(i32::MAX);
        assert!(slice(nobody).is_err() && set_slice(nobody, MIN_SLICE).is_err());
        assert!(set_slices(nobody, MIN_SLICE).is_err());
    }
}
