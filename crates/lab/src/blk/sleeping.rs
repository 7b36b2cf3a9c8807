//! `sleeping`: a disk whose client sleeps until the backend calls it, as a guest's CPU does.

use anyhow::Result;

use super::cell::{CellSpec, Design, Reader, chosen, prepare};
use super::client::{Load, Wait};
use super::medium::Medium;
use super::systems::{Poll, System};
use crate::cpu::Placement;
use crate::experiment::{Comparison, Experiment, Options, Prepared};

/// Requests in flight.
const DEPTHS: [u16; 3] = [1, 4, 32];
/// Cells of guests: end of the id, depth, and the most requests that fio submits at once.
const GUESTS: [(&str, u16, u16); 4] =
    [("d1", 1, 1), ("d4", 4, 1), ("d32", 32, 1), ("d32-batch", 32, 8)];

/// The `sleeping` experiment.
#[derive(Debug)]
pub struct Sleeping;

impl Experiment for Sleeping {
    fn name(&self) -> &'static str {
        "sleeping"
    }

    fn summary(&self) -> &'static str {
        "a client that sleeps on its eventfd, and fio in a guest: --poll auto, off, and qemu's"
    }

    fn takes_peers(&self) -> bool {
        true
    }

    fn takes_other_binary(&self) -> bool {
        true
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cells = chosen(cells(options), options);
        let design = Design {
            comparisons: cells.iter().flat_map(comparisons).collect(),
            rounds: if options.quick { 3 } else { 7 },
            window_ms: if options.quick { 100 } else { 400 },
            placement: Placement::choose()?,
            notes: vec![
                "The client keeps its depth in flight: it takes all completions that it finds, \
                 sends as many requests, kicks once, and sleeps if it found none. The guest is \
                 User-Mode Linux on the client's CPU, where fio reads with io_uring. fio submits \
                 one request at a time, unless the title says more. The guest's CPU time is that \
                 of all its processes from fio's first request to its last. Its calls are the \
                 interrupts that it counted. A system call costs such a guest more than a request \
                 costs the backend, so its rate is mostly its own."
                    .to_owned(),
            ],
            plots: Vec::new(),
        };
        prepare(cells, design, options)
    }
}

/// Returns the cells of a run. A quick run boots guests for one of them.
fn cells(options: &Options) -> Vec<CellSpec> {
    let [off, auto] = [Poll::Off, Poll::Auto].map(|poll| System::ours(poll, Medium::Null));
    // Ours stand beside what they are compared with. `comparisons` relies on this order.
    let mut systems = vec![off, System::DAEMON_NO_POLL, System::DAEMON, auto];
    systems.extend(options.other_binary.is_some().then_some(System::Other));
    let cell = |id: String, depth: u16, client: &str| {
        let title = format!("null disk, 4 KiB random read, depth {depth}, {client}");
        let load = Load { depth, wait: Wait::Sleep, sample_every: 16, ..Load::default() };
        CellSpec::new((id, title), Medium::Null, load, &systems)
    };
    let asleep = DEPTHS
        .map(|depth| cell(format!("null-4k-d{depth}"), depth, "client asleep on its eventfd"));
    let guests = GUESTS.into_iter().filter(|(end, ..)| !options.quick || *end == "d32-batch");
    let guests = guests.map(|(end, depth, batch)| {
        let client = match batch {
            1 => "fio in a User-Mode Linux guest".to_owned(),
            _ => format!("fio in a User-Mode Linux guest, {batch} submitted at once"),
        };
        let reader = Reader::GuestFio(batch);
        CellSpec { reader, ..cell(format!("guest-{end}"), depth, &client) }
    });
    asleep.into_iter().chain(guests).collect()
}

/// Returns the comparisons of a cell: each of our modes with the peer that polls as it does, and
/// the default with the other binary.
fn comparisons(spec: &CellSpec) -> Vec<Comparison> {
    let names: Vec<&String> = spec.systems.iter().map(|(name, _)| name).collect();
    let [off, quiet, daemon, auto, ..] = names[..] else { return Vec::new() };
    let other = spec.name(|system| *system == System::Other);
    let pairs = [(auto, daemon), (off, quiet)].into_iter();
    let pairs = pairs.chain(other.as_ref().map(|other| (auto, other)));
    let metrics: &[&str] = match spec.reader {
        Reader::GuestFio(_) => &["iops", "cpu_us_per_request", "backend_cpu_us_per_request"],
        _ => &["iops", "backend_cpu_us_per_request"],
    };
    let of = |ours: &String, peer: &String, metric: &str| {
        let judged = metric == "iops" && Some(peer) == other.as_ref();
        Comparison {
            cell: spec.id.clone(),
            ours: ours.clone(),
            peers: vec![peer.clone()],
            metric: Some(metric.to_owned()),
            bar: if judged { bar(spec) } else { None },
            // A wake-up takes longer than the rest of a request, and varies more.
            spread_excuses: judged && spec.load.depth == 1,
            ..Comparison::default()
        }
    };
    pairs
        .flat_map(|(ours, peer)| metrics.iter().map(move |metric| of(ours, peer, metric)))
        .collect()
}

/// Returns the bar over a binary that publishes a batch only at its end. A guest of User-Mode Linux
/// is busy with itself, so nothing is promised of it.
fn bar(spec: &CellSpec) -> Option<f64> {
    match (spec.control, spec.reader, spec.load.depth) {
        (false, Reader::Client, 1) => Some(0.95),
        (false, Reader::Client, 4) => Some(1.2),
        (false, Reader::Client, 32) => Some(1.8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_other() -> Options {
        Options { other_binary: Some("/old".into()), ..Options::default() }
    }

    fn planned(options: &Options) -> (Vec<CellSpec>, Vec<Comparison>) {
        let cells = chosen(cells(options), options);
        let compared = cells.iter().flat_map(comparisons).collect();
        (cells, compared)
    }

    #[test]
    fn ids_are_unique_and_a_quick_run_has_one_cell_of_guests() {
        let ids = |options: &Options| -> Vec<String> {
            planned(options).0.into_iter().map(|cell| cell.id).collect()
        };
        let null = ["null-4k-d1", "null-4k-d4", "null-4k-d32"];
        let guests = ["guest-d1", "guest-d4", "guest-d32", "guest-d32-batch"];
        assert_eq!(ids(&Options::default()), [&null[..], &guests].concat());
        let quick = Options { quick: true, ..Options::default() };
        assert_eq!(ids(&quick), [&null[..], &["guest-d32-batch"]].concat());
    }

    #[test]
    fn ours_are_compared_with_the_peer_that_polls_alike() {
        let (_, compared) = planned(&Options::default());
        assert_eq!(compared.len(), 3 * 2 * 2 + 4 * 2 * 3);
        for one in compared {
            let [peer] = &one.peers[..] else { panic!("{one:?}") };
            assert_eq!(one.ours.ends_with("off"), peer.ends_with("poll-max-ns=0"), "{one:?}");
            assert!(peer.starts_with("qsd") && one.bar.is_none(), "{one:?}");
        }
    }

    #[test]
    fn bars_are_those_over_the_other_binary() {
        let (cells, compared) = planned(&with_other());
        assert!(cells.iter().all(|cell| cell.systems.len() == 5));
        let bars: Vec<_> = compared.iter().filter(|c| c.bar.is_some()).collect();
        let about = bars.iter().map(|c| (c.cell.as_str(), c.bar.unwrap(), c.spread_excuses));
        let promised =
            [("null-4k-d1", 0.95, true), ("null-4k-d4", 1.2, false), ("null-4k-d32", 1.8, false)];
        assert_eq!(about.collect::<Vec<_>>(), promised);
        assert!(
            bars.iter().all(|c| c.ours.ends_with("--poll auto") && c.peers == ["other binary"])
        );
    }

    #[test]
    fn a_control_run_has_none_of_ours() {
        let (cells, compared) = planned(&Options { control: true, ..with_other() });
        let mut systems = cells.iter().flat_map(|cell| &cell.systems);
        assert!(systems.all(|(_, system)| !system.is_ours()));
        assert!(compared.iter().all(|c| c.bar.is_none() && c.peers[0] != c.ours));
    }
}
