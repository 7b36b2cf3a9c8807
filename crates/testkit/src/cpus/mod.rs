//! CPUs that are busy, few, or offline.

mod offline;
mod quota;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};

pub use offline::Offline;
pub use quota::Quota;

/// Nice value of a deferred session, a tenth of the weight of others. With a lower weight, each
/// wake-up of one of its threads waits for tens of milliseconds.
const DEFERRED: &str = "10";

/// Longest time for which other work on the machine may leave no CPU idle.
pub const QUIET_DEADLINE: Duration = Duration::from_secs(120);

/// Returns the CPUs on which the calling thread, and threads that it starts, may run.
///
/// # Errors
/// The system call failed.
pub fn mine() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).map_err(|error| Error::io("cannot read my CPUs", error))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Restricts the calling thread, and those that it starts from now on, to these CPUs.
///
/// # Errors
/// None of them is online.
pub fn pin_thread(cpus: &[usize]) -> Result<()> {
    set(None, cpus)
}

/// Restricts a process to these CPUs, with all its threads and those that they start.
///
/// # Errors
/// None of them is online, or there is no such process.
pub fn confine(process: u32, cpus: &[usize]) -> Result<()> {
    let cannot = |error| Error::io(format!("cannot list the threads of {process}"), error);
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).map_err(cannot)?;
    for task in tasks {
        let name = task.map_err(cannot)?.file_name();
        let Some(tid) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        set(Some(tid), cpus)?;
    }
    Ok(())
}

/// Defers a process's session: on a shared CPU, threads of other sessions get nine tenths.
///
/// This works where the kernel divides CPUs by sessions (sched(7), "The autogroup feature").
/// Elsewhere nothing changes, and threads share CPUs evenly. The kernel does not divide CPUs for
/// processes that are still in the session of the system's first process.
///
/// # Errors
/// The caller is not the administrator; there is no such process; or it is in the caller's own
/// session, which would stay deferred after the test.
pub fn defer(process: u32) -> Result<()> {
    use std::io::ErrorKind::{InvalidInput, NotFound};
    let cannot = |source| Error::io(format!("cannot defer the session of {process}"), source);
    if session(process).map_err(cannot)? == session(std::process::id()).map_err(cannot)? {
        return Err(Error::Reply {
            request: format!("deferring the session of {process}"),
            what: "it may be the session of this test: start the process in its own session".into(),
        });
    }
    match std::fs::write(format!("/proc/{process}/autogroup"), DEFERRED) {
        Err(error) if !matches!(error.kind(), NotFound | InvalidInput) => Err(cannot(error)),
        _ => Ok(()),
    }
}

/// Returns the session of a process, by its leader. It is 0 if the leader is outside of this PID
/// namespace, as in a container. `getsid` of rustix has no value for that.
fn session(process: u32) -> std::io::Result<i32> {
    let stat = std::fs::read(format!("/proc/{process}/stat"))?;
    session_of(&stat).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// Parses the session from proc_pid_stat(5). The name in parentheses may contain anything; then
/// follow state, ppid, pgrp and session.
fn session_of(stat: &[u8]) -> Option<i32> {
    let stat = String::from_utf8_lossy(stat);
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(3)?.parse().ok()
}

fn set(thread: Option<Pid>, cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(thread, &set)
        .map_err(|error| Error::io(format!("cannot pin a thread to CPUs {cpus:?}"), error))
}

/// Threads that compute without a break until this is dropped.
#[derive(Debug)]
pub struct BusyThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyThreads {
    /// Starts `each` threads on each of these CPUs.
    ///
    /// # Errors
    /// One of the CPUs is not online.
    pub fn start(cpus: &[usize], each: usize) -> Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let mut hogs = Self { stop, threads: Vec::new() };
        let (say, hear) = std::sync::mpsc::channel();
        for cpu in cpus.iter().copied().flat_map(|cpu| std::iter::repeat_n(cpu, each)) {
            let (stop, say) = (Arc::clone(&hogs.stop), say.clone());
            hogs.threads.push(std::thread::spawn(move || {
                let kept = pin_thread(&[cpu]);
                // If the receiver is gone, it has received another thread's error.
                let _ = say.send(kept);
                drop(say);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }));
        }
        drop(say);
        hear.iter().collect::<Result<()>>().map(|()| hogs)
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // These threads cannot panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_of_whoever_tests_is_not_deferred() {
        let refused = defer(std::process::id()).unwrap_err().to_string();
        assert!(refused.contains("its own session"), "{refused}");
        assert!(defer(u32::MAX).is_err());
    }

    #[test]
    fn sessions_are_read_whatever_a_process_calls_itself() {
        assert_eq!(session_of(b"7 (a) 1 2) \xc3) S 1 7 0 0 -1"), Some(0), "out of sight");
        assert_eq!(session_of(b"7 (sleep) S 1 7 42 0 -1"), Some(42));
        assert_eq!(session_of(b"7 (sleep) S 1 7"), None);
    }

    #[test]
    fn a_process_is_confined_with_all_its_threads() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let one = &mine().unwrap()[..1];
        confine(sleeper.id(), one).unwrap();
        let set = sched_getaffinity(Some(Pid::from_child(&sleeper))).unwrap();
        assert!(set.count() == 1 && set.is_set(one[0]));
        assert!(confine(sleeper.id(), &[]).is_err());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(confine(sleeper.id(), one).is_err(), "it is gone");
        assert!(BusyThreads::start(&[CpuSet::MAX_CPU - 1], 1).is_err());
        drop(BusyThreads::start(one, 2).unwrap());
    }
}
