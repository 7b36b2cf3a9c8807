//! The memory that steps take which run beside each other.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use testkit::ringwayd::Ringwayd;

use super::cases::Case;
use super::{LIMITS, machine, start};
use crate::experiment::Sample;
use crate::toolstack::{DEADLINE, params};

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What a daemon and its datapaths take more while all disks of a machine are being attached at
/// once: a daemon of its own, that has not kept any memory for so many.
pub(super) fn memory(case: &Case, steps: u8) -> Result<Sample> {
    let Case { runs, delay, .. } = *case;
    let mut host = start(runs)?;
    let [first, all] = [("first", 1), ("all", steps)];
    let first = machine(&mut host, runs, delay, first)?;
    let all = machine(&mut host, runs, delay, all)?;
    // What making them has taken and given back would hide what steps take.
    let mut host = host.again()?;
    host.limit(&LIMITS.map(|limit| (limit, u16::from(steps))))?;
    // What any start brings into memory is no step's.
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
        let ended = ends.join().map_err(|_| anyhow!("the one who waits for a start has failed"));
        Ok::<_, anyhow::Error>((most, ended?))
    })?;
    ended?;
    let took = began.elapsed();
    // Ten at once would need more than twice that.
    ensure!(took < 10 * Duration::from_millis(delay.usual_ms), "steps waited for others: {took:?}");
    let step = (most - before) / f64::from(steps);
    Ok([("mib_per_step".to_owned(), step), ("resident_mib".to_owned(), most)].into())
}

/// Memory of a daemon and its datapaths that is not the guests', in MiB.
fn own_mib(daemon: &Ringwayd) -> Result<f64> {
    let started = daemon.started().into_iter();
    let datapaths = started.filter(|(_, words)| words.contains("ringway-io "));
    let mut sum = process_mib(daemon.process.id())?;
    for (pid, _) in datapaths {
        // One that ends meanwhile has none.
        sum += process_mib(pid).unwrap_or_default();
    }
    Ok(sum)
}

/// Memory of a process, what it shares with others left out, in MiB.
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
