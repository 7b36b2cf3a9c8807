//! `ringway demo`: a guest on four disks, checked from both sides.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use model::machine::AccelChoice;
use toolstack::demo::{Demo as Task, DemoError, Progress, Report, demo, disk_name};
use toolstack::run::Host;

use super::bound::launcher;
use crate::table;
use crate::terminal;

/// Options of `ringway demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Boots the test guest with a raw file (ext4), a raw file with four queues, \
a memory disk and a read-only file, all served by ringway-io. The guest formats, writes, runs fio \
with verification and checks; then the host checks the files with programs that are not ours.

Examples:
  ringway demo
  ringway demo --dir /srv/scratch --keep

Exit codes: 0 every check passed, 1 something failed, 130 Ctrl-C."
)]
pub(crate) struct Demo {
    /// Directory of the test guest [default: $RINGWAY_GUEST_DIR or .cache/guest]
    #[arg(long, value_name = "DIR")]
    guest: Option<PathBuf>,
    /// Directory under which the images are made (300 MiB) [default: that for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the images
    #[arg(long)]
    keep: bool,
    /// auto takes KVM if a short boot under it succeeds, else TCG
    #[arg(long, value_name = "auto|kvm|tcg", default_value = "auto")]
    accel: AccelChoice,
    /// Show the guest's console and the logs of ringway-io and QEMU
    #[arg(long, short)]
    verbose: bool,
}

impl Demo {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let guest = self.guest.clone().unwrap_or_else(super::guest_dir);
        let (kernel, initrd) = (guest.join("vmlinuz"), guest.join("initramfs.img"));
        ensure!(
            kernel.is_file() && initrd.is_file(),
            "there is no test guest in {}; build it with `make guest`",
            guest.display()
        );
        let mut host = Host::find(launcher()?, self.verbose)?;
        host.sample = true;
        host.kill_worker = Some(Arc::default());
        let interrupts = terminal::interrupts()?;
        let parent = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let mut images = tempfile::Builder::new()
            .prefix("ringway-demo-")
            .tempdir_in(&parent)
            .with_context(|| format!("cannot make a directory under {}", parent.display()))?;
        images.disable_cleanup(self.keep);
        let dir = images.path().to_owned();
        let task = Task { kernel: kernel.clone(), initrd: initrd.clone(), dir, accel: self.accel };

        let display = Display::new(self.verbose);
        let started = Instant::now();
        let result = demo(&task, &host, interrupts.first(), &|news| display.show(&news)).await;
        display.finish();
        match result {
            Ok(report) => self.tell(&report, started.elapsed(), &task),
            Err(DemoError::Stopped(interrupt)) => {
                eprintln!("ringway: {}; the demo was ended", interrupt.name());
                Ok(ExitCode::from(interrupt.exit_code()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn tell(&self, report: &Report, took: Duration, task: &Task) -> anyhow::Result<ExitCode> {
        let mut output = std::io::stdout().lock();
        if let Some(stats) = &report.stats {
            writeln!(output, "{}", table::disks(stats, &report.activity, disk_name))?;
            writeln!(output, "IOPS count the time in which a disk was busy.\n")?;
        }
        let mut failures = 0;
        for check in &report.checks {
            match &check.problem {
                None => writeln!(output, "ok    {}", check.what)?,
                Some(problem) => {
                    failures += 1;
                    writeln!(output, "FAIL  {}: {problem}", check.what)?;
                }
            }
        }
        if self.keep {
            writeln!(output, "The images are in {}.", task.dir.display())?;
        }
        if failures > 0 {
            writeln!(output, "\n{failures} of {} checks failed.", report.checks.len())?;
            return Ok(ExitCode::FAILURE);
        }
        writeln!(
            output,
            "\nThe guest found no error, and the host found every byte in its place."
        )?;
        writeln!(output, "It took {:.0} s. To try next:\n", took.as_secs_f64())?;
        for (command, purpose) in next_commands(&task.kernel, &task.initrd) {
            writeln!(output, "  {command}\n      {purpose}")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Three commands, with the program named as it was called.
fn next_commands(kernel: &Path, initrd: &Path) -> [(String, &'static str); 3] {
    let ringway = std::env::args().next().unwrap_or_else(|| "ringway".into());
    let (kernel, initrd) = (short(kernel), short(initrd));
    [
        (
            format!(
                "{ringway} run --kernel {kernel} --initrd {initrd} --disk memory:1G,queues=2 --stats"
            ),
            "a shell in a guest with a memory disk; `poweroff` ends it and prints its counts",
        ),
        (format!("{ringway} doctor"), "what this host has and lacks"),
        (
            format!("{ringway} lab run blk-baseline --quick"),
            "the same disks against qemu-storage-daemon, in one run",
        ),
    ]
}

/// A path as it is best typed: relative if it is below the current directory.
fn short(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

/// Progress on standard error: a line that changes on a terminal, plain lines elsewhere.
struct Display {
    bar: Option<ProgressBar>,
    verbose: bool,
    started: Instant,
}

impl Display {
    fn new(verbose: bool) -> Self {
        let bar = (std::io::stderr().is_terminal() && !verbose).then(|| {
            let style = ProgressStyle::with_template("{spinner} {elapsed:>3} {wide_msg}");
            let bar = ProgressBar::new_spinner()
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self { bar, verbose, started: Instant::now() }
    }

    fn show(&self, news: &Progress) {
        match (news, &self.bar) {
            (Progress::Step(text), Some(bar)) => {
                bar.println(self.line(text));
                bar.set_message(text.clone());
            }
            (Progress::Step(text), None) => eprintln!("{}", self.line(text)),
            (Progress::Remark(text), Some(bar)) => bar.println(self.line(text)),
            (Progress::Remark(text), None) => eprintln!("{}", self.line(text)),
            (Progress::Console(text), _) if self.verbose => eprintln!("       | {text}"),
            (Progress::Console(_) | Progress::Strike, _) => {}
        }
    }

    fn line(&self, text: &str) -> String {
        format!("{:>4.0} s {text}", self.started.elapsed().as_secs_f64())
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
