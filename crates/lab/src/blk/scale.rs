//! `scale`: queues of one disk on one reactor and on several.

use std::time::Duration;

use anyhow::Result;
use testkit::process::{Backend, StorageDaemon, Target};

use super::client::{self, Load, Wait, Window};
use super::image::DISK_BYTES;
use crate::cpu;
use crate::experiment::{
    CellPlan, Comparison, Experiment, Options, PanelPlan, Plan, PlotPlan, PointPlan, Prepared,
    Sample, SeriesPlan,
};
use crate::host::{QSD, versions};

const COUNTS: [u16; 4] = [1, 2, 4, 8];
const DEPTH: u16 = 32;

/// The `scale` experiment.
#[derive(Debug)]
pub struct Scale;

/// Backend of a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    /// `ringway-blk` with this number of reactors.
    Reactors(u16),
    /// `qemu-storage-daemon` with one iothread, the most that an export can use.
    Daemon,
}

impl Server {
    fn name(self, control: bool) -> String {
        match self {
            Self::Daemon => "qsd".to_owned(),
            Self::Reactors(n) if control => format!("qsd in the place of {n} reactors"),
            Self::Reactors(n) => format!("ringway-blk --reactors {n}"),
        }
    }
}

impl Experiment for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn summary(&self) -> &'static str {
        "queues x reactors on one null disk, a client for each queue, depth 32"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let id = |queues: u16| format!("null-q{queues}");
        let wanted = |queues: &u16| options.selects(&id(*queues));
        let queues: Vec<u16> = COUNTS.into_iter().filter(wanted).collect();
        let versions = versions(&[QSD], (!options.control).then_some("ringway-blk"))?;
        let cell = |queues: &u16| CellPlan {
            id: id(*queues),
            title: format!("null, 4 KiB, queues: {queues}, a sleeping client each, depth {DEPTH}"),
            systems: servers(*queues).iter().map(|s| s.name(options.control)).collect(),
        };
        let plan = Plan {
            cells: queues.iter().map(cell).collect(),
            paired: false,
            rounds: options.rounds.unwrap_or(if options.quick { 5 } else { 9 }),
            metric: "iops".into(),
            comparisons: queues
                .iter()
                .flat_map(|queues| comparisons(*queues, &id(*queues), options.control))
                .collect(),
            versions,
            notes: vec![
                "Each reactor serves at least one queue. No thread is pinned, and clients need \
                 CPUs too: on a host with few CPUs, more reactors find no free CPU."
                    .to_owned(),
            ],
            plots: vec![plot(options.control)],
        };
        let measure = Duration::from_millis(options.window_ms.unwrap_or(300));
        let (window, control) = (Window::of(measure), options.control);
        Ok(Box::new(PreparedExperiment { plan, queues, window, control }))
    }
}

/// Returns the backends for a number of queues. More reactors than queues would be idle.
fn servers(queues: u16) -> Vec<Server> {
    let ours = COUNTS.into_iter().filter(|n| *n <= queues).map(Server::Reactors);
    ours.chain([Server::Daemon]).collect()
}

/// Compares as many reactors as queues with one reactor, and each with the peer.
fn comparisons(queues: u16, cell: &str, control: bool) -> Vec<Comparison> {
    let of = |ours: Server, peer: Server| Comparison {
        cell: cell.to_owned(),
        ours: ours.name(control),
        peers: vec![peer.name(control)],
        ..Comparison::default()
    };
    let mut all = Vec::new();
    if queues > 1 {
        all.push(of(Server::Reactors(queues), Server::Reactors(1)));
    }
    let ours = servers(queues).into_iter().filter(|server| *server != Server::Daemon);
    all.extend(ours.map(|server| of(server, Server::Daemon)));
    all
}

fn plot(control: bool) -> PlotPlan {
    let line = |server: Server| {
        let with = COUNTS.iter().enumerate().filter(|(_, q)| servers(**q).contains(&server));
        let point = |(step, queues): (usize, &u16)| {
            PointPlan::new(step, format!("null-q{queues}"), server.name(control))
        };
        SeriesPlan { name: server.name(control), points: with.map(point).collect() }
    };
    let panel = |metric: &str| PanelPlan {
        title: "null, 4 KiB, depth 32 a queue".into(),
        x: "queues".into(),
        steps: COUNTS.map(|queues| queues.to_string()).into(),
        metric: metric.into(),
        log: metric == "p99_us",
        series: servers(u16::MAX).into_iter().map(line).collect(),
    };
    PlotPlan {
        name: "lines".into(),
        title: "scale: queues and reactors of one disk".into(),
        columns: 3,
        panels: ["iops", "p99_us", "backend_cpus"].map(panel).into(),
    }
}

struct PreparedExperiment {
    plan: Plan,
    queues: Vec<u16>,
    window: Window,
    control: bool,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let queues = self.queues[cell];
        let backend = match servers(queues)[system] {
            Server::Reactors(reactors) if !self.control => {
                let numbers = [DISK_BYTES, queues.into(), reactors.into()].map(|n| n.to_string());
                let [size, queues, reactors] = &numbers;
                let options = ["--null", size, "--num-queues", queues, "--reactors", reactors];
                Backend::ringway_blk(&options)?
            }
            _ => {
                let target = Target::Null(DISK_BYTES);
                Backend::storage_daemon(&StorageDaemon { queues, ..StorageDaemon::new(target) })?
            }
        };
        let load = Load { depth: DEPTH, wait: Wait::Sleep, sample_every: 16, ..Load::default() };
        let client_queues = client::seats(backend.socket(), load, queues, None)?;
        let time = || cpu::process_time_s(backend.process.id());
        client::measure_all(client_queues, load, self.window, time).map(|(sample, _)| sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reactor_has_a_queue_at_least() {
        assert_eq!(servers(1), [Server::Reactors(1), Server::Daemon]);
        assert_eq!(servers(8).len(), 5);
        assert_eq!(comparisons(1, "c", false).len(), 1);
        assert_eq!(comparisons(8, "c", false).len(), 5);
        let points: Vec<_> = plot(false).panels[0].series.iter().map(|s| s.points.len()).collect();
        assert_eq!(points, [4, 3, 2, 1, 4]);
    }
}
