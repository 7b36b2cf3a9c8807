//! Memory of concurrent steps.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use testkit::ringwayd::Ringwayd;

use super::cases::Case;
use super::{LIMITS, machine, start};
use crate::experiment::Sample;
use crate::toolstack::{DEADLINE, params};

/// Interval of the memory samples.
const LOOK: Duration = Duration::from_millis(20);

/// Measures the additional memory of a daemon and its datapaths while all disks of a VM attach
/// concurrently. Uses a fresh daemon, whose allocator holds no free memory.
pub(super) fn memory(case: &Case, steps: u8) -> Result<Sample> {
    let Case { runs, delay, .. } = *case;
    let mut host = start(runs)?;
    let [first, all] = [("first", 1), ("all", steps)];
    let first = machine(&mut host, runs, delay, first)?;
    let all = machine(&mut host, runs, delay, all)?;
    // Memory that the creation of the VMs used and freed would hide the memory of the steps.
    let mut host = host.again()?;
    host.limit(&LIMITS.map(|limit| (limit, u16::from(steps))))?;
    // Memory that any first start allocates does not count for the steps.
    host.takes("VM.start", &[&first])?;
    host.takes("VM.hard_shutdown", &[&first])?;
    let before = own_mib(&host.daemon)?;
    let (daemon, client) = (&host.daemon, &mut host.client);
    let began = Instant::now();
    let pending_call = client.begin("VM.start", &params("VM.start", &all))?;
    let (most, ended) = thread::scope(|scope| {
        let ends = scope.spawn(|| client.end(pending_call, DEADLINE));
        let mut most = before;
        while !ends.is_finished() {
            most = most.max(own_mib(daemon)?);
            thread::sleep(LOOK);
        }
        let ended = ends.join().map_err(|_| anyhow!("the client that waits for a start failed"));
        Ok::<_, anyhow::Error>((most, ended?))
    })?;
    ended?;
    let took = began.elapsed();
    // With ten at once, the start would take more than twice this time.
    ensure!(took < 10 * Duration::from_millis(delay.usual_ms), "steps waited for others: {took:?}");
    let step = (most - before) / f64::from(steps);
    Ok([("mib_per_step".to_owned(), step), ("resident_mib".to_owned(), most)].into())
}

/// Returns the memory of a daemon and its datapaths in MiB, without guest memory.
fn own_mib(daemon: &Ringwayd) -> Result<f64> {
    let started = daemon.started().into_iter();
    let datapaths = started.filter(|(_, words)| words.contains("ringway-io "));
    let mut sum = process_mib(daemon.process.id())?;
    for (pid, _) in datapaths {
        // A process that ends meanwhile counts as 0.
        sum += process_mib(pid).unwrap_or_default();
    }
    Ok(sum)
}

/// Returns the memory of a process in MiB, without memory that it shares with others.
fn process_mib(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.with_context(|| format!("{path} has no {name}"))
    };
    Ok((kib("RssAnon:")? + kib("RssFile:")?) / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_process_is_read() {
        assert!(process_mib(std::process::id()).unwrap() > 0.0);
        assert!(process_mib(u32::MAX).is_err());
    }
}
