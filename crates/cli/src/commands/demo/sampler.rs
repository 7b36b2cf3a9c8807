//! What the datapath counts, and the end of its worker.

use std::path::{Path, PathBuf};

use anyhow::Context;
use model::report::Stats;
use rustix::process::{Pid, Signal, kill_process};
use toolstack::machines::ports;
use toolstack::ringway_io::{DatapathError, RpcConnection};
use toolstack::run::BusyTracker;

/// In the daemon's run directory: a directory for each SR, and that of the switch.
const DATAPATHS: &str = "io";
/// In that: where its `ringway-io` takes calls.
const CONTROL: &str = "control.sock";

/// Watches the only datapath of a daemon.
#[derive(Debug)]
pub(super) struct DatapathSampler {
    client: RpcConnection,
    busy_tracker: BusyTracker,
    last: Option<Stats>,
}

impl DatapathSampler {
    /// Of the daemon with this run directory, whose machine has disks.
    ///
    /// # Errors
    /// Nobody serves any.
    pub(super) async fn open(run: &Path) -> anyhow::Result<Self> {
        let control = control(run).context("nobody serves the disks")?;
        let client = RpcConnection::connect(&control).await?;
        Ok(Self { client, busy_tracker: BusyTracker::default(), last: None })
    }

    /// Asks for the counts. One that cannot be asked now is asked the next time.
    pub(super) async fn sample(&mut self) {
        let Ok(stats) = self.counts().await else { return };
        // A disk that is gone has been counted; the last word is of them all.
        let had = self.last.as_ref().map_or(0, |last| last.disks.len());
        if stats.disks.len() >= had {
            self.busy_tracker.sample(&stats);
            self.last = Some(stats);
        }
    }

    /// Kills the process that serves, as `kill -9` does; says which.
    ///
    /// # Errors
    /// It cannot be found, or killed.
    pub(super) async fn kill_worker(&mut self) -> anyhow::Result<u32> {
        self.sample().await;
        let pid = self.counts().await?.pid;
        let worker = i32::try_from(pid).ok().and_then(Pid::from_raw);
        kill_process(worker.context("the worker has no number")?, Signal::KILL)?;
        Ok(pid)
    }

    /// The counts, also when the worker has just been replaced: nothing is done twice by asking
    /// again.
    async fn counts(&mut self) -> Result<Stats, DatapathError> {
        match self.client.stats().await {
            Err(DatapathError::Broken { .. }) => self.client.stats().await,
            other => other,
        }
    }

    /// The last counts, over all workers, and for how long each disk was busy.
    pub(super) fn done(self) -> (Option<Stats>, BusyTracker) {
        let stats = self.last.map(|stats| self.busy_tracker.whole(stats));
        (stats, self.busy_tracker)
    }
}

/// The control socket below a run directory.
pub(super) fn control(run: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(run.join(DATAPATHS)).ok()?.flatten();
    let mut folders = entries.map(|entry| entry.path()).filter(|path| *path != ports(run));
    folders.find_map(|folder| Some(folder.join(CONTROL)).filter(|control| control.exists()))
}
