//! The turn of a thread: how long the kernel lets it run before another one that waits is looked at.
//!
//! No library has these system calls.
//!
//! # Model
//! Whoever wakes while another thread's turn lasts waits for its end, and an end is only seen at a
//! tick, every 1 to 10 ms. With a shorter turn it is most often over by then, and who wakes runs at
//! once if it is owed time. Nobody gets more or less CPU time by it. Children and programs that are
//! executed inherit it.
//!
//! Source: sched_setattr(2); Linux 6.12 (857b158dc5e8, "sched/eevdf: Use sched_attr::sched_runtime to
//! set request/slice suggestion"). An older kernel has no turns of threads, and keeps none.
#![allow(unsafe_code)] // Two system calls.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::mem::{size_of, zeroed};
use std::time::Duration;

use libc::{
    ESRCH, SCHED_BATCH, SCHED_OTHER, SYS_sched_getattr, SYS_sched_setattr, c_int, sched_attr,
};
use rustix::thread::Pid;

/// The shortest turn that the kernel gives.
pub const SHORTEST: Duration = Duration::from_micros(100);

/// The turn of a thread, by default of this one. None: it has no turns, because the kernel is older or
/// because it is scheduled in another way.
///
/// # Errors
/// There is no such thread, or this process may not ask (a filter of system calls).
pub fn turn(thread: Option<Pid>) -> io::Result<Option<Duration>> {
    Ok(Some(attributes(thread)?).filter(has_turns).map(|of| Duration::from_nanos(of.sched_runtime)))
}

/// Changes the turn of a thread, by default of this one; the kernel takes 0.1 to 100 ms and gives the
/// nearest. False: it has none, and nothing was done.
///
/// # Errors
/// There is no such thread, it belongs to somebody else, or this process may not do it.
pub fn set_turn(thread: Option<Pid>, turn: Duration) -> io::Result<bool> {
    let mut of = attributes(thread)?;
    if !has_turns(&of) {
        return Ok(false);
    }
    of.sched_runtime = u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX);
    change(thread, &of).map(|()| true)
}

/// As [`set_turn`], for all threads of a process, by default of this one, and so for those that they
/// start. False: none of them has turns.
///
/// # Errors
/// As [`set_turn`], and that of reading `/proc`: other threads may have got it then.
pub fn set_turns(process: Option<Pid>, turn: Duration) -> io::Result<bool> {
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
            match set_turn(Some(thread), turn) {
                Ok(has) => any |= has,
                // It has ended.
                Err(error) if error.raw_os_error() == Some(ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        // One that was not seen may have been started by one that had not had its turn yet.
        if seen.len() == before {
            return Ok(any);
        }
    }
}

fn attributes(thread: Option<Pid>) -> io::Result<sched_attr> {
    // SAFETY: it is of numbers, for which all bits may be zero.
    let mut of: sched_attr = unsafe { zeroed() };
    let bytes = size_of::<sched_attr>();
    // SAFETY: the kernel writes at most as many bytes as it is told that there are.
    answered(unsafe { libc::syscall(SYS_sched_getattr, raw(thread), &raw mut of, bytes, 0) })?;
    Ok(of)
}

fn change(thread: Option<Pid>, of: &sched_attr) -> io::Result<()> {
    // SAFETY: the structure is as long as it says, and the kernel only reads it.
    answered(unsafe { libc::syscall(SYS_sched_setattr, raw(thread), &raw const *of, 0) })
}

fn has_turns(of: &sched_attr) -> bool {
    let fair =
        [SCHED_OTHER, SCHED_BATCH].iter().any(|fair| of.sched_policy == fair.cast_unsigned());
    fair && of.sched_runtime > 0
}

/// 0 is the thread that asks.
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
        let Some(before) = turn(None).unwrap() else {
            eprintln!(
                "nothing here shows that turns are kept: this kernel has none (Linux 6.12 has)"
            );
            assert!(!set_turn(None, SHORTEST).unwrap());
            assert_eq!(turn(None).unwrap(), None);
            assert!(!set_turns(None, SHORTEST).unwrap());
            return;
        };
        assert!(before > SHORTEST, "{before:?}");
        assert!(set_turn(None, SHORTEST).unwrap());
        assert_eq!(turn(None).unwrap(), Some(SHORTEST));
        let child = std::thread::spawn(|| turn(None).unwrap());
        assert_eq!(child.join().unwrap(), Some(SHORTEST));
        assert!(set_turn(None, Duration::ZERO).unwrap(), "back to what is usual");
        assert_eq!(turn(None).unwrap(), Some(before));
        let other = rustix::thread::gettid();
        let set = std::thread::spawn(move || set_turn(Some(other), 2 * SHORTEST).unwrap());
        assert!(set.join().unwrap());
        assert_eq!(turn(Some(other)).unwrap(), Some(2 * SHORTEST));
        all_threads_of_this_process_get_one();
    }

    // It is everybody's, so nobody else may look at turns meanwhile.
    fn all_threads_of_this_process_get_one() {
        // The first one has none.
        let threads = [SCHED_IDLE, SCHED_OTHER].map(|policy| {
            let ((tell, told), (end, ended)) = (channel(), channel::<()>());
            let thread = std::thread::spawn(move || {
                let mut of = attributes(None).unwrap();
                of.sched_policy = policy.cast_unsigned();
                change(None, &of).unwrap();
                tell.send(rustix::thread::gettid()).unwrap();
                ended.recv().unwrap_err();
            });
            (told.recv().unwrap(), end, thread)
        });
        let wanted = 3 * SHORTEST;
        assert!(set_turns(None, wanted).unwrap());
        let turns = threads.each_ref().map(|(id, ..)| turn(Some(*id)).unwrap());
        assert_eq!(turns, [None, Some(wanted)]);
        for (_, end, thread) in threads {
            drop(end);
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_thread_that_is_not_there_is_told() {
        let nobody = Pid::from_raw(i32::MAX);
        assert!(turn(nobody).is_err() && set_turn(nobody, SHORTEST).is_err());
        assert!(set_turns(nobody, SHORTEST).is_err());
    }
}
