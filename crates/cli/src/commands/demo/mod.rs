//! `ringway demo`: runs a guest on five disks with a `ringwayd` of its own, and checks the disks
//! from guest and host.
//!
//! The demo works as any client of the API ([`machine`]), so it shows only what `ringwayd` does.
//! The guest formats, writes, loads and verifies (`guest.sh`). When no process serves its disks any
//! more, the host checks them with independent programs (`e2fsck`, `debugfs`, `sha256sum`).

mod disks;
mod display;
mod host;
mod images;
mod machine;
mod process_exit;
mod report;
mod run;
mod sampler;
mod transcript;
mod verify;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use model::machine::AccelChoice;
use model::report::Stats;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use toolstack::accel::{ProbeCache, Prober};
use toolstack::binaries::{self, QEMU};
use toolstack::run::{BusyTracker, SAMPLE_EVERY};

use super::die_with_parent::launcher;
use crate::terminal::{self, Interrupt};
use disks::Disk;
use display::Display;
use host::Host;
use machine::Api;
use report::{print_result, remains};
use run::play;
use sampler::DatapathSampler;
use verify::Check;

/// Time limit of the demo. With two idle cores and without KVM it takes about half a minute; a busy
/// host may need ten times as much.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Time without a message of the guest after which the user is told.
const SILENCE: Duration = Duration::from_secs(60);
/// Capacity of the progress channel; when it is full, reading the console waits.
const NEWS: usize = 64;
/// Device of KVM.
const KVM: &str = "/dev/kvm";

/// Options of `ringway demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Starts a ringwayd in its own directory and, by its API, the test guest on disks \
served by ringway-io: one with a file system, one with several queues, one read-only, and one \
plugged while the guest runs. The guest formats, writes, runs fio with verification and checks. In \
between, the demo kills the process that serves the disks. Then the host checks the images with \
independent programs.

Examples:
  ringway demo
  ringway demo --keep
  ringway demo --stop /tmp/ringway-demo-aB3dE6

Exit codes: 0 every check passed, 1 something failed, 130 Ctrl-C."
)]
pub(crate) struct Demo {
    /// Directory of the test guest [default: $RINGWAY_GUEST_DIR or .cache/guest]
    #[arg(long, value_name = "DIR")]
    guest: Option<PathBuf>,
    /// Parent of the demo's directory (300 MiB) [default: directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Leave ringwayd running with the machine started again, and print how to stop it
    #[arg(long)]
    keep: bool,
    /// Stop everything that `--keep` has left running in this directory, and remove it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["guest", "dir", "keep"])]
    stop: Option<PathBuf>,
    /// Show the guest's console and the log of ringwayd
    #[arg(long, short)]
    verbose: bool,
}

/// Progress of the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    /// A step has begun.
    Step(String),
    /// The machine's disks are served.
    Serving,
    /// The guest writes; now kill the process that serves its disk.
    Strike,
    /// The guest has finished.
    Done,
    /// A line of the guest's console without a meaning for the demo.
    Console(String),
}

/// Result of the demo.
struct Report {
    stats: Option<Stats>,
    busy_tracker: BusyTracker,
    /// Disks by their ids in the datapath.
    ids: BTreeMap<String, Disk>,
    checks: Vec<Check>,
}

impl Demo {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        if let Some(dir) = &self.stop {
            return stop(dir).await;
        }
        let guest = self.guest.clone().unwrap_or_else(super::guest_dir);
        let kernel = guest.join("vmlinuz");
        ensure!(
            kernel.is_file() && guest.join("initramfs.img").is_file(),
            "there is no test guest in {}; build it with `make guest`",
            guest.display()
        );
        let interrupts = terminal::interrupts()?;
        let dir = self.directory()?;
        let host = Host::prepare(dir.path(), &guest)?;
        let display = Display::new(self.verbose);
        let result = tokio::select! {
            biased;
            interrupt = interrupts.first() => Err(interrupt),
            () = sleep(TIME_LIMIT) => {
                Ok(Err(anyhow::anyhow!("not done after {} s", TIME_LIMIT.as_secs())))
            }
            result = run(&host, &kernel, &display, &self) => Ok(result),
        };
        display.finish();
        let stays = self.keep && result.is_ok();
        let took = display.seconds();
        let code = match result {
            Err(interrupt) => Ok(stopped(interrupt)),
            Ok(Err(error)) => Err(error),
            Ok(Ok(report)) => print_result(&report, took).map(|good| match good {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }),
        };
        let dir = dir.keep();
        match stays {
            true => remains(&host, &dir)?,
            false => host
                .end()
                .await
                .iter()
                .for_each(|trouble| logging::write_line(&format!("ringway: {trouble}"))),
        }
        code
    }

    /// Creates a directory for this demo.
    fn directory(&self) -> anyhow::Result<TempDir> {
        let parent = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let parent = std::path::absolute(&parent).unwrap_or(parent);
        let made = tempfile::Builder::new().prefix("ringway-demo-").tempdir_in(&parent);
        made.with_context(|| format!("cannot make a directory under {}", parent.display()))
    }
}

/// Starts the host and runs the demo on it.
async fn run(
    host: &Host,
    kernel: &Path,
    display: &Display,
    asked: &Demo,
) -> anyhow::Result<Report> {
    display.step(&accelerator(kernel).await?);
    host.start(asked.verbose).await?;
    display.step(&format!("ringwayd serves at {}", host.socket().display()));
    let (sender, mut news) = mpsc::channel(NEWS);
    let socket = host.socket();
    let machine = spawn_blocking(move || play(&socket, &sender));
    let mut watch = None;
    let mut ticks = interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            message = news.recv() => match message {
                Some(progress) => {
                    heard = Instant::now();
                    heed(&progress, &mut watch, host, display).await?;
                }
                None => break,
            },
            () = sleep_until(heard + SILENCE) => {
                heard = Instant::now();
                display.step(&silence(host));
            }
            _ = ticks.tick(), if watch.is_some() => {
                if let Some(watch) = &mut watch {
                    watch.sample().await;
                }
            }
        }
    }
    let demo_result = machine.await.context("the task that drives the machine failed")??;
    display.step("check the images from the host");
    let (stats, busy_tracker) = watch.map_or_else(Default::default, DatapathSampler::done);
    let (socket, keep) = (host.socket(), asked.keep);
    spawn_blocking(move || {
        let mut checks =
            verify::verify(|disk| demo_result.machine.image(disk), &demo_result.guest_transcript)
                .context("cannot check the images")?;
        checks.push(verify::restart(stats.as_ref(), &demo_result.guest_transcript));
        if keep {
            Api::open(&socket)?.start_for_people(&demo_result.machine)?;
        }
        Ok(Report { stats, busy_tracker, ids: demo_result.ids, checks })
    })
    .await
    .context("the task that checks the images failed")?
}

/// Returns a line for a guest that says nothing, which names the command that tells why.
fn silence(host: &Host) -> String {
    let seconds = SILENCE.as_secs();
    let control = sampler::control(host.run());
    let advice = control.map_or_else(String::new, |control| {
        format!(
            "; to see why, run in another terminal: ringway why --control {}",
            control.display()
        )
    });
    format!("the guest has said nothing for {seconds} s{advice}")
}

/// Returns the accelerator of guests and the reason; the daemon chooses the same one.
async fn accelerator(kernel: &Path) -> anyhow::Result<String> {
    let missing = || format!("{QEMU} is missing: install it: apt-get install qemu-system-x86");
    let qemu = binaries::in_path(QEMU).with_context(missing)?;
    let probe_cache = ProbeCache::of_user();
    let launcher = launcher()?;
    let prober = Prober {
        qemu: &qemu,
        launcher: &launcher,
        kernel,
        device: KVM.into(),
        probe_cache: &probe_cache,
    };
    let decision = prober.decide(AccelChoice::Auto, &mut None).await?;
    Ok(format!("accelerator {}: {}", decision.accel.name(), decision.why))
}

/// Shows a progress event and acts on it.
async fn heed(
    progress: &Progress,
    watch: &mut Option<DatapathSampler>,
    host: &Host,
    display: &Display,
) -> anyhow::Result<()> {
    display.show(progress);
    match (progress, &mut *watch) {
        (Progress::Serving, _) => *watch = Some(DatapathSampler::open(host.run()).await?),
        (Progress::Strike, Some(watch)) => {
            let pid = watch.kill_worker().await?;
            display.step(&format!("kill -9 {pid}: the process that serves the disks"));
        }
        (Progress::Done, Some(watch)) => watch.sample().await,
        _ => {}
    }
    Ok(())
}

/// Prints that a signal has ended the demo.
fn stopped(interrupt: Interrupt) -> ExitCode {
    logging::write_line(&format!("ringway: {interrupt}; the demo is ended"));
    ExitCode::from(interrupt.exit_code())
}

/// Stops what an earlier demo left running in a directory.
async fn stop(dir: &Path) -> anyhow::Result<ExitCode> {
    let troubles = Host::found(dir)?.end().await;
    if troubles.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    bail!("the demo was not stopped cleanly: {}", troubles.join("; "))
}
