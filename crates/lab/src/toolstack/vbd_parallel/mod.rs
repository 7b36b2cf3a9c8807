//! `vbd-parallel`: start and shutdown of VMs with few and many disks.
//!
//! Each VM has its own SR, whose attach and detach take the time that the cell says. The same VM
//! starts with the usual limits and, as a peer, with one step at a time. The time for chunks of
//! ten, each of which waits for its slowest disk, is only calculated.
//!
//! Two cells run VMs under QEMU, whose disks are images behind `ringway-io`. Their additional time
//! is what QEMU and the datapath need for a disk.

mod cases;
mod memory;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;

use anyhow::{Context, Result};
use testkit::ringwayd::Ringwayd;
use testkit::ringwayd::fleet::{self, Sr};

use super::{Host, ms};
use crate::experiment::{
    CellPlan, Experiment, Options, PanelPlan, Plan, PlotPlan, PointPlan, Prepared, Sample,
    SeriesPlan,
};
use crate::host::versions;
use cases::{COUNTS, Case, DELAYS, Delay, Plugs, Runs, System, cases, comparisons};
use memory::memory;

/// Keys of the host's `other_config` that limit the steps of the host, a VM and an SR.
const LIMITS: [&str; 3] = ["worker-pool-size", "worker-pool-size-machine", "worker-pool-size-sr"];

/// Disks of each VM of the storm.
const STORM_DISKS: u8 = 8;

/// The `vbd-parallel` experiment.
#[derive(Debug)]
pub struct VbdParallel;

fn plot() -> PlotPlan {
    let line = |delay: Delay| {
        let point = |(step, disks): (usize, &u8)| {
            PointPlan::new(step, delay.cell(), System::Disks(*disks).name())
        };
        SeriesPlan { name: delay.title(), points: COUNTS.iter().enumerate().map(point).collect() }
    };
    let panel = |metric: &str| PanelPlan {
        title: "one machine".into(),
        x: "disks".into(),
        steps: COUNTS.map(|disks| disks.to_string()).into(),
        metric: metric.into(),
        log: true,
        series: DELAYS.into_iter().map(line).collect(),
    };
    PlotPlan {
        name: "lines".into(),
        title: "vbd-parallel: start and shutdown by number of disks".into(),
        columns: 2,
        panels: ["start_ms", "stop_ms"].map(panel).into(),
    }
}

impl Experiment for VbdParallel {
    fn name(&self) -> &'static str {
        "vbd-parallel"
    }

    fn summary(&self) -> &'static str {
        "start and shutdown with 1 to 255 disks of slow storage, in parallel and one by one"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cases = cases(options);
        let plan = Plan {
            cells: cases
                .iter()
                .map(|case| CellPlan {
                    id: case.id.clone(),
                    title: case.title.clone(),
                    systems: case.systems.iter().map(|system| system.name()).collect(),
                })
                .collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "start_ms".into(),
            comparisons: cases.iter().flat_map(comparisons).collect(),
            versions: versions(&[], Some("ringwayd"))?,
            notes: vec![
                "Except in cells of QEMU, the host is simulated: creating a domain and plugging a \
                 disk take no time, attach and detach take the time that the cell names. `least`, \
                 `chunks` and `one_by_one` are calculated from that: ten at once, chunks of ten, \
                 one at a time. `mib_per_step` is the peak memory of the daemon and the datapath \
                 while so many disks are attached at once, less their memory before, without \
                 memory that they share with guests."
                    .to_owned(),
            ],
            plots: vec![plot()],
            ..Plan::default()
        };
        Ok(Box::new(PreparedExperiment {
            plan,
            cases,
            hosts: BTreeMap::new(),
            storm: Vec::new(),
            machines: BTreeMap::new(),
        }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    cases: Vec<Case>,
    /// Hosts by hypervisor, started with their first sample.
    hosts: BTreeMap<Runs, Host>,
    /// VMs of the storm, created with its first sample.
    storm: Vec<String>,
    /// VMs by hypervisor, delay, disks and number.
    machines: BTreeMap<(Runs, &'static str, u8, u8), String>,
}

/// Creates a VM whose disks are on its own SR.
fn machine(host: &mut Host, runs: Runs, delay: Delay, (name, disks): (&str, u8)) -> Result<String> {
    let place = host.daemon.dir().join(name).display().to_string();
    let mut config: Vec<_> = delay.config().into();
    let kind = match runs {
        Runs::Simulator => "sim",
        Runs::Qemu => {
            fs::create_dir(&place).with_context(|| format!("cannot make {place}"))?;
            config.push(("location", place));
            "slow-dir"
        }
    };
    let config: Vec<_> = config.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let sr = Sr::make(&mut host.client, (name, kind), &config)?;
    Ok(fleet::machine(&mut host.client, name, (disks, Some(&sr)))?)
}

/// Creates VMs of eight disks on one SR.
fn storm(host: &mut Host, machines: u8, delay: Delay) -> Result<Vec<String>> {
    let config = delay.config();
    let config: Vec<_> = config.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let sr = Sr::make(&mut host.client, ("storm", "sim"), &config)?;
    let made = (0..machines).map(|number| {
        let name = format!("storm-{number}");
        Ok(fleet::machine(&mut host.client, &name, (STORM_DISKS, Some(&sr)))?)
    });
    made.collect()
}

/// Starts a host with this hypervisor.
fn start(runs: Runs) -> Result<Host> {
    match runs {
        Runs::Simulator => Host::simulated(""),
        Runs::Qemu => Host::start(Ringwayd::start(&["--hypervisor", "qemu"])?),
    }
}

impl PreparedExperiment {
    /// Returns VMs of this kind. Creates them on first use.
    fn machines(&mut self, case: &Case, disks: u8, count: u8) -> Result<Vec<String>> {
        let Case { runs, delay, .. } = *case;
        let mut all = Vec::new();
        for number in 0..count {
            let key = (runs, delay.id, disks, number);
            if !self.machines.contains_key(&key) {
                let name = format!("{}-{disks}-{number}", delay.id);
                let made = machine(self.host(runs)?, runs, delay, (&name, disks))?;
                self.machines.insert(key, made);
            }
            all.extend(self.machines.get(&key).cloned());
        }
        Ok(all)
    }

    /// Returns the host with this hypervisor.
    fn host(&mut self, runs: Runs) -> Result<&mut Host> {
        Ok(match self.hosts.entry(runs) {
            Entry::Occupied(started) => started.into_mut(),
            Entry::Vacant(none) => none.insert(start(runs)?),
        })
    }

    /// Starts and shuts down the VMs with these limits in place of the usual ones.
    fn turn(&mut self, runs: Runs, machines: &[String], limits: &[(&str, u16)]) -> Result<Sample> {
        let host = self.host(runs)?;
        host.limit(limits)?;
        let machines: Vec<&str> = machines.iter().map(String::as_str).collect();
        let start = host.takes("VM.start", &machines)?;
        let stop = host.takes("VM.hard_shutdown", &machines)?;
        host.limit(&[])?;
        Ok([("start_ms".to_owned(), ms(start)), ("stop_ms".to_owned(), ms(stop))].into())
    }

    fn disks(&mut self, case: &Case, disks: u8, limits: &[(&str, u16)]) -> Result<Sample> {
        let delay = case.delay;
        let machines = self.machines(case, disks, 1)?;
        let mut sample = self.turn(case.runs, &machines, limits)?;
        let least = ms(delay.bound(disks));
        sample.insert("least_ms".into(), least);
        sample.insert("chunks_ms".into(), ms(delay.chunks(disks)));
        sample.insert("one_by_one_ms".into(), ms(delay.of(disks).iter().sum()));
        if least > 0.0 {
            for (of, over) in [("start_ms", "start_over_bound"), ("stop_ms", "stop_over_bound")] {
                let took = sample.get(of).copied().unwrap_or_default();
                sample.insert(over.into(), took / least);
            }
        }
        Ok(sample)
    }
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let case = self.cases[cell].clone();
        match case.systems[system] {
            System::Disks(disks) => self.disks(&case, disks, &[]),
            System::Serial(disks) => self.disks(&case, disks, &LIMITS.map(|limit| (limit, 1))),
            System::Machines(count, most) => {
                let machines = self.machines(&case, 10, count)?;
                self.turn(case.runs, &machines, &[("worker-pool-size", most)])
            }
            System::Storm(count, plugs) => {
                if self.storm.is_empty() {
                    self.storm = storm(self.host(case.runs)?, count, case.delay)?;
                }
                let limits: &[_] = match plugs {
                    Plugs::Parallel => &[],
                    Plugs::OneOfEach => &[("worker-pool-size-machine", 1)],
                    Plugs::Serial => &LIMITS.map(|limit| (limit, 1)),
                };
                let machines = self.storm.clone();
                self.turn(case.runs, &machines, limits)
            }
            System::Memory(steps) => memory(&case, steps),
        }
    }
}
