//! `shared-cpu`: client and backend on one CPU, where polling takes CPU time from the other side.

use anyhow::Result;

use super::cell::{CellSpec, Design, chosen, prepare};
use super::client::{Load, Wait};
use super::medium::Medium;
use super::systems::{Poll, System};
use crate::cpu::Placement;
use crate::experiment::{Comparison, Experiment, Options, Prepared};

/// Least rate of `--poll auto` over `--poll off`.
const BAR: f64 = 0.9;

/// The `shared-cpu` experiment.
#[derive(Debug)]
pub struct SharedCpu;

impl Experiment for SharedCpu {
    fn name(&self) -> &'static str {
        "shared-cpu"
    }

    fn summary(&self) -> &'static str {
        "client and backend on one CPU: --poll off, auto and always, and qemu-storage-daemon"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cells = chosen(cells(), options);
        let backend = Placement::choose()?.backend;
        let design = Design {
            comparisons: cells.iter().flat_map(comparisons).collect(),
            rounds: if options.quick { 5 } else { 9 },
            window_ms: if options.quick { 150 } else { 300 },
            placement: Placement { client: backend, backend },
            notes: Vec::new(),
            plots: Vec::new(),
        };
        prepare(cells, design, options)
    }
}

/// Returns cells with a sleeping client. A polling client would leave no CPU time for the backend.
fn cells() -> Vec<CellSpec> {
    let mut cells = Vec::new();
    for medium in [Medium::Null, Medium::Cached] {
        for depth in [1, 32] {
            let ours = Poll::ALL.map(|poll| System::ours(poll, medium));
            let direct = medium != Medium::Cached;
            let peers = [None, Some(0)].map(|poll_max_ns| System::Daemon { poll_max_ns, direct });
            let load = Load { depth, wait: Wait::Sleep, sample_every: 4, ..Load::default() };
            let title = format!("{}, 4 KiB, depth {depth}, one CPU for both", medium.title());
            let id = format!("{}-4k-d{depth}", medium.id());
            cells.push(CellSpec::new((id, title), medium, load, &[&ours[..], &peers].concat()));
        }
    }
    cells
}

fn comparisons(spec: &CellSpec) -> Vec<Comparison> {
    let Some([off, auto, _]) = spec.ours() else { return Vec::new() };
    let of = |peers: Vec<String>, bar| Comparison {
        cell: spec.id.clone(),
        ours: auto.clone(),
        peers,
        bar,
        ..Comparison::default()
    };
    vec![of(vec![off], (!spec.control).then_some(BAR)), of(spec.daemons(), None)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_promised_in_every_cell() {
        for cell in chosen(cells(), &Options::default()) {
            let all = comparisons(&cell);
            assert_eq!((all[0].bar, all[0].peers.len(), all[1].peers.len()), (Some(0.9), 1, 2));
            assert!(all[0].ours.contains("auto") && all[0].peers[0].contains("off"));
        }
        let control = Options { control: true, ..Options::default() };
        for cell in chosen(cells(), &control) {
            assert!(comparisons(&cell).iter().all(|c| c.bar.is_none() && !c.peers.is_empty()));
        }
    }
}
