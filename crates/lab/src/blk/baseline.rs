//! `blk-baseline`: combinations of media and loads, and their bars.

use anyhow::Result;

use super::cell::{CellSpec, Design, chosen, prepare};
use super::client::{Load, Pattern, Wait};
use super::eventfd_pair;
use super::medium::Medium;
use super::systems::{Poll, System, wait_id};
use crate::cpu::Placement;
use crate::experiment::{Comparison, Experiment, Figure, Options, Prepared, Side};

/// The `blk-baseline` experiment.
#[derive(Debug)]
pub struct BlkBaseline;

const RINGWAY_NULL: System = System::RingwayNull(Poll::Auto);

impl Experiment for BlkBaseline {
    fn name(&self) -> &'static str {
        "blk-baseline"
    }

    fn summary(&self) -> &'static str {
        "one disk: ringway-blk against qemu-storage-daemon, by a client on the virtio-driver crate"
    }

    fn takes_peers(&self) -> bool {
        true
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cells = plan_cells(options);
        let design = Design {
            comparisons: cells.iter().flat_map(comparisons).collect(),
            rounds: if options.quick { 5 } else { 10 },
            window_ms: if options.quick { 100 } else { 400 },
            placement: Placement::choose()?,
            notes: vec![
                "memcpy is glibc's, at the load's addresses, from 4 KiB pages or from huge ones. \
                 Clients and targets of memcpy have 4 KiB pages. fio reads the file itself, with \
                 direct I/O, on the client's CPU."
                    .to_owned(),
                eventfd_pair::NOTE.to_owned(),
            ],
            plots: Vec::new(),
        };
        prepare(cells, design, options)
    }
}

/// Returns a 4 KiB random read load. Samples one latency in 16 turns if a turn takes a system call
/// or more.
fn small(depth: u16, wait: Wait) -> Load {
    let sample_every = if wait == Wait::Sleep { 16 } else { 64 };
    Load { depth, wait, sample_every, ..Load::default() }
}

/// Returns a 128 KiB sequential read load at depth 8.
fn large(wait: Wait) -> Load {
    let (pattern, bytes) = (Pattern::Sequential, 128 << 10);
    Load { pattern, bytes, depth: 8, wait, sample_every: 4, ..Load::default() }
}

/// Returns the cells of a run.
fn plan_cells(options: &Options) -> Vec<CellSpec> {
    chosen(if options.quick { quick() } else { full() }, options)
}

/// Returns the cells with bars, and one cell of each other medium.
fn quick() -> Vec<CellSpec> {
    use Medium::*;
    let [off, ours, cached] = [(Poll::Off, Null), (Poll::Auto, Null), (Poll::Auto, Cached)]
        .map(|(p, m)| System::ours(p, m));
    let (qsd, quiet) = (System::DAEMON, System::DAEMON_NO_POLL);
    let cached = [cached, qsd, System::DAEMON_BUFFERED];
    let direct = [ours, qsd, System::Fio];
    let [one, many] = [1, 32].map(|depth| small(depth, Wait::Poll));
    let large = large(Wait::Poll);
    vec![
        cell(Null, small(1, Wait::Sleep), &[off, quiet, ours, System::BareWake]),
        cell(Null, one, &[ours, qsd, System::Loopback]),
        cell(Null, many, &[ours, qsd, System::Loopback]),
        cell(Memory, one, &[ours, RINGWAY_NULL, System::Memcpy]),
        cell(Memory, many, &[ours, qsd]),
        cell(Memory, large, &[ours, System::Memcpy, System::MemcpyHuge]),
        cell(Cached, one, &[&cached[..], &[RINGWAY_NULL, System::Preadv2]].concat()),
        cell(Cached, many, &cached),
        cell(Cached, large, &cached),
        cell(Direct, one, &direct),
        cell(Direct, many, &direct),
        cell(Direct, large, &direct),
    ]
}

/// Returns every medium, load and kind of client, with every system that can serve it.
fn full() -> Vec<CellSpec> {
    let mut cells = Vec::new();
    for medium in [Medium::Null, Medium::Memory, Medium::Cached, Medium::Direct] {
        for wait in [Wait::Sleep, Wait::Poll] {
            for load in [small(1, wait), small(32, wait), large(wait)] {
                cells.push(cell(medium, load, &systems(medium, load)));
            }
        }
    }
    cells
}

fn systems(medium: Medium, load: Load) -> Vec<System> {
    let [off, auto, always] = Poll::ALL.map(|poll| System::ours(poll, medium));
    // For files in the page cache, the peers are direct and buffered reads, not polling modes.
    let [first, second] = match medium {
        Medium::Cached => [System::DAEMON, System::DAEMON_BUFFERED],
        _ => [System::DAEMON_NO_POLL, System::DAEMON],
    };
    let mut all = vec![off, first, auto, second, always];
    match (medium, load.wait, load.depth) {
        (Medium::Null, Wait::Poll, _) => all.push(System::Loopback),
        (Medium::Null, Wait::Sleep, 1) => all.push(System::BareWake),
        (Medium::Memory, Wait::Poll, 1) => all.extend([RINGWAY_NULL, System::Memcpy]),
        (Medium::Memory, Wait::Poll, 8) => all.extend([System::Memcpy, System::MemcpyHuge]),
        (Medium::Cached, Wait::Poll, 1) => all.extend([RINGWAY_NULL, System::Preadv2]),
        (Medium::Direct, Wait::Poll, _) => all.push(System::Fio),
        _ => {}
    }
    all
}

/// Returns a cell, for example `null-4k-d1-sleep`.
fn cell(medium: Medium, load: Load, systems: &[System]) -> CellSpec {
    let pattern = match load.pattern {
        Pattern::Random => "random",
        Pattern::Sequential => "sequential",
        Pattern::EachOnce(_) => "first",
    };
    let wait = match load.wait {
        Wait::Sleep => "client asleep on its eventfd",
        Wait::Poll => "polling client",
    };
    let (kib, depth) = (load.bytes >> 10, load.depth);
    let title = medium.title();
    let title = format!("{title}, {kib} KiB {pattern} read, depth {depth}, {wait}");
    let id = format!("{}-{kib}k-d{depth}-{}", medium.id(), wait_id(load.wait));
    CellSpec::new((id, title), medium, load, systems)
}

/// Returns the comparisons of a cell: each of our systems with each peer, and the bars.
fn comparisons(spec: &CellSpec) -> Vec<Comparison> {
    let daemon = |system: &System| matches!(system, System::Daemon { .. });
    // In a control run, peers have these names in the place of our systems.
    let is_ours = |name: &str| name.contains("ringway-blk");
    let ours = spec.systems.iter().filter(|(name, _)| is_ours(name) && !name.contains(", null"));
    let peers: Vec<&(String, System)> =
        spec.systems.iter().filter(|(name, system)| !is_ours(name) && daemon(system)).collect();
    let mut all = Vec::new();
    for (name, _) in ours {
        let polls = !name.contains("--poll off");
        // `--poll off` is compared with a peer that does not poll, if the cell has one.
        let fair: Vec<String> = peers
            .iter()
            .filter(|(_, peer)| match peer {
                System::Daemon { poll_max_ns, .. } => (*poll_max_ns == Some(0)) != polls,
                _ => false,
            })
            .map(|(name, _)| name.clone())
            .collect();
        let names = match (spec.medium, fair.is_empty()) {
            (Medium::Cached, _) | (_, true) => peers.iter().map(|(n, _)| n.clone()).collect(),
            (_, false) => fair,
        };
        if names.is_empty() {
            continue;
        }
        let bar = bar(spec, name);
        let (cell, ours) = (spec.id.clone(), name.clone());
        all.push(Comparison { cell, ours, peers: names, bar, ..Comparison::default() });
    }
    if !spec.control {
        all.extend(bounds(spec));
    }
    all
}

/// Returns the bar over `qemu-storage-daemon`. Without polling on either side, with a sleeping
/// client at depth 1: 0.9. With our defaults and a polling client: 3.5 at depth 1 and 2.8 at depth
/// 32. In the page cache at depth 32: 1.4 over the better of the peer's direct and buffered modes.
/// In the page cache at depth 1, the system call alone takes more than 3.5 leaves: see [`bounds`].
fn bar(spec: &CellSpec, ours: &str) -> Option<f64> {
    let Load { bytes: 4096, depth, wait, .. } = spec.load else {
        return None;
    };
    let poll = ["off", "auto"].into_iter().find(|p| ours.contains(&format!("--poll {p}")))?;
    if spec.control {
        return None;
    }
    match (spec.medium, depth, wait, poll) {
        (Medium::Null, 1, Wait::Sleep, "off") => Some(0.9),
        (Medium::Null, 1, Wait::Poll, "auto") => Some(3.5),
        (Medium::Null, 32, Wait::Poll, "auto") => Some(2.8),
        (Medium::Cached, 32, Wait::Poll, "auto") => Some(1.4),
        _ => None,
    }
}

/// Returns the bars over references that are no disk: a bare wakeup, a copy, a system call, fio on
/// the file.
fn bounds(spec: &CellSpec) -> Vec<Comparison> {
    let default = |system: &System| matches!(system, System::Ringway { poll: Poll::Auto, .. });
    let Some(ours) = spec.name(default) else { return Vec::new() };
    let over = |peers: Vec<String>| Comparison {
        cell: spec.id.clone(),
        ours: ours.clone(),
        peers,
        ..Comparison::default()
    };
    let p50 = |peers, bar| Comparison {
        metric: Some("p50_us".into()),
        figure: Figure::OverSum,
        bar: Some(bar),
        side: Side::AtMost,
        ..over(peers)
    };
    let bare = spec.name(|s| *s == System::BareWake).map(|bare| p50(vec![bare], 1.15));
    let call = spec.name(|s| *s == System::Preadv2);
    // The rate of the system call if the rest of the request cost nothing.
    let alone = call.clone().map(|call| Comparison { ours: call, ..over(spec.daemons()) });
    let copy = spec.name(|s| *s == System::Memcpy).or(call);
    let copy = copy.map(|copy| match spec.name(|s| *s == RINGWAY_NULL) {
        Some(null) => p50(vec![null, copy], 1.1),
        None => Comparison { bar: Some(0.8), ..over(vec![copy]) },
    });
    let fio = spec.name(|s| *s == System::Fio).map(|fio| Comparison {
        bar: Some(0.95),
        spread_excuses: true,
        ..over(vec![fio])
    });
    let huge = spec
        .name(|s| *s == System::MemcpyHuge)
        .map(|huge| Comparison { bar: Some(0.85), ..over(vec![huge]) });
    [bare, copy, huge, alone, fio].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(options: &Options) -> Vec<(String, String, f64)> {
        let cells = plan_cells(options);
        let all = cells.iter().flat_map(comparisons);
        all.filter_map(|c| Some((c.cell, c.peers.join(" + "), c.bar?))).collect()
    }

    #[test]
    fn quick_and_full_judge_the_same_promises() {
        let quick = bars(&Options { quick: true, ..Options::default() });
        let mut full = bars(&Options::default());
        let promised = [
            ("null-4k-d1-sleep", "qsd poll-max-ns=0", 0.9),
            ("null-4k-d1-sleep", "(bare eventfd pair, asleep)", 1.15),
            ("null-4k-d1-poll", "qsd", 3.5),
            ("null-4k-d32-poll", "qsd", 2.8),
            ("memory-4k-d1-poll", "ringway-blk --poll auto, null + (memcpy)", 1.1),
            ("memory-128k-d8-poll", "(memcpy)", 0.8),
            ("memory-128k-d8-poll", "(memcpy, huge pages)", 0.85),
            ("cached-4k-d1-poll", "ringway-blk --poll auto, null + (preadv2)", 1.1),
            ("cached-4k-d32-poll", "qsd direct + qsd buffered", 1.4),
            ("direct-4k-d1-poll", "fio io_uring", 0.95),
            ("direct-4k-d32-poll", "fio io_uring", 0.95),
            ("direct-128k-d8-poll", "fio io_uring", 0.95),
        ];
        assert_eq!(quick, promised.map(|(cell, peers, bar)| (cell.into(), peers.into(), bar)));
        full.sort_by_key(|bar| quick.iter().position(|q| q == bar));
        assert_eq!(full, quick);
    }

    #[test]
    fn ids_are_unique_and_select_cells() {
        let mut ids: Vec<String> =
            plan_cells(&Options::default()).into_iter().map(|cell| cell.id).collect();
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
            assert!(cell.systems.iter().all(|(_, system)| !system.is_ours()));
            assert!(comparisons(&cell).iter().all(|c| c.bar.is_none()));
        }
    }
}
