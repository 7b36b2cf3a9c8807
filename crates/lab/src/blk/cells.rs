//! Which media, loads and systems meet, and what was promised of them.

use std::time::Duration;

use super::client::{Load, Pattern, Wait, Window};
use super::systems::{Medium, System};
use crate::experiment::{CellPlan, Comparison, Options};

/// One cell with its systems and their names.
#[derive(Debug, Clone)]
pub(super) struct CellSpec {
    /// What is read from.
    pub(super) medium: Medium,
    /// By what load.
    pub(super) load: Load,
    /// By which systems.
    pub(super) systems: Vec<(String, System)>,
    /// Peers stand in the places of our systems: nothing is promised.
    control: bool,
}

const RINGWAY_OFF: System = System::Ringway { poll: false, writeback: false };
const RINGWAY_ALWAYS: System = System::Ringway { poll: true, writeback: false };
const RINGWAY_OFF_CACHED: System = System::Ringway { poll: false, writeback: true };
const RINGWAY_ALWAYS_CACHED: System = System::Ringway { poll: true, writeback: true };
const DAEMON: System = System::Daemon { no_poll: false, direct: true };
const DAEMON_NO_POLL: System = System::Daemon { no_poll: true, direct: true };
const DAEMON_BUFFERED: System = System::Daemon { no_poll: false, direct: false };

/// 4 KiB random read; one latency in 16 turns is taken where a turn is a system call or more.
fn small(depth: u16, wait: Wait) -> Load {
    let sample_every = if wait == Wait::Sleep { 16 } else { 64 };
    Load { pattern: Pattern::Random, bytes: 4096, depth, wait, sample_every }
}

/// 128 KiB sequential read at depth 8.
fn large(wait: Wait) -> Load {
    let bytes = 128 << 10;
    Load { pattern: Pattern::Sequential, bytes, depth: 8, wait, sample_every: 4 }
}

/// The cells of a run.
pub(super) fn plan_cells(options: &Options) -> Vec<CellSpec> {
    let mut cells = if options.quick { quick() } else { full() };
    if let Some(only) = &options.only {
        cells.retain(|cell| cell.id().contains(only.as_str()));
    }
    if options.control {
        cells.iter_mut().for_each(CellSpec::make_control);
    }
    cells
}

/// How long a sample takes.
pub(super) fn window(options: &Options) -> Window {
    let default_ms = if options.quick { 200 } else { 1000 };
    let measure = Duration::from_millis(options.window_ms.unwrap_or(default_ms));
    Window { warm: measure / 6, measure }
}

/// The cells that the promises are about, and one look at each other medium.
fn quick() -> Vec<CellSpec> {
    use Medium::*;
    use Wait::*;
    vec![
        cell(Null, small(1, Sleep), &[RINGWAY_OFF, DAEMON_NO_POLL]),
        cell(Null, small(1, Poll), &[RINGWAY_ALWAYS, DAEMON, System::Loopback]),
        cell(Null, small(32, Poll), &[RINGWAY_ALWAYS, DAEMON, System::Loopback]),
        cell(Cached, small(1, Poll), &[RINGWAY_ALWAYS_CACHED, DAEMON, DAEMON_BUFFERED]),
        cell(Memory, small(32, Poll), &[RINGWAY_ALWAYS, DAEMON]),
        cell(Cached, large(Poll), &[RINGWAY_ALWAYS_CACHED, DAEMON, DAEMON_BUFFERED]),
        cell(Direct, small(32, Sleep), &[RINGWAY_OFF, DAEMON]),
    ]
}

/// Every medium, load and kind of client, every system that can serve it.
fn full() -> Vec<CellSpec> {
    let mut cells = Vec::new();
    for medium in [Medium::Null, Medium::Memory, Medium::Cached, Medium::Direct] {
        for wait in [Wait::Sleep, Wait::Poll] {
            for load in [small(1, wait), small(32, wait), large(wait)] {
                let mut systems = match medium {
                    Medium::Null | Medium::Memory | Medium::Direct => {
                        vec![RINGWAY_OFF, DAEMON_NO_POLL, RINGWAY_ALWAYS, DAEMON]
                    }
                    Medium::Cached => {
                        vec![RINGWAY_OFF_CACHED, DAEMON, RINGWAY_ALWAYS_CACHED, DAEMON_BUFFERED]
                    }
                };
                if medium == Medium::Null && wait == Wait::Poll {
                    systems.push(System::Loopback);
                }
                cells.push(cell(medium, load, &systems));
            }
        }
    }
    cells
}

fn cell(medium: Medium, load: Load, systems: &[System]) -> CellSpec {
    let systems = systems.iter().map(|system| (system.name(medium), *system)).collect();
    CellSpec { medium, load, systems, control: false }
}

impl CellSpec {
    /// For example `null-4k-d1-sleep`.
    fn id(&self) -> String {
        let medium = match self.medium {
            Medium::Null => "null",
            Medium::Memory => "memory",
            Medium::Cached => "cached",
            Medium::Direct => "direct",
        };
        let wait = if self.load.wait == Wait::Sleep { "sleep" } else { "poll" };
        format!("{medium}-{}k-d{}-{wait}", self.load.bytes >> 10, self.load.depth)
    }

    fn title(&self) -> String {
        let medium = match self.medium {
            Medium::Null => "null",
            Medium::Memory => "memory",
            Medium::Cached => "file in the page cache",
            Medium::Direct => "file by direct I/O",
        };
        let pattern = match self.load.pattern {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
        };
        let wait = match self.load.wait {
            Wait::Sleep => "client asleep on its eventfd",
            Wait::Poll => "polling client",
        };
        let (kib, depth) = (self.load.bytes >> 10, self.load.depth);
        format!("{medium}, {kib} KiB {pattern} read, depth {depth}, {wait}")
    }

    pub(super) fn plan(&self) -> CellPlan {
        let systems = self.systems.iter().map(|(name, _)| name.clone()).collect();
        CellPlan { id: self.id(), title: self.title(), systems }
    }

    /// Puts peers into the places of our systems, under names that say so.
    fn make_control(&mut self) {
        self.control = true;
        for (name, system) in &mut self.systems {
            if matches!(system, System::Ringway { .. }) {
                *system = system.stand_in();
                *name = format!("{} in the place of {name}", system.name(self.medium));
            }
        }
    }
}

/// What is compared in a cell: each of ours with each peer, and what was promised.
///
/// The promises: without polling on either side and a client that sleeps, at depth 1, at least 0.9x;
/// polling on our side and a polling client, at depth 1 and 32, at least 2x the peer's default; in the
/// page cache at depth 1, polling, at least 2x the better of the peer's direct and buffered modes.
pub(super) fn comparisons(spec: &CellSpec) -> Vec<Comparison> {
    let is_ours = |name: &str| name.contains("ringway-blk");
    let ours = spec.systems.iter().filter(|(name, _)| is_ours(name));
    let peers: Vec<&(String, System)> = spec
        .systems
        .iter()
        .filter(|(name, system)| !is_ours(name) && *system != System::Loopback)
        .collect();
    let mut all = Vec::new();
    for (name, _) in ours {
        let polls = name.contains("--poll always");
        // Not polling is compared with not polling where the peer has both.
        let fair: Vec<&&(String, System)> = peers
            .iter()
            .filter(|(_, peer)| match peer {
                System::Daemon { no_poll, .. } => *no_poll != polls,
                _ => false,
            })
            .collect();
        let names: Vec<String> = match (spec.medium, fair.as_slice()) {
            (Medium::Cached, _) | (_, []) => peers.iter().map(|(n, _)| n.clone()).collect(),
            (_, fair) => fair.iter().map(|(n, _)| n.clone()).collect(),
        };
        let bar = bar(spec, polls);
        all.push(Comparison {
            cell: spec.id(),
            ours: name.clone(),
            peers: names,
            bar,
            ..Comparison::default()
        });
    }
    all
}

fn bar(spec: &CellSpec, polls: bool) -> Option<f64> {
    let Load { bytes: 4096, depth, wait, .. } = spec.load else {
        return None;
    };
    if spec.control {
        return None;
    }
    match (spec.medium, depth, wait, polls) {
        (Medium::Null, 1, Wait::Sleep, false) => Some(0.9),
        (Medium::Null, 1 | 32, Wait::Poll, true) => Some(2.0),
        (Medium::Cached, 1, Wait::Poll, true) => Some(2.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(options: &Options) -> Vec<(String, Vec<String>, f64)> {
        let cells = plan_cells(options);
        let all = cells.iter().flat_map(comparisons);
        all.filter_map(|c| Some((c.cell, c.peers, c.bar?))).collect()
    }

    #[test]
    fn quick_and_full_judge_the_same_promises() {
        let quick = bars(&Options { quick: true, ..Options::default() });
        let mut full = bars(&Options::default());
        let of = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            quick,
            [
                ("null-4k-d1-sleep".to_owned(), of(&["qsd poll-max-ns=0"]), 0.9),
                ("null-4k-d1-poll".to_owned(), of(&["qsd"]), 2.0),
                ("null-4k-d32-poll".to_owned(), of(&["qsd"]), 2.0),
                ("cached-4k-d1-poll".to_owned(), of(&["qsd direct", "qsd buffered"]), 2.0),
            ]
        );
        full.sort_by_key(|bar| quick.iter().position(|q| q.0 == bar.0));
        assert_eq!(full, quick);
    }

    #[test]
    fn ids_are_unique_and_select_cells() {
        let mut ids: Vec<String> =
            plan_cells(&Options::default()).iter().map(CellSpec::id).collect();
        let count = ids.len();
        assert_eq!(count, 24);
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count);
        let only = Options { only: Some("null-4k".into()), ..Options::default() };
        assert_eq!(plan_cells(&only).len(), 4);
    }

    #[test]
    fn a_control_run_has_none_of_ours() {
        let options = Options { quick: true, control: true, ..Options::default() };
        for cell in plan_cells(&options) {
            assert!(cell.systems.iter().all(|(_, s)| !matches!(s, System::Ringway { .. })));
            let compared = comparisons(&cell);
            assert!(!compared.is_empty() && compared.iter().all(|c| c.bar.is_none()));
        }
    }
}
