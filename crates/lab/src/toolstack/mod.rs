//! Toolstack experiments: the duration of operations and the supported load, as seen by an API
//! client.
//!
//! `ringwayd` runs with a simulated host, except in [`responsive`] and in cells that name QEMU.
//! Simulated storage and guests take the programmed time, so only the toolstack is measured. The
//! VMs are created through the API.

pub mod api_scale;
pub mod bootstorm;
mod caller;
pub mod hung_sr;
mod raw;
pub mod responsive;
pub mod vbd_parallel;

use std::time::{Duration, Instant};

use anyhow::Result;
use testkit::ringwayd::Ringwayd;
use xenapi::Value;
use xenapi::client::Client;

/// Deadline above the duration of any operation here.
const DEADLINE: Duration = Duration::from_secs(300);

/// Daemon with an API client.
struct Host {
    daemon: Ringwayd,
    client: Client,
}

impl Host {
    /// Connects to this daemon.
    fn start(daemon: Ringwayd) -> Result<Self> {
        let client = daemon.client()?;
        Ok(Self { daemon, client })
    }

    /// Starts a daemon whose simulated host follows these rules.
    fn simulated(rules: &str) -> Result<Self> {
        let mut daemon = Ringwayd::simulator(&[])?;
        if !rules.is_empty() {
            // Rules that are written while the daemon is stopped apply from its start.
            daemon.stop()?;
            daemon.set_rules(rules)?;
            daemon.start_again()?;
        }
        Self::start(daemon)
    }

    /// Restarts the daemon.
    fn again(self) -> Result<Self> {
        let Self { mut daemon, .. } = self;
        daemon.stop()?;
        daemon.start_again()?;
        Self::start(daemon)
    }

    /// Returns the duration of concurrent calls of a method for all these VMs.
    fn takes(&mut self, method: &str, machines: &[&str]) -> Result<Duration> {
        let began = Instant::now();
        let begun =
            machines.iter().map(|machine| self.client.begin(method, &params(method, machine)));
        let pending_call = begun.collect::<Result<Vec<_>, _>>()?;
        for pending_call in pending_call {
            self.client.end(pending_call, DEADLINE)?;
        }
        Ok(began.elapsed())
    }

    /// Sets limits of the toolstack: keys of the host's `other_config`.
    fn limit(&mut self, limits: &[(&str, u16)]) -> Result<()> {
        let Value::Set(hosts) = self.client.call("host.get_all", &[])? else { return Ok(()) };
        for host in hosts {
            let limits = limits.iter().map(|(key, most)| (*key, Value::text(most.to_string())));
            let map = Value::Map(limits.map(|(key, most)| (key.to_owned(), most)).collect());
            self.client.call("host.set_other_config", &[host, map])?;
        }
        Ok(())
    }
}

fn params(method: &str, machine: &str) -> Vec<Value> {
    let machine = Value::text(machine);
    match method {
        "VM.start" => vec![machine, Value::Bool(false), Value::Bool(false)],
        _ => vec![machine],
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
