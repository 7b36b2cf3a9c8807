//! A watched `ringway-io` or `ringway-net`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use model::diagnosis::duration;
use model::report::Stats;
use tokio::task::JoinSet;
use toolstack::ringway_io::{DatapathError, RpcConnection};

use super::ports::{self, PortRow};
use super::rows::{Row, rows};
use crate::commands::sockets::SocketOptions;

/// Longest wait for a sample. Meanwhile the display of the other processes is delayed.
const SAMPLE_DEADLINE: Duration = Duration::from_secs(2);

/// A process, and its last two samples.
#[derive(Debug)]
pub(super) struct Source {
    control: PathBuf,
    client: Option<RpcConnection>,
    before: Option<Stats>,
    now: Option<Stats>,
    error: Option<String>,
}

/// Finds the processes, unless the user has named them, and takes a sample of all of them
/// concurrently.
pub(super) async fn sample(sources: &mut Vec<Source>, sockets: &SocketOptions) {
    let controls = sockets.controls();
    sources.retain(|source| controls.contains(&source.control));
    for (at, control) in controls.iter().enumerate() {
        if sources.get(at).is_none_or(|source| source.control != *control) {
            sources.insert(at.min(sources.len()), Source::new(control));
        }
    }
    let mut all = JoinSet::new();
    for (at, source) in sources.iter_mut().enumerate() {
        let (client, control) = (source.client.take(), source.control.clone());
        all.spawn(async move {
            let asked = tokio::time::timeout(SAMPLE_DEADLINE, ask(client, &control)).await;
            (at, asked)
        });
    }
    while let Some(joined) = all.join_next().await {
        let Ok((at, asked)) = joined else { continue };
        let Some(source) = sources.get_mut(at) else { continue };
        match asked {
            Ok(Ok((client, stats))) => source.take(client, stats),
            Ok(Err(error)) => source.lose(error.to_string()),
            Err(_) => source.lose(format!("no answer within {} s", SAMPLE_DEADLINE.as_secs())),
        }
    }
}

async fn ask(
    client: Option<RpcConnection>,
    control: &Path,
) -> Result<(RpcConnection, Stats), DatapathError> {
    let mut client = match client {
        Some(client) => client,
        None => RpcConnection::connect(control).await?,
    };
    let stats = client.stats().await?;
    Ok((client, stats))
}

impl Source {
    fn new(control: &Path) -> Self {
        let control = control.to_owned();
        Self { control, client: None, before: None, now: None, error: None }
    }

    fn take(&mut self, client: RpcConnection, stats: Stats) {
        self.client = Some(client);
        self.error = None;
        self.before = self.now.replace(stats);
    }

    fn lose(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Returns whether the process has ever answered.
    pub(super) fn has_answered(&self) -> bool {
        self.now.is_some()
    }

    /// Returns the reason why there is no sample, if there is none.
    pub(super) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Returns the activity of each disk between the samples.
    pub(super) fn rows(&self, several: bool) -> Vec<Row> {
        let Some(now) = self.now.as_ref().filter(|_| self.error.is_none()) else {
            return Vec::new();
        };
        let place = if several { self.control.display().to_string() } else { String::new() };
        rows(self.before.as_ref(), now, &place)
    }

    /// Returns the activity of each port between the samples.
    pub(super) fn ports(&self, several: bool) -> Vec<PortRow> {
        let Some(now) = self.now.as_ref().filter(|_| self.error.is_none()) else {
            return Vec::new();
        };
        let place = if several { self.control.display().to_string() } else { String::new() };
        ports::rows(self.before.as_ref(), now, &place)
    }

    /// Returns the time that its reactors spent polling between the samples.
    fn spun(&self, now: &Stats) -> String {
        let Some(before) = self.before.as_ref().filter(|before| before.pid == now.pid) else {
            return String::new();
        };
        let sum = |stats: &Stats| stats.reactors.iter().map(|one| one.poll_seconds).sum::<f64>();
        let (spun, passed) = (sum(now) - sum(before), now.uptime_seconds - before.uptime_seconds);
        if spun <= 0.0 || passed <= 0.0 {
            return String::new();
        }
        format!(", {:.0}% of a CPU spent on polling", spun / passed * 100.0)
    }

    /// Returns one line about the process.
    pub(super) fn headline(&self) -> String {
        let control = self.control.display();
        match (&self.error, &self.now) {
            (Some(error), _) => format!("{control}: {error}"),
            (None, None) => format!("{control}: no sample yet"),
            (None, Some(now)) => {
                let began = now.start.as_ref().and_then(|worker_start| worker_start.summary());
                let began = began.map_or_else(String::new, |how| format!(" {how}"));
                let restarts = match &now.keeper {
                    Some(keeper) if keeper.restarts > 0 => {
                        format!(", restarted {} times", keeper.restarts)
                    }
                    _ => String::new(),
                };
                format!(
                    "{control}: {} {}, pid {}, up {}{began}{restarts}, {} on {} reactors{}",
                    program(now),
                    now.version,
                    now.pid,
                    duration(now.uptime_seconds),
                    served(now),
                    now.reactors.len(),
                    self.spun(now),
                )
            }
        }
    }
}

/// Returns the name of its program.
fn program(stats: &Stats) -> &'static str {
    // Only a ringway-io has NICs that callers have attached.
    if stats.nics.is_empty() && !stats.ports.is_empty() { "ringway-net" } else { "ringway-io" }
}

/// Returns a summary of the devices that it serves.
fn served(stats: &Stats) -> String {
    match (stats.disks.len(), stats.ports.len()) {
        (disks, 0) => format!("{disks} disks"),
        (0, ports) => format!("{ports} ports"),
        (disks, ports) => format!("{disks} disks and {ports} ports"),
    }
}
