//! Statistics of the datapath, and the kill of its worker.

use std::path::{Path, PathBuf};

use anyhow::Context;
use model::report::Stats;
use rustix::process::{Pid, Signal, kill_process};
use toolstack::machines::ports;
use toolstack::ringway_io::{DatapathError, RpcConnection};
use toolstack::run::BusyTracker;

/// Subdirectory of the daemon's run directory with a directory for each SR and one for the switch.
const DATAPATHS: &str = "io";
/// Name of the control socket of a `ringway-io` in its directory.
const CONTROL: &str = "control.sock";

/// Sampler of a daemon's only datapath.
#[derive(Debug)]
pub(super) struct DatapathSampler {
    client: RpcConnection,
    busy_tracker: BusyTracker,
    last: Option<Stats>,
}

impl DatapathSampler {
    /// Opens the datapath of the daemon with this run directory. Its machine must have disks.
    ///
    /// # Errors
    /// No process serves a disk.
    pub(super) async fn open(run: &Path) -> anyhow::Result<Self> {
        let control = control(run).context("no process serves the disks")?;
        let client = RpcConnection::connect(&control).await?;
        Ok(Self { client, busy_tracker: BusyTracker::default(), last: None })
    }

    /// Takes a sample. Skips it if the datapath does not answer now.
    pub(super) async fn sample(&mut self) {
        let Ok(stats) = self.counts().await else { return };
        // Keep the last sample that has all disks: a removed disk has been counted.
        let had = self.last.as_ref().map_or(0, |last| last.disks.len());
        if stats.disks.len() >= had {
            self.busy_tracker.sample(&stats);
            self.last = Some(stats);
        }
    }

    /// Kills the worker as `kill -9` does, and returns its pid.
    ///
    /// # Errors
    /// The worker cannot be found or killed.
    pub(super) async fn kill_worker(&mut self) -> anyhow::Result<u32> {
        self.sample().await;
        let pid = self.counts().await?.pid;
        let worker = i32::try_from(pid).ok().and_then(Pid::from_raw);
        kill_process(worker.context("the worker has no pid")?, Signal::KILL)?;
        Ok(pid)
    }

    /// Returns the statistics. Retries if the worker has just been replaced, which is safe because
    /// the call changes nothing.
    async fn counts(&mut self) -> Result<Stats, DatapathError> {
        match self.client.stats().await {
            Err(DatapathError::Broken { .. }) => self.client.stats().await,
            other => other,
        }
    }

    /// Returns the last statistics, over all workers, and the busy time of each disk.
    pub(super) fn done(self) -> (Option<Stats>, BusyTracker) {
        let stats = self.last.map(|stats| self.busy_tracker.whole(stats));
        (stats, self.busy_tracker)
    }
}

/// Returns the control socket below a run directory.
pub(super) fn control(run: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(run.join(DATAPATHS)).ok()?.flatten();
    let mut folders = entries.map(|entry| entry.path()).filter(|path| *path != ports(run));
    folders.find_map(|folder| Some(folder.join(CONTROL)).filter(|control| control.exists()))
}
