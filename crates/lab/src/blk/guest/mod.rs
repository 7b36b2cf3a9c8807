//! Guests as clients: a program in User-Mode Linux reads the disk.
//!
//! The guest has the client's CPU. A kernel without hardware virtualisation does all its work in
//! host processes, so their CPU time is that of the guest.

pub(super) mod dd;
pub(super) mod fio;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testkit::guest::{Guest, Kind, Machine};

use super::medium::Medium;
use super::systems::{Place, System};
use crate::cpu;
use crate::experiment::Sample;
use crate::host::HostTime;

/// Line of the guest before the requests that count.
const BEGIN: &str = "lab-begin";
/// Line of the guest after these requests.
const END: &str = "lab-end";
/// Deadline far beyond the time of any boot.
const DEADLINE: Duration = Duration::from_secs(120);

/// Run of a guest's script, with the times between its two lines.
struct Ran {
    output: String,
    wall_s: f64,
    backend_s: f64,
    guest_s: f64,
    busy_s: f64,
}

/// Boots a guest on a fresh backend, runs its script, and ends both.
fn run(system: System, medium: Medium, place: &Place, script: &str) -> Result<Ran> {
    let backend = system.start(medium, place, &[])?;
    let cpu = Some(place.placement.client);
    let machine = Machine { cpu, ..Machine::with_disk(backend.socket()) };
    let mut guest = Guest::start(Kind::Uml, &machine, script)?;
    let ids = [backend.process.id(), guest.id()];
    let times = || -> Result<[f64; 3]> {
        let backend_s = cpu::process_time_s(ids[0])?;
        Ok([backend_s, cpu::tree_time_s(ids[1])?, HostTime::now()?.busy_s])
    };
    guest.wait_for(BEGIN, DEADLINE)?;
    let (before, start) = (times()?, Instant::now());
    guest.wait_for(END, DEADLINE)?;
    let (after, wall_s) = (times()?, start.elapsed().as_secs_f64());
    let outcome = guest.finish_script(DEADLINE)?;
    let (code, output) = (outcome.code, outcome.output);
    ensure!(code == 0, "the guest's script ended with {code}: {output}");
    let [backend_s, guest_s, busy_s] = std::array::from_fn(|n| after[n] - before[n]);
    Ok(Ran { output, wall_s, backend_s, guest_s, busy_s })
}

impl Ran {
    /// Returns the CPU times for this number of requests.
    fn cpu(&self, requests: f64) -> Sample {
        let Self { wall_s, backend_s, guest_s, busy_s, .. } = *self;
        let metrics = [
            ("backend_cpus", backend_s / wall_s),
            ("backend_cpu_us_per_request", backend_s * 1e6 / requests),
            ("guests_cpus", guest_s / wall_s),
            ("cpu_us_per_request", (backend_s + guest_s) * 1e6 / requests),
            ("other_cpus", (busy_s - backend_s - guest_s).max(0.0) / wall_s),
        ];
        metrics.map(|(name, value)| (name.to_owned(), value)).into()
    }
}
