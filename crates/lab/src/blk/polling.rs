//! `polling`: benefit and cost of polling for requests without pauses, after think times, and at
//! random.

use std::time::Duration;

use anyhow::Result;

use super::cell::{CellSpec, Design, Reader, chosen, prepare};
use super::client::{Arrivals, Load, Wait};
use super::eventfd_pair;
use super::medium::Medium;
use super::systems::{Poll, System};
use crate::cpu::Placement;
use crate::experiment::{
    Comparison, Experiment, Figure, Options, PanelPlan, PlotPlan, PointPlan, Prepared, SeriesPlan,
    Side,
};

/// Think times of a client, in microseconds.
const THINK_US: [u64; 4] = [0, 10, 50, 200];
/// Random arrivals per second.
const PER_SECOND: [u32; 2] = [5_000, 50_000];
/// Most requests in flight with random arrivals.
const OPEN_DEPTH: u16 = 64;
/// Least share of the gain of `--poll always` that `auto` must reach.
const KEPT: f64 = 0.8;
/// `poll-max-ns` of `qemu-storage-daemon`: its default (32 us), none, and Ringway's longest.
const DAEMON_POLLS: [Option<u64>; 3] = [None, Some(0), Some(128_000)];

/// The `polling` experiment.
#[derive(Debug)]
pub struct Polling;

impl Experiment for Polling {
    fn name(&self) -> &'static str {
        "polling"
    }

    fn summary(&self) -> &'static str {
        "depth 1, think times, random arrivals, a real guest: --poll off, auto, always, and qemu's"
    }

    fn takes_peers(&self) -> bool {
        true
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cells = chosen(cells(options.quick), options);
        let design = Design {
            comparisons: cells.iter().flat_map(comparisons).collect(),
            rounds: if options.quick { 3 } else { 7 },
            window_ms: if options.quick { 100 } else { 250 },
            placement: Placement::choose()?,
            notes: vec![
                "4 KiB random reads by a client that polls, except where it sleeps or is a guest. \
                 Think time: after each request the client spins for exactly that long. Arrivals \
                 at random: exponential gaps from a seeded generator, whatever the backend does. \
                 Latency counts from the moment at which a request should have been sent; requests \
                 sent more than 10 us after it are late. Such turns are four times as long, \
                 because `auto` first learns whether polling pays. The guest is User-Mode Linux on \
                 the client's CPU, where dd reads 4 KiB blocks in order with direct I/O; its p50 \
                 is the mean."
                    .to_owned(),
                eventfd_pair::NOTE.to_owned(),
            ],
            plots: vec![plot(&cells)],
        };
        prepare(cells, design, options)
    }
}

/// Returns the media of a run. A quick run uses one.
fn media(quick: bool) -> &'static [Medium] {
    if quick { &[Medium::Null] } else { &[Medium::Null, Medium::Cached, Medium::Direct] }
}

fn cells(quick: bool) -> Vec<CellSpec> {
    let mut cells = Vec::new();
    for medium in media(quick) {
        for us in THINK_US {
            let arrivals = match us {
                0 => Arrivals::Next,
                us => Arrivals::Think(Duration::from_micros(us)),
            };
            // If a turn is shorter than a microsecond, only one turn in 16 reads the clock.
            let sample_every = if us == 0 { 16 } else { 1 };
            let load = Load { arrivals, sample_every, ..Load::default() };
            let what = format!("depth 1, think time {us} us");
            cells.push(cell(&format!("think-{us}"), &what, *medium, load));
        }
        for per_second in PER_SECOND {
            let arrivals = Arrivals::Poisson(per_second);
            let load = Load { arrivals, depth: OPEN_DEPTH, sample_every: 1, ..Load::default() };
            let what = format!("{per_second} a second at random");
            cells.push(cell(&format!("poisson-{per_second}"), &what, *medium, load));
        }
    }
    let load = Load { wait: Wait::Sleep, sample_every: 4, ..Load::default() };
    let mut asleep = cell("asleep", "depth 1, client asleep on its eventfd", Medium::Null, load);
    let bare = [System::BarePair, System::BareWake];
    asleep.systems.extend(bare.map(|system| (system.name(Medium::Null), system)));
    cells.push(asleep);
    for medium in media(quick).iter().filter(|medium| **medium != Medium::Direct) {
        let what = "a User-Mode Linux guest, one program, sequential";
        let mut guest = cell("guest", what, *medium, Load::default());
        guest.reader = Reader::GuestDd;
        // Each system boots a guest, so this cell leaves out modes that other cells cover.
        guest
            .systems
            .retain(|(_, system)| !matches!(system, System::Daemon { poll_max_ns: Some(_), .. }));
        cells.push(guest);
    }
    cells
}

fn cell(load_id: &str, what: &str, medium: Medium, load: Load) -> CellSpec {
    let ours = Poll::ALL.map(|poll| System::ours(poll, medium));
    let direct = medium != Medium::Cached;
    let peers = DAEMON_POLLS.map(|poll_max_ns| System::Daemon { poll_max_ns, direct });
    let mut systems = [&ours[..], &peers].concat();
    if medium == Medium::Cached {
        systems.push(System::DAEMON);
    }
    let id = format!("{}-{load_id}", medium.id());
    CellSpec::new((id, format!("{}, {what}", medium.title())), medium, load, &systems)
}

/// Returns the bars of the default mode, and its comparisons with the peers.
fn comparisons(spec: &CellSpec) -> Vec<Comparison> {
    let Some([off, auto, always]) = spec.ours() else { return Vec::new() };
    let peers = spec.daemons();
    let of = |peers: &[&String], metric: &str| Comparison {
        cell: spec.id.clone(),
        ours: auto.clone(),
        peers: peers.iter().map(|peer| (*peer).clone()).collect(),
        metric: Some(metric.into()),
        ..Comparison::default()
    };
    let at_most = |peer, metric, bar| Comparison {
        bar: Some(bar),
        side: Side::AtMost,
        ..of(&[peer], metric)
    };
    let kept = Comparison { figure: Figure::Kept, bar: Some(KEPT), ..of(&[&off, &always], "iops") };
    let mut all = match (spec.load.arrivals, spec.reader) {
        (Arrivals::Poisson(..=5_000), _) => {
            vec![at_most(&off, "backend_cpus", 1.2), at_most(&off, "p50_us", 1.1)]
        }
        (Arrivals::Poisson(_), _) => vec![at_most(&always, "p50_us", 1.2)],
        (Arrivals::Think(time), _) if time.as_micros() <= 50 => vec![kept],
        (_, Reader::GuestDd) => vec![kept],
        _ => Vec::new(),
    };
    // The bar applies to a client that sleeps when its reply arrives.
    if let Some(bare) = spec.name(|system| *system == System::BareWake) {
        all.push(at_most(&bare, "p50_us", 1.15));
    }
    if let Some(bare) = spec.name(|system| *system == System::BarePair) {
        all.push(of(&[&bare], "p50_us"));
    }
    if spec.control {
        all.iter_mut().for_each(|comparison| comparison.bar = None);
    }
    match spec.load.arrivals {
        // The backend does not determine the number of arrivals, so latency is compared.
        Arrivals::Poisson(_) => all.extend(peers.iter().map(|peer| of(&[peer], "p50_us"))),
        _ => all.push(of(&peers.iter().collect::<Vec<_>>(), "iops")),
    }
    all
}

/// Plots requests per second or latency, and CPUs, over think times and over arrivals. Each medium
/// has a row.
fn plot(cells: &[CellSpec]) -> PlotPlan {
    let mut panels = Vec::new();
    let mut media: Vec<Medium> = Vec::new();
    for cell in cells.iter().filter(|cell| cell.reader == Reader::Client) {
        if !media.contains(&cell.medium) {
            media.push(cell.medium);
        }
    }
    for medium in media {
        let think = THINK_US.map(|us| (us.to_string(), format!("{}-think-{us}", medium.id())));
        let arrivals = PER_SECOND.map(|n| (n.to_string(), format!("{}-poisson-{n}", medium.id())));
        for (x, steps, metric, log) in [
            ("think time, us", &think[..], "p50_us", true),
            ("think time, us", &think[..], "backend_cpus", false),
            ("arrivals a second, at random", &arrivals[..], "p50_us", true),
            ("arrivals a second, at random", &arrivals[..], "backend_cpus", false),
        ] {
            panels.push(PanelPlan {
                title: medium.title().to_owned(),
                x: x.to_owned(),
                steps: steps.iter().map(|(step, _)| step.clone()).collect(),
                metric: metric.to_owned(),
                log,
                series: series(cells, steps),
            });
        }
    }
    PlotPlan {
        name: "lines".into(),
        title: "polling: latency, and the CPUs that the backend used for it".into(),
        columns: 4,
        panels,
    }
}

/// Returns a line for each system in the cells of the steps. Cache modes belong to the medium, so
/// the name leaves them out.
fn series(cells: &[CellSpec], steps: &[(String, String)]) -> Vec<SeriesPlan> {
    let mut all: Vec<SeriesPlan> = Vec::new();
    for (step, (_, id)) in steps.iter().enumerate() {
        let Some(cell) = cells.iter().find(|cell| cell.id == *id) else { continue };
        for (system, _) in &cell.systems {
            let cut = [" --cache writeback", " --cache none"];
            let name = cut.iter().fold(system.clone(), |name, cut| name.replace(cut, ""));
            let usual = if cell.medium == Medium::Cached { " buffered" } else { " direct" };
            let name = name.replace(usual, "");
            let point = PointPlan::new(step, id, system);
            match all.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => all.push(SeriesPlan { name, points: vec![point] }),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promised(options: &Options) -> Vec<(String, String, f64)> {
        let cells = chosen(cells(options.quick), options);
        let all = cells.iter().flat_map(comparisons);
        all.filter_map(|c| Some((c.cell, c.metric?, c.bar?))).collect()
    }

    #[test]
    fn what_is_promised_of_the_default() {
        let quick = promised(&Options { quick: true, ..Options::default() });
        let expected = [
            ("null-think-10", "iops", 0.8),
            ("null-think-50", "iops", 0.8),
            ("null-poisson-5000", "backend_cpus", 1.2),
            ("null-poisson-5000", "p50_us", 1.1),
            ("null-poisson-50000", "p50_us", 1.2),
            ("null-asleep", "p50_us", 1.15),
            ("null-guest", "iops", 0.8),
        ];
        assert_eq!(quick, expected.map(|(cell, of, bar)| (cell.to_owned(), of.to_owned(), bar)));
        // Five more for each of two media, and one more guest.
        assert_eq!(promised(&Options::default()).len(), 7 + 2 * 5 + 1);
        let control = Options { control: true, ..Options::default() };
        assert_eq!(promised(&control), []);
    }

    #[test]
    fn every_medium_has_its_panels_and_every_system_its_line() {
        let plan = plot(&cells(false));
        assert_eq!(plan.panels.len(), 12);
        for panel in &plan.panels {
            let steps = panel.steps.len();
            assert!(panel.series.iter().all(|series| series.points.len() == steps), "{panel:?}");
            let lines = if panel.title == "file in the page cache" { 7 } else { 6 };
            assert_eq!(panel.series.len(), lines, "{panel:?}");
        }
        let names: Vec<_> = plan.panels[4].series.iter().map(|s| s.name.as_str()).collect();
        let same: Vec<_> = plan.panels[0].series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names[..6], same[..]);
    }
}
