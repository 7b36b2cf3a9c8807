//! `hung-sr`: starts and short calls while starts of other VMs hang in their storage.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use testkit::ringwayd::fleet::{self, Sr};
use xenapi::Value;

use super::{Host, ms, params};
use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, Prepared, Sample, Side,
};
use crate::host::versions;
use crate::stats::percentile;

/// VMs whose start hangs, and with `--quick`.
const HUNG: usize = 40;
const HUNG_QUICK: usize = 4;
/// Disks of each VM: as many as the third SR has step slots while the other two have just hung.
const DISKS: u8 = 4;
/// Measured starts, and short calls.
const STARTS: usize = 3;
const CALLS: usize = 300;
/// Bar for a start beside hung ones over a start alone.
const START_RATIO: f64 = 1.3;
/// Bar for the 99th percentile of the short calls, in milliseconds.
const CALL_P99_MS: f64 = 100.0;
/// Delays of storage and host without failures.
const USUAL: &str = "[[rule]]\ncalls = [\"attach-volume\"]\nafter-ms = 100\n\
                     [[rule]]\ncalls = [\"create\"]\nafter-ms = 200\n";

const CELL: &str = "third-sr";
const SYSTEMS: [&str; 2] = ["beside hung starts", "alone"];

/// The `hung-sr` experiment.
#[derive(Debug)]
pub struct HungSr;

impl Experiment for HungSr {
    fn name(&self) -> &'static str {
        "hung-sr"
    }

    fn summary(&self) -> &'static str {
        "a VM's start and short calls while starts on two other SRs hang"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let hung = if options.quick { HUNG_QUICK } else { HUNG };
        let [ours, alone] = SYSTEMS.map(ToOwned::to_owned);
        let start = Comparison {
            cell: CELL.to_owned(),
            ours: ours.clone(),
            peers: vec![alone.clone()],
            side: Side::AtMost,
            bar: Some(START_RATIO),
            ..Comparison::default()
        };
        let calls = Comparison {
            metric: Some("call_p99_ms".to_owned()),
            peers: Vec::new(),
            figure: Figure::Worst,
            bar: Some(CALL_P99_MS),
            ..start.clone()
        };
        let cell = CellPlan {
            id: CELL.to_owned(),
            title: format!("VM of {DISKS} disks on the third SR, {hung} starts hang on two"),
            systems: vec![ours, alone],
        };
        let plan = Plan {
            cells: if options.selects(CELL) { vec![cell] } else { Vec::new() },
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "start_ms".to_owned(),
            comparisons: vec![start, calls],
            versions: versions(&[], Some("ringwayd"))?,
            notes: vec![format!(
                "Storage is simulated: an attach takes 100 ms, a VM's creation 200 ms. `start_ms` \
                 is the shortest of {STARTS} starts, `call_p99_ms` the 99th percentile of {CALLS} \
                 calls of five kinds."
            )],
            ..Plan::default()
        };
        Ok(Box::new(PreparedExperiment { plan, hung }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    hung: usize,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, _: usize, system: usize) -> Result<Sample> {
        let mut host = Host::simulated(USUAL)?;
        let client = &mut host.client;
        let mut sr = |name: &str| Sr::make(client, (name, "sim"), &[]);
        let (on, third) = ([sr("one")?, sr("two")?], sr("third")?);
        let vm = fleet::machine(client, "third", (DISKS, Some(&third)))?;
        let mut hung = Vec::new();
        for number in 0..self.hung {
            let sr = &on[number % on.len()];
            hung.push(fleet::machine(client, &format!("hung{number}"), (DISKS, Some(sr)))?);
        }
        let hangs = on.map(|sr| {
            format!(
                "[[rule]]\nsr = \"{}\"\ncalls = [\"attach-volume\"]\nend = \"hangs\"\n",
                sr.uuid
            )
        });
        host.daemon.set_rules(&[&hangs.concat(), USUAL].concat())?;
        let mut host = host.again()?;
        let mut caller = host.daemon.client()?;
        if system == 0 {
            for vm in &hung {
                caller.begin("VM.start", &params("VM.start", vm))?;
            }
        }
        let mut shortest = Duration::MAX;
        for _ in 0..STARTS {
            shortest = shortest.min(host.takes("VM.start", &[&vm])?);
            host.takes("VM.hard_shutdown", &[&vm])?;
        }
        let call_p99_ms = short_calls(&mut host, &vm)?;
        for vm in &hung {
            let state = host.client.call("VM.get_power_state", &[Value::text(vm.as_str())])?;
            ensure!(state == Value::text("Halted"), "a start did not hang");
        }
        let metrics = [("start_ms", ms(shortest)), ("call_p99_ms", call_p99_ms)];
        Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

/// Returns the 99th percentile of short calls of several kinds, in milliseconds.
fn short_calls(host: &mut Host, vm: &str) -> Result<f64> {
    let vm = Value::text(vm);
    let Value::Set(hosts) = host.client.call("host.get_all", &[])? else { bail!("no hosts") };
    let kinds = [
        ("VM.get_record", vec![vm.clone()]),
        // This call is answered when its change is on disk.
        ("VM.set_name_description", vec![vm.clone(), Value::text("written")]),
        // This call is answered when its task exists.
        ("Async.host.enable", hosts),
        (
            "event.from",
            vec![Value::Set(vec![Value::text("vm")]), Value::text(""), Value::Float(0.0)],
        ),
        ("VM.get_all_records", vec![]),
    ];
    let mut took = Vec::new();
    for (method, params) in kinds.iter().cycle().take(CALLS) {
        let began = Instant::now();
        host.client.call(method, params)?;
        took.push(ms(began.elapsed()));
    }
    Ok(percentile(&mut took, 99))
}
