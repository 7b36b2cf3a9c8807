//! `ringway golden`: shows golden images with their caches, fetches them whole, and moves boot sets.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use model::report::{GoldenFile, GoldenStats, WarmPhase};
use model::rpc::{GoldenClean, GoldenImport, GoldenRef, GoldenWarm};
use model::spec::{BootSet, parse_size};
use serde_json::{Value, json};
use toolstack::ringway_io::RpcConnection;

use super::private_io::with_ringway_io;
use super::sockets::SocketOptions;
use crate::table;

/// Longest wait for an answer.
const DEADLINE: Duration = Duration::from_secs(30);
const DAY_SECONDS: u64 = 24 * 60 * 60;
/// Bytes of a block.
const BLOCK_BYTES: u64 = 64 << 10;

/// Options of `ringway golden`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway golden status
  ringway golden warm d1 --rate 20M              (d1 is a disk on the image)
  ringway golden warm d1 --cancel
  ringway golden boot-set export d1 > win10.boot
  ringway golden boot-set import win10.boot --cache /var/cache/ringway
  ringway golden clean --cache /var/cache/ringway --keep 200G

IMAGE is the id of a disk on the image, or the identity that status shows. Exit codes: 0 done, 1
failed (the cause is on standard error), 2 wrong usage.")]
pub(crate) struct Golden {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show golden images, their caches, and what they wait for
    Status(Status),
    /// Fetch a whole image into its cache file, in the background
    Warm(Warm),
    /// Remove cache files that no machine uses any more
    Clean(Clean),
    /// Export and import the blocks that the first machines read
    #[command(subcommand)]
    BootSet(BootSetAction),
}

/// Options of `ringway golden status`.
#[derive(Debug, Args)]
struct Status {
    /// Print an array of JSON objects
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sockets: SocketOptions,
}

/// Options of `ringway golden warm`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway golden warm d1
  ringway golden warm d1 --rate 20M
  ringway golden warm d1 --cancel

The command returns at once; status shows the progress. Requests of machines go first. A second
warm sets another rate. Fetching ends when the last disk on the image is detached, and when the
ringway-io restarts; blocks that are in the cache file stay.")]
struct Warm {
    /// Id of a disk on the image, or identity of the image
    image: String,
    /// Most bytes a second, at least 64K [default: no limit but that of the disk]
    #[arg(long, value_name = "BYTES", value_parser = parse_size, conflicts_with = "cancel")]
    rate: Option<u64>,
    /// End the fetching
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    sockets: SocketOptions,
}

/// Options of `ringway golden clean`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway golden clean --cache /var/cache/ringway                   (all that is unused for 30 days)
  ringway golden clean --cache /var/cache/ringway --unused-for 0 --keep 200G

A file goes with its boot set and its digest, the one first whose last use is longest ago. A file
that a process uses never goes.")]
struct Clean {
    /// Cache directory, as in the backend of the disks
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// Bytes that all cache files together may keep
    #[arg(long, value_name = "BYTES", value_parser = parse_size, default_value = "0")]
    keep: u64,
    /// Days for which a file must be unused
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    unused_for: u32,
    /// Control socket of a running ringway-io that does the work [default: start one]
    #[arg(long, value_name = "SOCKET", env = "RINGWAY_CONTROL")]
    control: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum BootSetAction {
    /// Print the boot set of an image
    Export(Export),
    /// Store a boot set in the cache directory of this host
    Import(Import),
}

/// Options of `ringway golden boot-set export`.
#[derive(Debug, Args)]
struct Export {
    /// Id of a disk on the image, or identity of the image
    image: String,
    #[command(flatten)]
    sockets: SocketOptions,
}

/// Options of `ringway golden boot-set import`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  ringway golden boot-set import win10.boot --cache /var/cache/ringway

The next ringway-io that opens the image fetches these blocks ahead. So import the boot set before
the first machine on the image starts here.")]
struct Import {
    /// File that export has printed
    file: PathBuf,
    /// Cache directory, as in the backend of the disks
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// Control socket of a running ringway-io that does the work [default: start one]
    #[arg(long, value_name = "SOCKET", env = "RINGWAY_CONTROL")]
    control: Option<PathBuf>,
}

/// Golden image in a process.
struct Served {
    control: PathBuf,
    golden: GoldenStats,
    disks: Vec<String>,
}

impl Golden {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        match self.action {
            Action::Status(status) => status.execute().await?,
            Action::Warm(warm) => warm.execute().await?,
            Action::Clean(clean) => clean.execute().await?,
            Action::BootSet(BootSetAction::Export(export)) => {
                let call = json!(GoldenRef { image: export.image.clone() });
                let method = "golden.export_boot_set";
                let set = call_owner(&export.sockets, &export.image, method, call).await?;
                print(&set.to_string())?;
            }
            Action::BootSet(BootSetAction::Import(import)) => import.execute().await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Status {
    async fn execute(self) -> anyhow::Result<()> {
        let all = served(&self.sockets).await?;
        if self.json {
            let row = |one: &Served| {
                let control = one.control.display().to_string();
                json!({"control": control, "disks": one.disks, "golden": one.golden})
            };
            return print(&Value::Array(all.iter().map(row).collect()).to_string());
        }
        if all.is_empty() {
            return print("no disk of this host is on a golden image");
        }
        let header = ["image", "disks", "cached", "hits", "from cache", "from source", "state"];
        let mut table = table::new(&header, usize::MAX);
        for one in &all {
            let GoldenStats { identity, hits, loaded, fetched, .. } = &one.golden;
            table.add_row([
                identity.clone(),
                one.disks.join(", "),
                cached(&one.golden),
                hits.to_string(),
                loaded.to_string(),
                fetched.to_string(),
                state(&one.golden),
            ]);
        }
        print(&table.to_string())
    }
}

impl Warm {
    async fn execute(self) -> anyhow::Result<()> {
        let Self { image, rate, cancel, sockets } = self;
        let (method, params) = match cancel {
            true => ("golden.cancel", json!(GoldenRef { image: image.clone() })),
            false => ("golden.warm", json!(GoldenWarm { image: image.clone(), rate })),
        };
        call_owner(&sockets, &image, method, params).await.map(drop)
    }
}

impl Clean {
    async fn execute(self) -> anyhow::Result<()> {
        let unused_seconds = u64::from(self.unused_for) * DAY_SECONDS;
        let cache = std::path::absolute(&self.cache)?;
        let call = json!(GoldenClean { cache, keep: self.keep, unused_seconds });
        with_ringway_io(self.control.as_deref(), async |connection, _| {
            let found = connection.call("golden.clean", call, DEADLINE).await?;
            let files: Vec<GoldenFile> = serde_json::from_value(found)?;
            let mut table = table::new(&["image", "MiB", "unused for days", "state"], usize::MAX);
            for file in files {
                let state = match (file.is_removed, file.problem) {
                    (true, _) => "removed".into(),
                    (false, Some(problem)) => format!("stays: {problem}"),
                    (false, None) => "stays".into(),
                };
                let days = (file.unused_seconds / DAY_SECONDS).to_string();
                table.add_row([file.identity, (file.bytes >> 20).to_string(), days, state]);
            }
            print(&table.to_string())
        })
        .await
    }
}

impl Import {
    async fn execute(self) -> anyhow::Result<()> {
        let file = self.file.display();
        let text = std::fs::read(&self.file).with_context(|| format!("cannot read {file}"))?;
        let boot_set: BootSet = serde_json::from_slice(&text)
            .with_context(|| format!("{file} is no boot set that `boot-set export` has printed"))?;
        let import = GoldenImport { cache: std::path::absolute(&self.cache)?, boot_set };
        let import = serde_json::to_value(import).context("--cache")?;
        with_ringway_io(self.control.as_deref(), async |connection, _| {
            connection.call("golden.import_boot_set", import, DEADLINE).await?;
            Ok(())
        })
        .await
    }
}

/// Returns the golden images of each process. A process that does not answer is an error.
async fn served(sockets: &SocketOptions) -> anyhow::Result<Vec<Served>> {
    let controls = sockets.controls();
    if controls.is_empty() {
        bail!(sockets.none_found());
    }
    let mut all = Vec::new();
    for control in controls {
        let stats = RpcConnection::connect(&control).await?.stats().await?;
        let mut images: BTreeMap<PathBuf, Served> = BTreeMap::new();
        for disk in stats.disks {
            let Some(golden) = disk.golden else { continue };
            let new = || Served { control: control.clone(), golden: golden.clone(), disks: vec![] };
            images.entry(golden.file.clone()).or_insert_with(new).disks.push(disk.id);
        }
        all.extend(images.into_values());
    }
    Ok(all)
}

/// Calls the process that has an image. If several have it, one is enough: they share its cache.
async fn call_owner(
    sockets: &SocketOptions,
    image: &str,
    method: &str,
    params: Value,
) -> anyhow::Result<Value> {
    let all = served(sockets).await?;
    let is_it =
        |one: &&Served| one.golden.identity == image || one.disks.iter().any(|id| id == image);
    let Some(found) = all.iter().find(is_it) else {
        bail!("no disk here is on the golden image {image:?}; `ringway golden status` shows all");
    };
    let mut connection = RpcConnection::connect(&found.control).await?;
    Ok(connection.call(method, params, DEADLINE).await?)
}

/// Returns how much of an image is in its cache file.
fn cached(golden: &GoldenStats) -> String {
    let all = golden.size.div_ceil(BLOCK_BYTES).max(1);
    let mib = |blocks: u64| (blocks * BLOCK_BYTES) >> 20;
    let percent = golden.stored.min(all) * 100 / all;
    format!("{} of {} MiB, {percent} %", mib(golden.stored), mib(all))
}

/// Returns what an image waits for or does, in a sentence.
fn state(golden: &GoldenStats) -> String {
    if let Some(problem) = &golden.problem {
        return format!("requests wait: {problem}");
    }
    if let Some(problem) = &golden.file_problem {
        return format!("blocks stay in memory: {problem}");
    }
    if let Some(found) = &golden.other_digest {
        return format!("wrong bytes: their digest is sha256:{found}");
    }
    let Some(warm) = &golden.warm else {
        return if golden.is_verified { "verified" } else { "serving" }.into();
    };
    match (warm.phase, &warm.problem) {
        (WarmPhase::Running, _) => "warming".into(),
        (WarmPhase::Checking, _) => "calculating the digest".into(),
        (WarmPhase::Done, _) if golden.is_verified => "warm, verified".into(),
        (WarmPhase::Done, _) => "warm".into(),
        (WarmPhase::Canceled, _) => "warming canceled".into(),
        (WarmPhase::Failed, problem) => {
            format!("warming failed: {}", problem.as_deref().unwrap_or("no reason"))
        }
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{text}")?)
}
