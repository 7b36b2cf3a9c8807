//! CPU placement, and CPU time of processes and threads.

mod others;
mod stat;
mod tree;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub use others::others_time_s;
use stat::{ProcessStat, seconds};
pub use tree::tree_time_s;

/// Returns the CPUs that the calling thread may use.
///
/// # Errors
/// The kernel does not report the affinity.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("cannot read this thread's CPUs")?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// CPUs of client and backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// CPU of the client.
    pub client: usize,
    /// CPU of the backend.
    pub backend: usize,
}

impl Placement {
    /// Places the backend on the first CPU and the client on the second. With a single CPU both
    /// share it, which makes every polling figure worthless. [`Placement::is_shared`] reports that.
    ///
    /// # Errors
    /// The kernel does not report the affinity.
    pub fn choose() -> Result<Self> {
        let cpus = allowed()?;
        let backend = *cpus.first().context("this thread has no CPU")?;
        Ok(Self { backend, client: *cpus.get(1).unwrap_or(&backend) })
    }

    /// Returns whether client and backend share a CPU.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.client == self.backend
    }
}

/// Pins the calling thread to one CPU.
///
/// # Errors
/// The kernel refuses.
pub fn pin(cpu: usize) -> Result<()> {
    ensure!(cpu < CpuSet::MAX_CPU, "there is no CPU {cpu}");
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin a thread to CPU {cpu}"))
}

/// Runs `start` with the calling thread on `cpu`, so that the processes it starts stay there. Then
/// restores the thread's CPUs.
///
/// # Errors
/// `start` fails, or the kernel refuses the affinity.
pub fn started_on<T>(cpu: usize, start: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = sched_getaffinity(None).context("cannot read this thread's CPUs")?;
    pin(cpu)?;
    let started = start();
    sched_setaffinity(None, &before).context("cannot restore this thread's CPUs")?;
    started
}

/// Returns the CPU time of all threads of a process, in seconds.
///
/// Reads the scheduler's counters of the threads, in nanoseconds. They lack threads that have
/// ended. If the process total in ticks is larger, that total counts.
///
/// # Errors
/// The process does not exist.
pub fn process_time_s(pid: u32) -> Result<f64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let mut nanoseconds = 0u64;
    for task in tasks.with_context(|| format!("process {pid} is gone"))? {
        // A thread may end between listing and reading.
        nanoseconds += task_time_ns(&task.context("cannot list threads")?.path()).unwrap_or(0);
    }
    let exact = nanoseconds as f64 / 1e9;
    let ticks = ProcessStat::of(pid).map_or(0, |stat| stat.own);
    // A difference of one tick each of user and system time is rounding, not an ended thread.
    Ok(exact.max(seconds(ticks.saturating_sub(2))))
}

/// Returns the number of voluntary context switches of a process. Each one is a sleep.
///
/// Does not include threads that have ended.
///
/// # Errors
/// The process does not exist.
pub fn voluntary_switches(pid: u32) -> Result<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let mut count = 0;
    for task in tasks.with_context(|| format!("process {pid} is gone"))? {
        let status = task.context("cannot list threads")?.path().join("status");
        // A thread may end between listing and reading.
        count += fs::read_to_string(status).ok().and_then(|text| switches(&text)).unwrap_or(0);
    }
    Ok(count)
}

/// Returns the number of voluntary context switches of the calling thread.
///
/// # Errors
/// The kernel does not report it.
pub fn thread_switches() -> Result<u64> {
    let path = "/proc/thread-self/status";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    switches(&text).with_context(|| format!("{path} has no count of switches"))
}

fn switches(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// Returns the CPU time of a thread of this process, in seconds.
///
/// # Errors
/// The thread does not exist.
pub fn own_thread_time_s(thread: Pid) -> Result<f64> {
    let task = format!("/proc/self/task/{}", thread.as_raw_nonzero());
    let ns = task_time_ns(Path::new(&task)).with_context(|| format!("{task} is gone"))?;
    Ok(ns as f64 / 1e9)
}

fn task_time_ns(task: &Path) -> Option<u64> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Returns the CPU time of the calling thread, in seconds.
#[must_use]
pub fn thread_time_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_a_switch() {
        let text = "Name:\tx\nvoluntary_ctxt_switches:\t42\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!((switches(text), switches("nonsense")), (Some(42), None));
        // Threads of other tests end and take their counts with them, so the sum may fall.
        voluntary_switches(std::process::id()).unwrap();
        let before = thread_switches().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(thread_switches().unwrap() > before);
        assert!(voluntary_switches(u32::MAX).is_err());
    }

    #[test]
    fn time_only_grows() {
        let pid = std::process::id();
        let before = process_time_s(pid).unwrap();
        let thread_before = thread_time_s();
        let sum = (0..2_000_000u64).fold(0u64, |a, b| std::hint::black_box(a.wrapping_add(b)));
        assert!(sum > 0);
        assert!(thread_time_s() > thread_before);
        assert!(process_time_s(pid).unwrap() >= before);
        assert!(process_time_s(u32::MAX).is_err());
    }

    #[test]
    fn a_pinned_start_gives_the_cpus_back() {
        let before = allowed().unwrap();
        let placement = Placement::choose().unwrap();
        let inside = started_on(placement.backend, allowed).unwrap();
        assert_eq!(inside, [placement.backend]);
        assert_eq!(allowed().unwrap(), before);
    }
}
