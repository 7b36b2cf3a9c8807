//! `ringway why ID`: explains why a disk or NIC is slow.

mod nic;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use model::diagnosis::{DiskFacts, DiskVerdict, bytes, duration, judge, judge_refused};
use model::report::{
    DiskStats, OldestRequest, PollRefusals, PollStats, QueuePolling, QueueStats, SlowRequest,
    StartReason, Stats, WorkerStart,
};
use serde_json::json;
use toolstack::ringway_io::RpcConnection;

use super::io::DEFAULT_CONTROL;
use crate::table;

/// Maximum number of slow requests shown.
const SLOW_SHOWN: usize = 10;

/// Options of `ringway why`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway why d1
  ringway why d1 --control /run/x/io.sock --seconds 10
  ringway why d1 --format json | jq -r .verdict.cause
  ringway why n1                                 (a NIC)
  ringway why a --control /tmp/net.sock          (a NIC of a ringway-net)

The verdict compares two samples, so it describes the present. Earlier slow requests come from the
flight recorder, which stores requests that took over 10 ms and ten medians, and the slowest of
each minute. Works while the storage hangs.")]
pub(crate) struct Why {
    /// Id of the disk or NIC, as in `ringway io stats` and `ringway top`
    #[arg(value_name = "ID")]
    disk: String,
    /// Control socket of the ringway-io or ringway-net
    #[arg(long, value_name = "SOCKET", env = "RINGWAY_CONTROL", default_value = DEFAULT_CONTROL)]
    control: PathBuf,
    /// Observation time in seconds
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A sentence and tables
    Text,
    /// One JSON object: the verdict, and the disk's statistics
    Json,
}

/// Parses seconds, from a tenth of a second to an hour.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.1..=3600.0).contains(value));
    value.ok_or_else(|| format!("{text:?} is not a number of seconds from 0.1 to 3600"))
}

impl Why {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let mut client = RpcConnection::connect(&self.control).await?;
        let earlier = client.stats().await?;
        // If a disk and a NIC have the same id, the disk is used.
        let is_disk = earlier.disks.iter().any(|one| one.id == self.disk);
        let nic = earlier.nics.iter().find(|one| one.id == self.disk && !is_disk);
        if let Some((nic, verdict)) = nic.and_then(|nic| Some((nic, judge_refused(nic)?))) {
            return nic::print_refused(&self, nic, &verdict);
        }
        let is_port = !is_disk && earlier.ports.iter().any(|one| one.id == self.disk);
        if is_port || is_disk {
            tokio::time::sleep(Duration::from_secs_f64(self.seconds)).await;
        }
        let now = client.stats().await?;
        let full = client.stats_of(&self.disk).await?;
        if is_port {
            let port = full.ports.first().context("the answer contains no NIC")?;
            return nic::print_report(&self, (&earlier, &now), port);
        }
        let disk = full.disks.first().context("the answer contains no disk")?;
        let verdict = judge(&DiskFacts::new(&earlier, &now, disk));
        let mut output = std::io::stdout().lock();
        match self.format {
            Format::Json => {
                let process = json!({
                    "pid": now.pid, "uptime_seconds": now.uptime_seconds, "start": now.start,
                });
                let report = json!({ "verdict": verdict, "disk": disk, "process": process });
                serde_json::to_writer(&mut output, &report)?;
                writeln!(output)?;
            }
            Format::Text => write!(output, "{}", report_text(&verdict, disk, &now))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the sentence, followed by the evidence.
fn report_text(verdict: &DiskVerdict, disk: &DiskStats, process: &Stats) -> String {
    let mut text = format!("{}\n", verdict.sentence);
    if let Some(step) = &verdict.next {
        // No full stop: many remedies end in a command that users copy.
        text += &format!("Next: {step}\n");
    }
    if let Some(polling) = &verdict.polling {
        text += &format!("{polling}\n");
    }
    if let Some(past) = &verdict.past {
        text += &format!("{past}\n");
    }
    if let Some(how) = process.start.as_ref().and_then(|worker_start| worker_start.summary()) {
        let up = duration(process.uptime_seconds);
        text += &format!("It has been served for {up} by process {}, {how}.\n", process.pid);
    }
    if let Some(oldest) = &disk.oldest {
        text += &format!("\nOldest request: {}\n", under_way(oldest));
    }
    let (with_storage, in_rings) = (disk.in_flight, disk.queued);
    text += &format!("\nNow {with_storage} with the storage, {in_rings} in the rings.");
    text += &match disk.stages.is_empty() {
        true => " No request has ended yet.\n".into(),
        false => format!(" {}:\n{}\n", since(process), stages(disk)),
    };
    if let Some(polling) = &disk.polling {
        text += &format!("\n{}\n", polled(polling));
    }
    // A single queue would repeat the values above.
    if disk.each_queue.len() > 1 {
        text += &format!("{}\n", queues(&disk.each_queue));
    }
    if !disk.slow.is_empty() {
        text += &format!("\nSlow requests, the latest first:\n{}\n", slow(&disk.slow));
    }
    text
}

/// Returns the polling settings, with the cost and gain of polling.
fn polled(polling: &PollStats) -> String {
    let PollStats { set, queues, refused } = *polling;
    let QueuePolling {
        hits, misses, poll_seconds: spun_seconds, saved_wakeup_us: saved_us, ..
    } = queues;
    let saved = duration(saved_us / 1e6);
    let PollRefusals { too_long, no_free_cpu, cpu_wanted, budget_used, quota_used } = refused;
    format!(
        "Polling is {} (up to {} us, {}% of a CPU free): {hits} hits, {misses} misses, {} spun, \
         {saved} of waking up saved; slept at once {too_long} times because waits are too long, \
         {no_free_cpu} with no CPU free, {cpu_wanted} because others want it, {budget_used} with the \
         budget used up, {quota_used} because of a quota.",
        set.mode.name(),
        set.max_us,
        set.idle_threshold,
        duration(spun_seconds),
    )
}

/// Returns a table of the polling of each queue.
fn queues(all: &[QueueStats]) -> comfy_table::Table {
    let header = ["queue", "looks", "reason", "hits", "misses", "spun", "saved"];
    let mut table = table::new(&header, 3);
    for (index, polling) in all.iter().filter_map(|one| Some((one.index, one.polling?))) {
        table.add_row([
            index.to_string(),
            if polling.polling { "yes" } else { "no" }.into(),
            polling.reason.name().into(),
            polling.hits.to_string(),
            polling.misses.to_string(),
            duration(polling.poll_seconds),
            duration(polling.saved_wakeup_us / 1e6),
        ]);
    }
    table
}

/// Returns the start of the counts: a worker that took a disk over begins anew.
fn since(process: &Stats) -> &'static str {
    let first = |worker_start: &WorkerStart| worker_start.reason == StartReason::Start;
    if process.start.as_ref().is_none_or(first) {
        "Since attach"
    } else {
        "Since this process serves it"
    }
}

fn under_way(oldest: &OldestRequest) -> String {
    let what = match oldest.kind {
        None => "unread".into(),
        Some(kind) if oldest.bytes == 0 => kind.name().to_owned(),
        Some(kind) => {
            format!("{} of {} at byte {}", kind.name(), bytes(oldest.bytes), oldest.offset)
        }
    };
    let age = duration(oldest.age_seconds);
    let here = duration(oldest.in_stage_seconds);
    format!("{what}, {age} old, for {here} in stage {}", oldest.stage)
}

fn stages(disk: &DiskStats) -> comfy_table::Table {
    let header = ["stage", "kind", "count", "p50", "p90", "p99", "p99.9", "max"];
    let mut table = table::new(&header, 2);
    for one in &disk.stages {
        let times = one.times;
        let mut row = vec![one.stage.to_string(), one.op.to_string(), times.count.to_string()];
        let all = [times.p50_us, times.p90_us, times.p99_us, times.p999_us, times.max_us];
        row.extend(all.map(|us| duration(us / 1e6)));
        table.add_row(row);
    }
    table
}

fn slow(all: &[SlowRequest]) -> comfy_table::Table {
    let header =
        ["ago", "kind", "size", "at byte", "total", "queue", "cap", "device", "back", "meanwhile"];
    let mut table = table::new(&header, 3);
    for one in all.iter().take(SLOW_SHOWN) {
        let meanwhile = one.neighbour.as_ref().map_or_else(String::new, |other| {
            let name = other.disk.as_deref().unwrap_or("a detached disk");
            format!("{name} for {}", duration(other.turn_us / 1e6))
        });
        let mut row = vec![
            duration(one.ended_seconds_ago),
            one.kind.name().into(),
            bytes(one.bytes),
            one.offset.to_string(),
        ];
        let stages = [one.total_us, one.queue_us, one.cap_us, one.device_us, one.completion_us];
        row.extend(stages.map(|us| duration(us / 1e6)));
        row.push(meanwhile);
        table.add_row(row);
    }
    table
}

#[cfg(test)]
mod tests;
