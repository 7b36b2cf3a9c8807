//! `stats-cost`: cost of recording request times, and of the shares of a storage, on disks that do no other
//! work.
//!
//! Two processes of one program differ by more than this cost. So one `ringway-io` with one reactor
//! serves two disks, one with recording, or with a share of its storage. One client runs for some
//! milliseconds on the one and then on the other, A B B A, hundreds of times. The order of attach may
//! also matter, because it determines where the disk's memory lies. Several processes run in turn, and
//! the order alternates between them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::client::burst::{Burst, BurstResult};
use super::client::{self, Load, Window};
use super::fleet::{BackendKind, Disk, Fleet};
use super::image::DISK_BYTES;
use crate::cpu::{self, Placement};
use crate::experiment::{CellPlan, Comparison, Experiment, Options, Plan, Prepared, Sample};
use crate::host::{HostTime, versions};

/// Least rate with recording over the rate without.
const BAR: f64 = 0.98;
const ON: [bool; 2] = [true, false];
/// Pairs of samples per process.
const PAIRS: usize = 50;
/// Interval for measuring other work. The kernel counts in ticks of 10 ms.
const WATCH: Duration = Duration::from_millis(250);

/// The `stats-cost` experiment.
#[derive(Debug)]
pub struct StatsCost;

/// Feature that one of two disks has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feature {
    /// Recorded latencies, on null disks.
    Record,
    /// The scheduler of a storage, which has no other disk. A null disk has no storage. These are on
    /// models that take no time for a request, each of its own.
    Share,
}

/// Load of the client, and polling mode of the backend.
#[derive(Clone, Copy, Debug)]
struct Case {
    feature: Feature,
    depth: u16,
    poll: &'static str,
    bar: Option<f64>,
}

/// The bar concerns requests per second, so the backend must have no time to sleep.
const CASES: [Case; 5] = [
    Case { feature: Feature::Record, depth: 32, poll: "always", bar: Some(BAR) },
    Case { feature: Feature::Record, depth: 32, poll: "off", bar: Some(BAR) },
    Case { feature: Feature::Record, depth: 1, poll: "always", bar: None },
    Case { feature: Feature::Share, depth: 32, poll: "always", bar: None },
    Case { feature: Feature::Share, depth: 1, poll: "always", bar: None },
];

impl Case {
    fn id(&self) -> String {
        let disk = if self.feature == Feature::Record { "null" } else { "share" };
        format!("{disk}-4k-d{}-poll-{}", self.depth, self.poll)
    }

    fn system(self, on: bool) -> String {
        match self.feature {
            Feature::Record => format!("record={on}"),
            Feature::Share => format!("share={on}"),
        }
    }

    /// Returns parameters of `disk.attach`.
    fn words(self, on: bool) -> Vec<String> {
        let poll = format!("poll={}", self.poll);
        if self.feature == Feature::Record {
            return vec![format!("record={on}"), poll];
        }
        let pipe = json!({"bytes_per_second": 1_000_000_000_000_u64, "request_ns": 0,
                          "latency_ns": 0, "queue": 1024});
        let model = json!({"name": format!("share-{on}"), "size": DISK_BYTES, "profile": on,
                           "device": {"pipe": pipe}});
        vec![format!("backend={}", json!({ "model": model })), poll]
    }

    fn plan(&self) -> CellPlan {
        let disk = match self.feature {
            Feature::Record => "null disk",
            Feature::Share => "disk alone on a model without delays",
        };
        let title = format!("{disk}, 4 KiB, depth {}, poll={}", self.depth, self.poll);
        CellPlan { id: self.id(), title, systems: ON.map(|on| self.system(on)).into() }
    }

    fn comparison(&self, control: bool) -> Comparison {
        let [on, off] = ON.map(|on| self.system(on));
        let bar = self.bar.filter(|_| !control);
        Comparison { cell: self.id(), ours: on, peers: vec![off], bar, ..Comparison::default() }
    }

    fn load(&self) -> Load {
        Load { depth: self.depth, ..Load::default() }
    }
}

impl Experiment for StatsCost {
    fn name(&self) -> &'static str {
        "stats-cost"
    }

    fn summary(&self) -> &'static str {
        "cost of recorded latencies and of shares: two disks of one ringway-io, one of them with it"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let wanted = |case: &&Case| options.selects(&case.id());
        let cases: Vec<_> = CASES.iter().filter(wanted).copied().collect();
        let measure = Duration::from_millis(options.window_ms.unwrap_or(5));
        let plan = Plan {
            cells: cases.iter().map(Case::plan).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 200 } else { 600 }),
            paired: true,
            metric: "iops".into(),
            comparisons: cases.iter().map(|case| case.comparison(options.control)).collect(),
            versions: versions(&[], Some("ringway-io"))?,
            notes: vec![format!(
                "One ringway-io with one reactor on CPU {} serves both disks. One polling client \
                 on CPU {} uses one disk for {} ms, then the other, each after a warm-up of a \
                 fifth of that. After every {PAIRS} pairs a new process starts, and the other disk \
                 is attached first. A null disk moves no data, so nothing hides the cost of \
                 recording. A model without delays costs more than a null disk, with a share and \
                 without. Other work counts over the last {} ms.",
                placement.backend,
                placement.client,
                measure.as_millis(),
                WATCH.as_millis()
            )],
            ..Plan::default()
        };
        let (control, window) = (options.control, Window { warm: measure / 5, measure });
        Ok(Box::new(PreparedExperiment {
            plan,
            cases,
            placement,
            window,
            control,
            turns: 0,
            serving: None,
        }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    cases: Vec<Case>,
    placement: Placement,
    window: Window,
    control: bool,
    /// Number of samples so far. Cells run one after the other.
    turns: usize,
    serving: Option<Serving>,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let turn = self.turns % (2 * self.plan.rounds);
        self.turns += 1;
        let serving = match self.serving.take().filter(|_| !turn.is_multiple_of(2 * PAIRS)) {
            Some(serving) => serving,
            None => {
                let backwards = (turn / (2 * PAIRS)) % 2 == 1;
                Serving::start(self.cases[cell], backwards, self.control, self.placement)?
            }
        };
        let serving = self.serving.insert(serving);
        let (window, cpu) = (self.window, self.placement.client);
        let BurstResult { requests, kicks, seconds } =
            cpu::started_on(cpu, || serving.bursts[system].run(window))?;
        let (requests, kicks) = (requests as f64, kicks as f64);
        let metrics = [
            ("requests", requests),
            ("errors", 0.0),
            ("iops", requests / seconds),
            ("kicks_per_request", kicks / requests),
            ("other_cpus", serving.watch(cpu::thread_time_s())?),
        ];
        Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

/// One process with its two clients, in the order of [`ON`].
struct Serving {
    bursts: [Burst; 2],
    fleet: Fleet,
    seen: Seen,
    other_cpus: f64,
}

/// CPU times at the last measurement.
struct Seen {
    at: Instant,
    host: HostTime,
    ours_s: f64,
}

impl Serving {
    fn start(case: Case, backwards: bool, control: bool, placement: Placement) -> Result<Self> {
        let disk = |on: bool| Disk {
            queues: 1,
            image: None,
            // A control run compares two equal disks.
            words: case.words(on && !control),
        };
        let places = if backwards { [1, 0] } else { [0, 1] };
        let disks = places.map(|place| disk(ON[place]));
        let start = || Fleet::start(BackendKind::Ringway, &disks, Some(1));
        let fleet = cpu::started_on(placement.backend, start)?;
        let load = case.load();
        let burst = |place: usize| {
            let mut client_queues = client::seats(&fleet.socket(place), load, 1, None)?;
            ensure!(client_queues.len() == 1, "a disk with one queue has {}", client_queues.len());
            Ok(Burst::new(client_queues.remove(0), load))
        };
        let bursts = [burst(places[0])?, burst(places[1])?];
        let seen = Seen::now(&fleet, cpu::thread_time_s())?;
        Ok(Self { bursts, fleet, seen, other_cpus: 0.0 })
    }

    /// Returns the CPUs that other processes use.
    fn watch(&mut self, client_s: f64) -> Result<f64> {
        if self.seen.at.elapsed() >= WATCH {
            let now = Seen::now(&self.fleet, client_s)?;
            let wall_s = (now.at - self.seen.at).as_secs_f64();
            let busy_s = now.host.busy_s - self.seen.host.busy_s;
            self.other_cpus = (busy_s - (now.ours_s - self.seen.ours_s)).max(0.0) / wall_s;
            self.seen = now;
        }
        Ok(self.other_cpus)
    }
}

impl Seen {
    fn now(fleet: &Fleet, client_s: f64) -> Result<Self> {
        let ours_s = fleet.time_s()? + client_s;
        Ok(Self { at: Instant::now(), host: HostTime::now()?, ours_s })
    }
}
