//! `api-scale`: a pool of a thousand machines with fifteen disks each, as its clients see it.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use testkit::ringwayd::fleet;
use xenapi::Value;
use xenapi::client::Client;

use super::raw::{self, Dialect};
use super::{Host, ms, percentile};
use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, Prepared, Sample, Side,
};
use crate::host::versions;

/// Machines of the cells.
const MACHINES: [usize; 2] = [100, 1000];
/// Disks of each machine.
const DISKS: u8 = 15;
/// Machines that are shut down at once.
const AT_ONCE: usize = 20;
/// Whoever makes machines does so at the same time as others.
const MAKERS: usize = 8;
/// How long a guest takes to shut down: most of an ordinary shutdown.
const RULES: &str = "[[rule]]\ncalls = [\"guest\"]\nafter-ms = 1000\n";
/// Calls of one kind in a sample.
const CALLS: usize = 20;
/// Changes that are waited for in a sample.
const CHANGES: usize = 100;
/// More than an event takes to come.
const EVENT: Duration = Duration::from_secs(30);

/// Server's time of `VM.get_all_records`, in milliseconds: the 99th percentile.
const RECORDS_MS: f64 = 50.0;
/// From a change to the client that waits for it, in milliseconds: the 99th percentile.
const WAKE_MS: f64 = 10.0;
/// Twenty shutdowns over one.
const SHUTDOWNS: f64 = 2.0;

/// The experiment.
#[derive(Debug)]
pub struct ApiScale;

/// What is measured of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Records,
    Wake,
    List,
    Shutdown,
}

const ALL: [What; 4] = [What::Records, What::Wake, What::List, What::Shutdown];

impl What {
    fn cell(self, machines: usize) -> String {
        let what = match self {
            Self::Records => "records",
            Self::Wake => "wake",
            Self::List => "list",
            Self::Shutdown => "shutdown",
        };
        format!("m{machines}-{what}")
    }

    fn title(self, machines: usize) -> String {
        let what = match self {
            Self::Records => "all records of machines, server's time",
            Self::Wake => "from a change to whoever waits for it",
            Self::List => "xe vm-list, from its start to its end",
            Self::Shutdown => "clean shutdowns of guests that take a second",
        };
        format!("{machines} machines with {DISKS} disks each: {what}")
    }

    fn systems(self) -> Vec<String> {
        let all: &[&str] = match self {
            Self::Records => &["JSON", "XML"],
            Self::Wake => &["event.from"],
            Self::List => &["xe vm-list"],
            Self::Shutdown => &["20 at once", "one"],
        };
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    /// What is promised of a thousand machines; of fewer it is only told.
    fn comparisons(self, machines: usize) -> Vec<Comparison> {
        let bar = |bar| (machines == MACHINES[1]).then_some(bar);
        let of = |ours: &str, metric: &str| Comparison {
            cell: self.cell(machines),
            ours: ours.to_owned(),
            metric: Some(metric.to_owned()),
            figure: Figure::Alone,
            side: Side::AtMost,
            ..Comparison::default()
        };
        match self {
            Self::Records => ["JSON", "XML"]
                .map(|ours| Comparison { bar: bar(RECORDS_MS), ..of(ours, "server_p99_ms") })
                .into(),
            Self::Wake => {
                vec![Comparison { bar: bar(WAKE_MS), ..of("event.from", "wake_p99_ms") }]
            }
            Self::List => Vec::new(),
            Self::Shutdown => vec![Comparison {
                peers: vec!["one".to_owned()],
                figure: Figure::OverBest,
                bar: bar(SHUTDOWNS),
                ..of("20 at once", "stop_ms")
            }],
        }
    }
}

fn cells(options: &Options) -> Vec<(usize, What)> {
    let machines = MACHINES.into_iter().filter(|n| !options.quick || *n == MACHINES[0]);
    let all = machines.flat_map(|machines| ALL.map(|what| (machines, what)));
    let wanted = |(machines, what): &(usize, What)| {
        options.only.as_ref().is_none_or(|only| what.cell(*machines).contains(only))
    };
    all.filter(wanted).collect()
}

impl Experiment for ApiScale {
    fn name(&self) -> &'static str {
        "api-scale"
    }

    fn summary(&self) -> &'static str {
        "a thousand machines with 15 disks each: records, events, xe vm-list, shutdowns"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cells = cells(options);
        let plan = Plan {
            cells: cells
                .iter()
                .map(|(machines, what)| CellPlan {
                    id: what.cell(*machines),
                    title: what.title(*machines),
                    systems: what.systems(),
                })
                .collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "server_ms".into(),
            comparisons: cells.iter().flat_map(|(n, what)| what.comparisons(*n)).collect(),
            versions: versions(&[], Some("ringwayd"))?,
            notes: vec![
                format!(
                    "Machines are imagined. {AT_ONCE} of them run. A figure of a sample is the median \
                     of {CALLS} calls, of events the 99th percentile of {CHANGES}; the first call, \
                     for which records are written out, is told as `cold`."
                ),
                "`provisioned` is the pace at which machines were made, each with its disks, by eight \
                 clients."
                    .to_owned(),
            ],
            ..Plan::default()
        };
        Ok(Box::new(Ready { plan, cells, pools: BTreeMap::new() }))
    }
}

/// A pool of a size.
struct Pool {
    host: Host,
    /// Machines that run.
    running: Vec<String>,
    /// Disks that were made in a second.
    provisioned: f64,
}

struct Ready {
    plan: Plan,
    cells: Vec<(usize, What)>,
    pools: BTreeMap<usize, Pool>,
}

impl Pool {
    fn make(machines: usize) -> Result<Self> {
        let mut host = Host::simulated(RULES)?;
        let began = Instant::now();
        let makers = (0..MAKERS).map(|maker| {
            let client = host.daemon.client()?;
            let numbers = (maker..machines).step_by(MAKERS);
            Ok(thread::spawn(move || make(client, numbers)))
        });
        let makers = makers.collect::<Result<Vec<_>>>()?;
        let mut all = Vec::new();
        for maker in makers {
            all.extend(maker.join().map_err(|_| anyhow!("a client that makes machines failed"))??);
        }
        let provisioned = (machines * usize::from(DISKS)) as f64 / began.elapsed().as_secs_f64();
        all.truncate(AT_ONCE);
        let names: Vec<&str> = all.iter().map(String::as_str).collect();
        host.takes("VM.start", &names)?;
        Ok(Self { host, running: all, provisioned })
    }

    fn records(&mut self, dialect: Dialect) -> Result<Sample> {
        let socket = self.host.daemon.socket();
        let session = self.host.client.session().context("nobody is logged in")?.to_owned();
        // One record has changed: the first call finds it so, and writes it out anew.
        let machine = self.running.first().context("no machine runs")?;
        touch(&mut self.host.client, machine, 0)?;
        let call = || raw::call(&socket, dialect, ("VM.get_all_records", &session));
        let cold = call()?;
        let mut took = (0..CALLS).map(|_| Ok(call()?.server_ms)).collect::<Result<Vec<_>>>()?;
        Ok([
            ("server_ms".to_owned(), percentile(&mut took, 50)),
            ("server_p99_ms".to_owned(), percentile(&mut took, 99)),
            ("cold_ms".to_owned(), cold.server_ms),
            ("answer_mib".to_owned(), cold.bytes as f64 / f64::from(1 << 20)),
            ("disks_per_s".to_owned(), self.provisioned),
        ]
        .into())
    }

    /// One client changes a machine, another waits for that.
    fn wake(&mut self) -> Result<Sample> {
        let machine = self.running.first().context("no machine runs")?.clone();
        let mut waits = self.host.daemon.client()?;
        let of = format!("VM/{machine}");
        let mut token = waits.events(&[&of], "", EVENT)?.token;
        let (tell, told) = mpsc::channel();
        let (ask, asked) = mpsc::channel();
        let waiter = thread::spawn(move || -> Result<()> {
            while asked.recv().is_ok() {
                let batch = waits.events(&[&of], &token, EVENT)?;
                let now = Instant::now();
                ensure!(!batch.events.is_empty(), "no event has come");
                token = batch.token;
                tell.send(now)?;
            }
            Ok(())
        });
        let mut took = Vec::new();
        for change in 0..CHANGES {
            ask.send(())?;
            // Most of the time somebody waits already; that it does is not to be seen from here.
            thread::sleep(Duration::from_millis(2));
            let began = Instant::now();
            touch(&mut self.host.client, &machine, change)?;
            let came = told.recv_timeout(EVENT).context("the one who waits has failed")?;
            took.push(ms(came.saturating_duration_since(began)));
        }
        drop(ask);
        waiter.join().map_err(|_| anyhow!("the one who waits has failed"))??;
        let (half, most) = (percentile(&mut took, 50), percentile(&mut took, 99));
        Ok([("wake_p50_ms".to_owned(), half), ("wake_p99_ms".to_owned(), most)].into())
    }

    fn list(&self) -> Result<Sample> {
        let once = |_| {
            let began = Instant::now();
            self.host.daemon.xe_prints(&["vm-list"])?;
            Ok(ms(began.elapsed()))
        };
        let mut took = (0..CALLS).map(once).collect::<Result<Vec<_>>>()?;
        Ok([("list_ms".to_owned(), percentile(&mut took, 50))].into())
    }

    fn shutdown(&mut self, count: usize) -> Result<Sample> {
        let all: Vec<&str> = self.running.iter().take(count).map(String::as_str).collect();
        let stop = self.host.takes("VM.clean_shutdown", &all)?;
        self.host.takes("VM.start", &all)?;
        Ok([("stop_ms".to_owned(), ms(stop))].into())
    }
}

fn make(mut client: Client, numbers: impl Iterator<Item = usize>) -> Result<Vec<String>> {
    let made = numbers.map(|n| fleet::machine(&mut client, &format!("m{n}"), (DISKS, None)));
    Ok(made.collect::<Result<_, _>>()?)
}

fn touch(client: &mut Client, machine: &str, change: usize) -> Result<()> {
    let text = Value::text(format!("change {change} of {:?}", Instant::now()));
    client.call("VM.set_name_description", &[Value::text(machine), text])?;
    Ok(())
}

impl Prepared for Ready {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let (machines, what) = self.cells[cell];
        let pool = match self.pools.entry(machines) {
            std::collections::btree_map::Entry::Occupied(pool) => pool.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Pool::make(machines)?)
            }
        };
        match (what, system) {
            (What::Records, 0) => pool.records(Dialect::Json),
            (What::Records, _) => pool.records(Dialect::Xml),
            (What::Wake, _) => pool.wake(),
            (What::List, _) => pool.list(),
            (What::Shutdown, 0) => pool.shutdown(AT_ONCE),
            (What::Shutdown, _) => pool.shutdown(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_machines_carry_the_bars_and_a_hundred_none() {
        for (machines, what) in cells(&Options::default()) {
            for compared in what.comparisons(machines) {
                assert_eq!(compared.bar.is_some(), machines == 1000, "{compared:?}");
                assert!(what.systems().contains(&compared.ours), "{compared:?}");
                assert!(compared.peers.iter().all(|peer| what.systems().contains(peer)));
            }
        }
        assert_eq!(cells(&Options { quick: true, ..Options::default() }).len(), ALL.len());
    }
}
