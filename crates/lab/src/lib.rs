//! Experiments: each claim measured against peers in one run.
//!
//! # Words
//! - **System**: a program that is measured, ours or a peer.
//! - **Cell**: one set-up in which systems are compared (a medium, a load, a kind of client).
//! - **Sample**: named figures of one system in one cell, from a fresh start to its end.
//! - **Round**: one sample of every system of every cell, A B C, then C B A. So disturbances of the
//!   host hit neighbouring samples alike.
//! - **Figure**: what a comparison makes of the samples of a round, most often a ratio.
//! - **Bar**: what was promised of the median figure.
//! - **Verdict** on a bar: PASS, FAIL, or UNDECIDED where only the spread excuses a miss.
//!
//! # Model
//! An [`experiment::Experiment`] is prepared into a [`experiment::Plan`] and measured by
//! [`experiment::run`], which knows nothing of what is measured. [`stats`] evaluates the ratios of
//! neighbouring samples and [`comparison`] the promises; [`results`] keeps every sample as JSON,
//! [`table`] prints the tables for readers, [`plot`] draws them. Figures of a noisy host are figures
//! of that host: facts, load, steal and foreign CPU time are part of the results. Where the spread
//! exceeds the gap the report says "no difference shown". A control run (`--control`) puts peers in
//! the places of our systems: it shows the noise.
//!
//! # Design
//! This is a program of its own, `ringway-lab`, beside `ringway`. It needs a guest-side front-end,
//! and nothing that ships may contain one.
//!
//! # Errors
//! A program that is missing, a system that does not start, a request that fails: the run ends with
//! the reason and writes nothing. The worst verdict is a result, and the program's exit code.
//!
//! # Invariants
//! Nothing of a sample runs on when it has ended. A sample with a failed request is not a figure.
//!
//! # How to test
//! The statistics and the frame are tested on known figures; `tests/` runs a tiny `blk-baseline`
//! and checks counts, never speeds.
#![forbid(unsafe_code)]

pub mod blk;
pub mod comparison;
pub mod cpu;
pub mod cpu_speed;
pub mod experiment;
mod fio;
pub mod golden_boot;
pub mod greedy_front_ends;
pub mod host;
pub mod in_process;
pub mod interrupted;
pub mod nbd;
pub mod net;
pub mod other_binary;
pub mod peer;
pub mod plot;
pub mod progress;
pub mod results;
pub mod slices;
pub mod stats;
pub mod storage;
pub mod table;
pub mod toolstack;
pub mod upgrade_pause;
pub mod verdict;
pub mod wakeup_cost;

/// Returns all experiments.
#[must_use]
pub fn experiments() -> Vec<Box<dyn experiment::Experiment>> {
    vec![
        Box::new(blk::baseline::BlkBaseline),
        Box::new(blk::formats::Formats),
        Box::new(blk::polling::Polling),
        Box::new(blk::sleeping::Sleeping),
        Box::new(blk::idle::IdleQueues),
        Box::new(blk::shared_cpu::SharedCpu),
        Box::new(blk::aggregate::StorageAggregate),
        Box::new(blk::scale::Scale),
        Box::new(blk::stats_cost::StatsCost),
        Box::new(blk::hung_disk::HungDisk),
        Box::new(blk::restart_pause::RestartPause),
        Box::new(storage::lun_scale::LunScale),
        Box::new(storage::coalesce::Coalesce),
        Box::new(storage::splitting::Splitting),
        Box::new(storage::fairness::Fairness),
        Box::new(storage::guest_weights::GuestWeights),
        Box::new(storage::write_cache::WriteCache),
        Box::new(nbd::NbdExport),
        Box::new(net::pps::NetPps),
        Box::new(net::tso::NetTso),
        Box::new(net::queues::NetQueues),
        Box::new(net::aggregate::NetAggregate),
        Box::new(net::latency::NetLatency),
        Box::new(net::balance::NetBalance),
        Box::new(upgrade_pause::UpgradePause),
        Box::new(greedy_front_ends::GreedyFrontEnds),
        Box::new(golden_boot::GoldenBoot),
        Box::new(toolstack::vbd_parallel::VbdParallel),
        Box::new(toolstack::api_scale::ApiScale),
        Box::new(toolstack::hung_sr::HungSr),
        Box::new(toolstack::responsive::Responsive),
        Box::new(toolstack::bootstorm::Bootstorm),
    ]
}

/// Locks out other tests that measure, because each needs the CPUs for itself.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
