//! `guest-weights`: three VMs of `ringwayd` read one slow storage, and `xe` changes the weight of one.
//!
//! The guests boot in QEMU, on any host without KVM. The storage is so slow that it limits them,
//! however few CPUs the host has.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;
use testkit::guest::boot_config;
use testkit::ringwayd::{Readers, Ringwayd};
use testkit::storage::SlowStorage;

use super::rates::{BINS, bin_metric, rates_plot};
use super::records::error_percent;
use crate::experiment::{
    CellPlan, Comparison, Experiment, Figure, Options, Plan, PlotPlan, Prepared, Sample, Side,
};
use crate::host::versions;

const CELL: &str = "guests";
const SYSTEM: &str = "ringwayd";
/// Bytes a second of the storage.
const RATE: u64 = 16_000_000;
/// Weights after the change.
const WEIGHTS: [u16; 3] = [100, 100, 400];
/// First point of those whose rates follow the weights. Requests that were sent before are through.
const SETTLED: usize = BINS * 2 / 3;
/// Length of a run in milliseconds.
const WINDOW_MS: u64 = 36_000;
/// Most that a rate may be off its weight, in percent.
const WEIGHT_BAR: f64 = 10.0;
/// Longest wait for the guests' first reads. They boot at once, without KVM, on few CPUs.
const DEADLINE: Duration = Duration::from_secs(300);

/// The `guest-weights` experiment.
#[derive(Debug)]
pub struct GuestWeights;

impl Experiment for GuestWeights {
    fn name(&self) -> &'static str {
        "guest-weights"
    }

    fn summary(&self) -> &'static str {
        "real guests read one slow storage while xe changes the weight of a disk"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cell = CellPlan {
            id: CELL.to_owned(),
            title: format!(
                "three guests read 64 KiB at depth 32 from a storage of {} MB/s",
                RATE / 1_000_000
            ),
            systems: vec![SYSTEM.to_owned()],
        };
        let bar = Comparison {
            cell: CELL.to_owned(),
            ours: SYSTEM.to_owned(),
            metric: Some("weights_error_percent".to_owned()),
            figure: Figure::Alone,
            side: Side::AtMost,
            bar: Some(WEIGHT_BAR),
            ..Comparison::default()
        };
        let plan = Plan {
            cells: if options.selects(CELL) { vec![cell] } else { Vec::new() },
            rounds: options.rounds.unwrap_or(if options.quick { 1 } else { 3 }),
            metric: "mib_per_s".into(),
            comparisons: vec![bar],
            versions: versions(&[], Some("ringwayd"))?,
            notes: vec![format!(
                "Half-way, `xe vbd-param-set qos_algorithm_params:weight={}` changes the weight of \
                 the last disk from 100. `weights_error_percent`: furthest off its weight in the \
                 last third. Rates are those that `ringway io stats` counts.",
                WEIGHTS[2]
            )],
            plots: vec![plot()],
            ..Plan::default()
        };
        let window = Duration::from_millis(options.window_ms.unwrap_or(WINDOW_MS));
        Ok(Box::new(PreparedGuests { plan, window, config: boot_config()? }))
    }
}

/// Draws the rates of the disks while a weight changes.
fn plot() -> PlotPlan {
    let title = format!("guest-weights: half-way, xe gives disk 3 a weight of {}", WEIGHTS[2]);
    let panel = format!("three guests of QEMU, a storage of {} MB/s", RATE / 1_000_000);
    rates_plot(title, panel, (CELL, SYSTEM), WEIGHTS.len())
}

struct PreparedGuests {
    plan: Plan,
    window: Duration,
    config: NamedTempFile,
}

impl Prepared for PreparedGuests {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, _: usize, _: usize) -> Result<Sample> {
        let slow = SlowStorage::new(RATE)?.context("this host cannot limit a storage")?;
        let config = self.config.path().display().to_string();
        let daemon = Ringwayd::start(&["--config", &config, "--hypervisor", "qemu"])?;
        let count = WEIGHTS.len();
        let readers = Readers::start(&daemon, &slow, calibrate::identity, count, DEADLINE)?;
        let mut sample = Sample::new();
        let (began, mut before) = (Instant::now(), (Instant::now(), readers.bytes()?));
        let first = before.clone();
        let mut settled = before.clone();
        for bin in 0..BINS {
            if bin == BINS / 2 {
                readers.set_weight(&daemon, count - 1, WEIGHTS[count - 1])?;
            }
            if bin == SETTLED {
                settled = before.clone();
                self.note_top(&readers)?;
            }
            let end = began + self.window * (bin as u32 + 1) / BINS as u32;
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            let now = (Instant::now(), readers.bytes()?);
            for (disk, rate) in rates(&before, &now).into_iter().enumerate() {
                sample.insert(bin_metric(disk, bin), rate);
            }
            before = now;
        }
        sample.insert("mib_per_s".into(), rates(&first, &before).iter().sum());
        let error = error_percent(&rates(&settled, &before), &WEIGHTS);
        sample.insert("weights_error_percent".into(), error);
        Ok(sample)
    }
}

impl PreparedGuests {
    /// Adds what `ringway top` shows to the report, once.
    fn note_top(&mut self, readers: &Readers) -> Result<()> {
        let top = readers.top()?;
        ensure!(top.contains(&format!(" {} ", WEIGHTS[2])), "no weight of {} in {top}", WEIGHTS[2]);
        if self.plan.notes.len() == 1 {
            self.plan.notes.push(format!("`ringway top` then:\n\n```text\n{top}```"));
        }
        Ok(())
    }
}

/// Returns the MiB a second of each disk between two moments.
fn rates(from: &(Instant, Vec<u64>), to: &(Instant, Vec<u64>)) -> Vec<f64> {
    let seconds = (to.0 - from.0).as_secs_f64().max(1e-9);
    let rate = |(from, to): (&u64, &u64)| to.saturating_sub(*from) as f64 / seconds / 1048576.0;
    from.1.iter().zip(&to.1).map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_between_two_moments() {
        let start = Instant::now();
        let later = (start + Duration::from_secs(2), vec![4 << 20, 1 << 20]);
        assert_eq!(rates(&(start, vec![0, 1 << 20]), &later), [2.0, 0.0]);
        assert_eq!(plot().panels[0].series.len(), WEIGHTS.len());
    }
}
