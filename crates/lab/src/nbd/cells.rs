//! Combinations of media, loads and systems, and their bars.

use std::time::Duration;

use super::systems::System;
use crate::blk::medium::Medium;
use crate::experiment::{Bound, CellPlan, Comparison, Options};
use crate::fio::Load;

/// Least rate over `qemu-storage-daemon` at depth 32.
const BAR: f64 = 1.2;
/// Alternative bar: least rate over the reply-only server.
const NEAR: f64 = 0.95;

const DAEMON: System = System::Daemon { other: false };
const DAEMON_OTHER: System = System::Daemon { other: true };

const READ: Load = Load { mode: "randread", bytes: 4096, depth: 32 };
const WRITE: Load = Load { mode: "randwrite", bytes: 4096, depth: 32 };
const LARGE: Load = Load { mode: "read", bytes: 128 << 10, depth: 32 };

/// One cell with its systems and their names.
#[derive(Debug, Clone)]
pub(super) struct CellSpec {
    pub(super) medium: Medium,
    pub(super) load: Load,
    pub(super) systems: Vec<(String, System)>,
    /// True for a control run, in which peers take the place of our systems. It has no bars.
    control: bool,
}

/// Returns the cells of a run.
pub(super) fn plan_cells(options: &Options) -> Vec<CellSpec> {
    let mut loads = vec![READ, WRITE];
    if !options.quick {
        loads.extend([LARGE, READ.alone(), WRITE.alone()]);
    }
    let media = [Medium::Null, Medium::Memory, Medium::Cached];
    let all = media.into_iter().flat_map(|medium| loads.iter().map(move |load| (medium, *load)));
    let mut cells: Vec<_> = all.map(|(medium, load)| cell(medium, load)).collect();
    cells.retain(|cell| options.selects(&cell.id()));
    if options.control {
        cells.iter_mut().for_each(CellSpec::make_control);
    }
    cells
}

/// Returns the duration of a sample.
pub(super) fn window(options: &Options) -> Duration {
    Duration::from_millis(options.window_ms.unwrap_or(400))
}

fn cell(medium: Medium, load: Load) -> CellSpec {
    let mut systems = vec![System::Ringway, DAEMON];
    // The null medium differs for reads, not for writes.
    let differs = medium != Medium::Null || !load.writes();
    if differs && load.depth > 1 {
        systems.push(DAEMON_OTHER);
    }
    if medium != Medium::Cached {
        systems.push(System::Nbdkit);
    }
    systems.push(System::ReplyOnly);
    let systems = systems.into_iter().map(|system| (system.name(medium).to_owned(), system));
    CellSpec { medium, load, systems: systems.collect(), control: false }
}

impl CellSpec {
    /// Returns the id, for example `null-randread-4k-d32`.
    fn id(&self) -> String {
        let medium = self.medium.id();
        let Load { mode, bytes, depth } = self.load;
        format!("{medium}-{mode}-{}k-d{depth}", bytes >> 10)
    }

    fn title(&self) -> String {
        let medium = self.medium.title();
        let Load { mode, bytes, depth } = self.load;
        let mode = match mode {
            "randread" => "random read",
            "randwrite" => "random write",
            _ => "sequential read",
        };
        format!("{medium}, {} KiB {mode}, depth {depth}", bytes >> 10)
    }

    pub(super) fn plan(&self) -> CellPlan {
        let systems = self.systems.iter().map(|(name, _)| name.clone()).collect();
        CellPlan { id: self.id(), title: self.title(), systems }
    }

    /// Replaces our systems with peers, whose names say so.
    fn make_control(&mut self) {
        self.control = true;
        for (name, system) in &mut self.systems {
            if *system == System::Ringway {
                *system = DAEMON;
                *name = format!("{} in the place of {name}", system.name(self.medium));
            }
        }
    }
}

/// Returns the comparison of a cell: ours with `qemu-storage-daemon`, and the bar.
///
/// The bar applies at depth 32: at least 1.2 over the better kind of `qemu-storage-daemon`, or
/// within 5% of the reply-only server.
pub(super) fn comparison(spec: &CellSpec) -> Comparison {
    let ours = spec.systems.first().map(|(name, _)| name.clone()).unwrap_or_default();
    let peers = spec.systems.iter().skip(1);
    let peers = peers.filter(|(_, system)| matches!(system, System::Daemon { .. }));
    let promised = spec.load.depth == 32 && !spec.control;
    let bound = Bound { system: System::ReplyOnly.name(spec.medium).to_owned(), bar: NEAR };
    Comparison {
        cell: spec.id(),
        ours,
        peers: peers.map(|(name, _)| name.clone()).collect(),
        bar: promised.then_some(BAR),
        bound: promised.then_some(bound),
        ..Comparison::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_at_depth_32_is_promised_and_none_else() {
        for options in [Options::default(), Options { quick: true, ..Options::default() }] {
            let cells = plan_cells(&options);
            assert_eq!(cells.len(), if options.quick { 6 } else { 15 });
            for cell in cells {
                let compared = comparison(&cell);
                let promised = compared.cell.ends_with("-d32");
                assert_eq!(compared.bar, promised.then_some(1.2), "{}", compared.cell);
                assert_eq!(compared.bound.is_some(), promised);
                assert_eq!(compared.ours, "ringway-io");
                assert!(compared.peers.iter().all(|peer| peer.starts_with("qsd")));
                let names: Vec<_> = cell.plan().systems;
                assert!(names.contains(&"(reply only)".to_owned()) && !compared.peers.is_empty());
            }
        }
    }

    #[test]
    fn the_peer_is_given_both_ways_to_read() {
        let options = Options { only: Some("null-randread-4k-d32".into()), ..Options::default() };
        let [cell] = &plan_cells(&options)[..] else { panic!("one cell") };
        let peers = comparison(cell).peers;
        assert_eq!(peers, ["qsd read-zeroes=off", "qsd read-zeroes=on"]);
    }

    #[test]
    fn a_control_run_has_none_of_ours() {
        let options = Options { control: true, ..Options::default() };
        for cell in plan_cells(&options) {
            assert!(cell.systems.iter().all(|(_, system)| *system != System::Ringway));
            let compared = comparison(&cell);
            assert!(compared.ours.contains("in the place of") && compared.bar.is_none());
        }
    }
}
