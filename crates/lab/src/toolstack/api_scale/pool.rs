//! Pool of simulated VMs, and the activity of its clients.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use testkit::ringwayd::fleet;
use xenapi::Value;
use xenapi::client::Client;

use super::cases::DISKS;
use crate::experiment::Sample;
use crate::stats::percentile;
use crate::toolstack::raw::{self, Dialect};
use crate::toolstack::{Host, ms};

/// VMs that are shut down concurrently.
pub(super) const AT_ONCE: usize = 20;
/// Clients that create VMs concurrently.
const MAKERS: usize = 8;
/// Rules for the simulated host: a guest takes 1 s to shut down, most of an ordinary shutdown.
const RULES: &str = "[[rule]]\ncalls = [\"guest\"]\nafter-ms = 1000\n";
/// Calls of one kind in a sample.
pub(super) const CALLS: usize = 20;
/// Changes in a sample that a client waits for.
pub(super) const CHANGES: usize = 100;
/// Deadline above the time of any event.
const EVENT: Duration = Duration::from_secs(30);

/// Pool with a number of VMs.
pub(super) struct Pool {
    host: Host,
    /// References of the running VMs.
    running: Vec<String>,
    /// Disks created per second.
    provisioned: f64,
    /// Time to create the last tenth of the VMs, over the time for the first tenth.
    slowing: f64,
    /// Server's time of the very first call for the records, by encoding. A repeated sample would
    /// find the records already serialized.
    first: BTreeMap<Dialect, f64>,
}

impl Pool {
    pub(super) fn make(machines: usize) -> Result<Self> {
        let mut host = Host::simulated(RULES)?;
        let began = Instant::now();
        let makers = (0..MAKERS).map(|maker| {
            let client = host.daemon.client()?;
            let numbers = (maker..machines).step_by(MAKERS);
            Ok(thread::spawn(move || make(client, numbers)))
        });
        let makers = makers.collect::<Result<Vec<_>>>()?;
        let mut made = Vec::new();
        for maker in makers {
            made.extend(maker.join().map_err(|_| anyhow!("a client that makes machines failed"))??);
        }
        let provisioned = (machines * usize::from(DISKS)) as f64 / began.elapsed().as_secs_f64();
        made.sort_by_key(|(at, _)| *at);
        let slowing = slowing(began, &made.iter().map(|(at, _)| *at).collect::<Vec<_>>());
        let running: Vec<String> = made.into_iter().take(AT_ONCE).map(|(_, vm)| vm).collect();
        let names: Vec<&str> = running.iter().map(String::as_str).collect();
        host.takes("VM.start", &names)?;
        Ok(Self { host, running, provisioned, slowing, first: BTreeMap::new() })
    }

    pub(super) fn records(&mut self, dialect: Dialect) -> Result<Sample> {
        let socket = self.host.daemon.socket();
        let session = self.host.client.session().context("the client has no session")?.to_owned();
        // The first call finds one changed record and serializes it again.
        let machine = self.running.first().context("no machine runs")?;
        touch(&mut self.host.client, machine, 0)?;
        let call = || raw::call(&socket, dialect, ("VM.get_all_records", &session));
        let cold = call()?;
        let first = *self.first.entry(dialect).or_insert(cold.server_ms);
        let mut took = (0..CALLS).map(|_| Ok(call()?.server_ms)).collect::<Result<Vec<_>>>()?;
        Ok([
            ("server_ms".to_owned(), percentile(&mut took, 50)),
            ("server_p99_ms".to_owned(), percentile(&mut took, 99)),
            ("cold_ms".to_owned(), cold.server_ms),
            ("first_ms".to_owned(), first),
            ("answer_mib".to_owned(), cold.bytes as f64 / f64::from(1 << 20)),
            ("disks_per_s".to_owned(), self.provisioned),
            ("slowing".to_owned(), self.slowing),
        ]
        .into())
    }

    /// Measures the time from a change by one client until another client receives it.
    pub(super) fn wake(&mut self) -> Result<Sample> {
        let machine = self.running.first().context("no machine runs")?.clone();
        let mut waits = self.host.daemon.client()?;
        let of = format!("VM/{machine}");
        let mut token = waits.events(&[&of], "", EVENT)?.token;
        let (arrivals_tx, arrivals_rx) = mpsc::channel();
        let (ask, asked) = mpsc::channel();
        let waiter = thread::spawn(move || -> Result<()> {
            while asked.recv().is_ok() {
                let batch = waits.events(&[&of], &token, EVENT)?;
                let now = Instant::now();
                ensure!(!batch.events.is_empty(), "no event has come");
                token = batch.token;
                arrivals_tx.send(now)?;
            }
            Ok(())
        });
        let mut took = Vec::new();
        for change in 0..CHANGES {
            ask.send(())?;
            // Gives the waiting client time to send its call. The lab cannot observe that the call
            // waits.
            thread::sleep(Duration::from_millis(2));
            let began = Instant::now();
            touch(&mut self.host.client, &machine, change)?;
            let arrival = arrivals_rx.recv_timeout(EVENT).context("the waiting client failed")?;
            took.push(ms(arrival.saturating_duration_since(began)));
        }
        drop(ask);
        waiter.join().map_err(|_| anyhow!("the waiting client failed"))??;
        let (half, most) = (percentile(&mut took, 50), percentile(&mut took, 99));
        Ok([("wake_p50_ms".to_owned(), half), ("wake_p99_ms".to_owned(), most)].into())
    }

    pub(super) fn list(&self) -> Result<Sample> {
        let once = |_| {
            let began = Instant::now();
            self.host.daemon.xe_prints(&["vm-list"])?;
            Ok(ms(began.elapsed()))
        };
        let mut took = (0..CALLS).map(once).collect::<Result<Vec<_>>>()?;
        Ok([("list_ms".to_owned(), percentile(&mut took, 50))].into())
    }

    pub(super) fn shutdown(&mut self, count: usize) -> Result<Sample> {
        let all: Vec<&str> = self.running.iter().take(count).map(String::as_str).collect();
        let stop = self.host.takes("VM.clean_shutdown", &all)?;
        self.host.takes("VM.start", &all)?;
        Ok([("stop_ms".to_owned(), ms(stop))].into())
    }
}

/// Creates VMs with these numbers. Returns each with its creation time.
fn make(
    mut client: Client,
    numbers: impl Iterator<Item = usize>,
) -> Result<Vec<(Instant, String)>> {
    let made = numbers.map(|n| {
        let machine = fleet::machine(&mut client, &format!("m{n}"), (DISKS, None))?;
        Ok((Instant::now(), machine))
    });
    made.collect()
}

/// Returns the time for the last tenth over the time for the first tenth. `made` has the creation
/// times in order.
fn slowing(began: Instant, made: &[Instant]) -> f64 {
    let tenth = (made.len() / 10).max(1);
    let at = |count: usize| count.checked_sub(1).and_then(|last| made.get(last)).copied();
    let took = |from: Option<Instant>, to: Option<Instant>| {
        to.map_or(Duration::ZERO, |to| to.saturating_duration_since(from.unwrap_or(began)))
    };
    let last = took(at(made.len().saturating_sub(tenth)), at(made.len()));
    last.as_secs_f64() / took(None, at(tenth)).as_secs_f64().max(f64::EPSILON)
}

fn touch(client: &mut Client, machine: &str, change: usize) -> Result<()> {
    let text = Value::text(format!("change {change} of {:?}", Instant::now()));
    client.call("VM.set_name_description", &[Value::text(machine), text])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tenth_is_compared_with_the_first() {
        let began = Instant::now();
        let after = |ms: &[u64]| {
            let made: Vec<_> = ms.iter().map(|ms| began + Duration::from_millis(*ms)).collect();
            slowing(began, &made)
        };
        assert_eq!(after(&[10, 11, 12, 13, 14, 15, 16, 17, 20, 40]), 2.0);
        let even: Vec<u64> = (1..=100).map(|n| n * 3).collect();
        assert_eq!(after(&even), 1.0);
        assert_eq!(after(&[5]), 1.0);
        assert_eq!(after(&[]), 0.0);
    }
}
