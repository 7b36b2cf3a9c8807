//! CPU time of the host's other processes.

use std::collections::HashMap;

use anyhow::Result;

use super::stat::{ProcessStat, seconds};
use super::tree::{all, descends};

/// Parent of the kernel's threads, which work for all processes.
const KTHREADD: u32 = 2;

/// Returns the CPU time so far, in seconds, of all processes except this one, its descendants, and
/// the kernel's threads.
///
/// The difference of two readings is the time of other work. It includes processes that started and
/// ended in between, if their parents waited for them. The host's busy time minus ours would also
/// count kernel threads that work for us. The resolution is one tick (10 ms) per process.
///
/// # Errors
/// `/proc` cannot be listed.
pub fn others_time_s() -> Result<f64> {
    Ok(seconds(others_ticks(std::process::id(), &all()?)))
}

fn others_ticks(me: u32, all: &HashMap<u32, ProcessStat>) -> u64 {
    let ours = |pid| descends(pid, |above| above == me || above == KTHREADD, all);
    let others = all.iter().filter(|(pid, _)| !ours(**pid));
    others.map(|(_, stat)| stat.own + stat.waited).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: u32, own: u64, waited: u64) -> ProcessStat {
        ProcessStat { parent, own, waited }
    }

    #[test]
    fn what_we_started_and_the_kernels_threads_are_not_others() {
        let all = HashMap::from([
            (1, process(0, 1, 2)),
            (2, process(0, 1000, 0)),
            (3, process(2, 2000, 0)),
            (10, process(1, 10, 20)),
            (11, process(10, 4000, 8000)),
            (12, process(11, 16_000, 0)),
            (13, process(12, 32_000, 0)),
            (14, process(10, 100, 0)),
            // A parent that has ended, and ids that form a circle.
            (15, process(99, 200, 0)),
            (16, process(17, 400, 0)),
            (17, process(16, 0, 0)),
        ]);
        assert_eq!(others_ticks(11, &all), 1 + 2 + 10 + 20 + 100 + 200 + 400);
    }

    #[test]
    fn work_of_somebody_elses_is_seen() {
        // The parent ends at once, so the process is no descendant of this one.
        let script = "while :; do :; done >/dev/null 2>&1 & echo $!";
        let output = std::process::Command::new("sh").args(["-c", script]).output().unwrap();
        let pid: u32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        let used = || ProcessStat::of(pid).unwrap().own;
        let (before, first) = (others_time_s().unwrap(), used());
        while used() < first + 20 {
            std::thread::yield_now();
        }
        let grown = others_time_s().unwrap() - before;
        let id = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
        assert!(grown > 0.1, "{grown}");
    }
}
