//! Processes that serve disks and NICs, and their samples.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};
use error_causes::error_chain;
use model::report::Stats;
use tokio::task::JoinSet;
use toolstack::ringway_io::{DatapathError, RpcConnection};

use super::report::Report;
use crate::commands::sockets::SocketOptions;

/// Longest wait for a first sample, so that a stopped process does not delay the answer for long.
const SAMPLE_DEADLINE: Duration = Duration::from_secs(5);

/// A process that answers.
#[derive(Debug)]
struct Process {
    control: PathBuf,
    client: RpcConnection,
    earlier: Stats,
}

/// Processes of a host.
#[derive(Debug)]
pub(super) struct Processes(Vec<Process>);

impl Processes {
    /// Takes a first sample of every process. A process that does not answer is left out.
    ///
    /// # Errors
    /// None answers.
    pub(super) async fn sample(sockets: &SocketOptions) -> anyhow::Result<Self> {
        let controls = sockets.controls();
        let mut all = JoinSet::new();
        for control in controls {
            all.spawn(async move {
                let asked = tokio::time::timeout(SAMPLE_DEADLINE, Process::connect(&control)).await;
                asked.unwrap_or_else(|_| {
                    let what = format!("stats at {}", control.display());
                    Err(DatapathError::Late { what, deadline: SAMPLE_DEADLINE })
                })
            });
        }
        let (mut processes, mut errors) = (Vec::new(), Vec::new());
        for asked in all.join_all().await {
            match asked {
                Ok(process) => processes.push(process),
                Err(error) => errors.push(error),
            }
        }
        processes.sort_by(|a, b| a.control.cmp(&b.control));
        match (processes.is_empty(), errors.len()) {
            (false, _) => Ok(Self(processes)),
            (true, 0) => bail!(sockets.none_found()),
            (true, 1) => Err(errors.remove(0).into()),
            (true, _) => {
                let mut all: Vec<_> = errors.iter().map(|error| error_chain(error)).collect();
                all.sort();
                bail!("no ringway-io of this host answers: {}", all.join("; "))
            }
        }
    }

    /// Returns whether a process has this disk or NIC.
    pub(super) fn have(&self, id: &str) -> bool {
        self.0.iter().any(|process| process.has(id))
    }

    /// Checks that one process has this disk or NIC.
    ///
    /// # Errors
    /// None has it, or several have one of this id.
    pub(super) async fn require(&mut self, id: &str) -> anyhow::Result<()> {
        let having = self.0.iter().filter(|process| process.has(id));
        let having: Vec<_> = having.map(|process| process.control.display().to_string()).collect();
        match (having.len(), self.0.as_mut_slice()) {
            (1, _) => Ok(()),
            // Its own words for that.
            (0, [process]) => {
                process.client.stats_of(id).await?;
                Ok(())
            }
            (0, all) => {
                let all: Vec<_> = all.iter().map(|one| one.control.display().to_string()).collect();
                Err(anyhow!(
                    "no disk or NIC {id:?} is attached at {}; `ringway top` shows all",
                    all.join(", ")
                ))
            }
            (_, _) => Err(anyhow!(
                "several processes have {id:?}; choose one with --control: {}",
                having.join(", ")
            )),
        }
    }

    /// Observes disks and NICs for some seconds, all at the same time. Returns a report for each,
    /// and `None` for one that no process has.
    ///
    /// # Errors
    /// A process does not answer any more.
    pub(super) async fn observe(
        &mut self,
        ids: &[&str],
        seconds: f64,
    ) -> anyhow::Result<Vec<Option<Report>>> {
        if ids.iter().any(|id| self.0.iter().any(|process| process.is_served(id))) {
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        }
        let mut reports: Vec<_> = ids.iter().map(|_| None).collect();
        for process in &mut self.0 {
            if !ids.iter().any(|id| process.has(id)) {
                continue;
            }
            let now = process.client.stats().await?;
            for (id, report) in ids.iter().zip(&mut reports) {
                if process.has(id) {
                    let full = process.client.stats_of(id).await?;
                    *report = Report::new(&process.earlier, &now, &full, id);
                }
            }
        }
        Ok(reports)
    }
}

impl Process {
    async fn connect(control: &Path) -> Result<Self, DatapathError> {
        let mut client = RpcConnection::connect(control).await?;
        let earlier = client.stats().await?;
        Ok(Self { control: control.into(), client, earlier })
    }

    fn has(&self, id: &str) -> bool {
        self.is_served(id) || self.earlier.nics.iter().any(|one| one.id == id)
    }

    /// Returns whether a second sample tells more than the first.
    fn is_served(&self, id: &str) -> bool {
        self.earlier.disks.iter().any(|one| one.id == id)
            || self.earlier.ports.iter().any(|one| one.id == id)
    }
}
