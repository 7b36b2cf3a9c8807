//! What the host's other processes use.

use std::collections::{HashMap, HashSet};
use std::fs;

use anyhow::{Context, Result};

use super::stat::{ProcessStat, seconds};

/// The parent of the kernel's threads, which work for everybody.
const KTHREADD: u32 = 2;

/// CPU time so far, in seconds, of all processes of this host but this one, what it has started, and
/// the kernel's threads. Between two readings it grows by what other work took: also by what has begun
/// and ended meanwhile, if somebody waited for that. Unlike the host's busy time without ours it
/// can be told where the kernel works for us in its own time. The resolution is one tick (10 ms) a
/// process.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn others_time_s() -> Result<f64> {
    let entries = fs::read_dir("/proc").context("cannot list processes")?.flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // One may end between the listing and the reading.
    let all = ids.filter_map(|pid| Some((pid, ProcessStat::of(pid)?))).collect();
    Ok(seconds(others_ticks(std::process::id(), &all)))
}

fn others_ticks(me: u32, all: &HashMap<u32, ProcessStat>) -> u64 {
    let ours = |pid| descends(pid, |above| above == me || above == KTHREADD, all);
    let others = all.iter().filter(|(pid, _)| !ours(**pid));
    others.map(|(_, stat)| stat.own + stat.waited).sum()
}

/// Whether a process is, or has above it, one of these. Ids that were read one after the other may
/// have been given anew meanwhile: none is followed twice.
fn descends(mut pid: u32, from: impl Fn(u32) -> bool, all: &HashMap<u32, ProcessStat>) -> bool {
    let mut seen = HashSet::new();
    while seen.insert(pid) {
        if from(pid) {
            return true;
        }
        let Some(stat) = all.get(&pid) else { return false };
        pid = stat.parent;
    }
    false
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
            // Parents that have ended, and ids that lead in a circle.
            (15, process(99, 200, 0)),
            (16, process(17, 400, 0)),
            (17, process(16, 0, 0)),
        ]);
        assert_eq!(others_ticks(11, &all), 1 + 2 + 10 + 20 + 100 + 200 + 400);
    }

    #[test]
    fn work_of_somebody_elses_is_seen() {
        // Its parent ends at once, so it is nobody's here.
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
