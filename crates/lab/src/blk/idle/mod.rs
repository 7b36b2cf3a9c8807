//! `idle-queues`: cost of idle queues.
//!
//! Measures a busy disk alone and beside a hundred idle ones, and a process that has only idle
//! disks. An idle queue is one that a front-end has started and used once.

mod cases;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

use cases::{CASES, Case, IDLE_DISKS, Key, QUEUES_BESIDE, names};

use super::client::{self, Load, Window};
use super::fleet::{Counters, Disk, Fleet, raise_open_files};
use crate::cpu::{self, Placement};
use crate::experiment::{CellPlan, Experiment, Options, Plan, Prepared, Sample};
use crate::host::{HostTime, QSD, versions};

/// Open files for two such processes and the front-ends of both, with a margin.
const OPEN_FILES: u64 = 65_536;
/// Pause before a measurement. A process that was just used becomes idle, and the other one notices
/// that the CPU is free. Free CPUs are averages over 400 ms.
const REST: Duration = Duration::from_millis(500);

/// The `idle-queues` experiment.
#[derive(Debug)]
pub struct IdleQueues;

impl Experiment for IdleQueues {
    fn name(&self) -> &'static str {
        "idle-queues"
    }

    fn summary(&self) -> &'static str {
        "a busy disk alone and beside 100 idle ones x 32 queues; CPU and wake-ups of idle ones"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let placement = Placement::choose()?;
        let wanted = |case: &Case| options.selects(&case.id());
        let cases: Vec<_> = CASES.into_iter().filter(wanted).collect();
        let files = raise_open_files(OPEN_FILES);
        let fewest = cases.iter().map(|case| case.disks(files)).min().unwrap_or(IDLE_DISKS);
        ensure!(fewest > 0, "{files} open files are too few; raise the hard limit (`ulimit -Hn`)");
        let mut notes = vec![format!(
            "Backends on CPU {}, the client on CPU {}. Every idle queue was started by a front-end and \
             used once. All processes run for the whole run and take turns, with {} ms between them. \
             Idle ones are watched for as long as the column says; wake-ups are counted by the kernel \
             (voluntary switches of all threads) and by the reactors.",
            placement.backend,
            placement.client,
            REST.as_millis()
        )];
        if fewest < IDLE_DISKS {
            notes.push(format!(
                "Only {fewest} idle disks of {QUEUES_BESIDE} queues instead of {IDLE_DISKS}, because \
                 {files} open files are allowed: the bar is judged on those. Raise the hard limit \
                 (`ulimit -Hn`) for all."
            ));
        }
        let control = options.control;
        let cell = |case: &Case| CellPlan {
            id: case.id(),
            title: case.title(case.disks(files)),
            systems: names(&case.systems(case.disks(files), control)),
        };
        let plan = Plan {
            cells: cases.iter().map(cell).collect(),
            paired: false,
            rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 9 }),
            metric: "iops".into(),
            comparisons: cases
                .iter()
                .flat_map(|case| case.comparisons(case.disks(files), control))
                .collect(),
            versions: versions(&[QSD], (!control).then_some("ringway-io"))?,
            notes,
            plots: Vec::new(),
        };
        let window_ms = options.window_ms;
        let crowds = BTreeMap::new();
        Ok(Box::new(PreparedExperiment {
            plan,
            cases,
            files,
            control,
            placement,
            window_ms,
            crowds,
        }))
    }
}

/// Process with the front-ends of its idle disks. Its first disk is the busy one.
struct IdleFleet {
    /// Dropped before the process, so that the front-ends disconnect first.
    _guests: Vec<Guest>,
    fleet: Fleet,
}

impl IdleFleet {
    fn start((backend_kind, disks, queues): Key, cpu: usize) -> Result<Self> {
        let busy = Disk { queues: 1, image: None, words: Vec::new() };
        let idle = (0..disks).map(|_| Disk { queues, image: None, words: Vec::new() });
        let all: Vec<Disk> = std::iter::once(busy).chain(idle).collect();
        let fleet = cpu::started_on(cpu, || Fleet::start(backend_kind, &all, None))?;
        let mut guests = Vec::new();
        for disk in 1..=disks {
            guests.push(used_once(&fleet, disk, queues)?);
        }
        Ok(Self { _guests: guests, fleet })
    }
}

/// Returns a front-end that has started every queue and used it once. It keeps its connection and
/// memory, but closes its eventfds. The backend has its own copies and does not notice.
fn used_once(fleet: &Fleet, disk: usize, queues: u16) -> Result<Guest> {
    let setup = Setup { queues, queue_size: 16, memory_bytes: 1 << 20, ..Setup::default() };
    let mut guest = Guest::start(&fleet.socket(disk), &setup)?;
    for queue in 0..usize::from(queues) {
        let done = guest.run(queue, &Request::read(0, 512))?;
        ensure!(done.status == status::OK, "disk {disk}, queue {queue}: status {}", done.status);
    }
    guest.queues.clear();
    Ok(guest)
}

struct PreparedExperiment {
    plan: Plan,
    cases: Vec<Case>,
    files: u64,
    control: bool,
    placement: Placement,
    window_ms: Option<u64>,
    crowds: BTreeMap<Key, IdleFleet>,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let case = self.cases[cell];
        let (_, key) = case.systems(case.disks(self.files), self.control)[system];
        let fleet = match self.crowds.entry(key) {
            std::collections::btree_map::Entry::Occupied(there) => &there.into_mut().fleet,
            std::collections::btree_map::Entry::Vacant(place) => {
                &place.insert(IdleFleet::start(key, self.placement.backend)?).fleet
            }
        };
        let millis = |default| Duration::from_millis(self.window_ms.unwrap_or(default));
        match case {
            Case::Busy(depth) => {
                let load = Load { depth, ..Load::default() };
                let window = Window::of(millis(300));
                let time = || fleet.time_s();
                std::thread::sleep(REST);
                client::measure(&fleet.socket(0), load, window, self.placement.client, time)
            }
            Case::Idle => idle(fleet, millis(10_000)),
        }
    }
}

/// Measures an idle process.
fn idle(fleet: &Fleet, window: Duration) -> Result<Sample> {
    let reactors = fleet.reactors()?;
    std::thread::sleep(REST);
    let (before, host, start) = (fleet.counters()?, HostTime::now()?, Instant::now());
    std::thread::sleep(window);
    let (after, seconds) = (fleet.counters()?, start.elapsed().as_secs_f64());
    let busy_s = HostTime::now()?.busy_s - host.busy_s;
    let Counters { cpu_s, switches } = before;
    let used_s = after.cpu_s - cpu_s;
    let mut sample = Sample::from([
        ("seconds".to_owned(), seconds),
        ("cpu_percent".to_owned(), used_s / seconds * 100.0),
        ("voluntary_switches".to_owned(), (after.switches - switches) as f64),
        ("other_cpus".to_owned(), (busy_s - used_s).max(0.0) / seconds),
    ]);
    if let (Some(before), Some(after)) = (reactors, fleet.reactors()?) {
        let wakeups = after.wakeups.checked_sub(before.wakeups).context("another worker serves")?;
        sample.insert("reactor_wakeups".into(), wakeups as f64);
        sample.insert("reactor_turns".into(), after.turns.saturating_sub(before.turns) as f64);
    }
    Ok(sample)
}
