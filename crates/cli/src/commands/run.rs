//! `ringway run`: starts a VM on disks that Ringway serves.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use model::disk_arg::DiskArg;
use model::machine::{AccelChoice, MachineSpec, parse_timeout};
use model::spec::parse_size;
use toolstack::run::{Console, Host, Outcome, RunEvent, run};

use super::die_with_parent::launcher;
use crate::table;
use crate::terminal::{self, Interrupt, Keyboard};

/// Exit code after the time limit, as in timeout(1).
const TIMED_OUT: u8 = 124;

/// Options of `ringway run`.
#[derive(Debug, Args)]
#[command(
    after_help = "Disks: PATH[,OPTION]... with the options format=raw|qcow2|vhd, backing=PATH,
backing-format=raw|qcow2|vhd, ro, serial=S, queues=N, cache=none|writeback,
block-size=BYTES|storage, poll=auto|off|always, poll-max-us=N, poll-idle-threshold=PERCENT,
on-full=wait|error, iops=N and bps=SIZE (caps on requests and bytes a second). PATH is an image
file (raw unless its format is stated, which is never guessed), a block device, or null:SIZE or
memory:SIZE; double a comma in a path. The position of a --disk decides its PCI address: give them
in the same order at every start.

Examples:
  ringway run --kernel vmlinuz --initrd initramfs.img --disk disk.raw
  ringway run --kernel vmlinuz --initrd initramfs.img --disk golden.raw,ro,serial=golden \\
      --disk memory:1G,queues=2 --timeout 60s --stats

Ctrl-C ends the machine at once, as if its power was cut. Exit codes: 0 the guest powered off,
1 something failed (the cause is on standard error), 124 the time limit passed, 130 Ctrl-C."
)]
pub(crate) struct Run {
    /// Kernel image
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// Initial RAM disk
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// Kernel command line; no_timer_check prevents a panic of a guest without KVM on a busy host
    #[arg(long, value_name = "TEXT", default_value = "console=ttyS0 panic=-1 no_timer_check")]
    #[arg(allow_hyphen_values = true)]
    append: String,
    /// Disk; may be repeated (see below)
    #[arg(long = "disk", value_name = "DISK")]
    disks: Vec<DiskArg>,
    /// Guest memory
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_size)]
    memory: u64,
    /// Number of virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 2)]
    vcpus: u16,
    /// Accelerator; auto uses KVM if a short boot under it succeeds, otherwise TCG
    #[arg(long, value_name = "auto|kvm|tcg", default_value = "auto")]
    accel: AccelChoice,
    /// Stop the machine after this time, for example 60s or 5m
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    timeout: Option<Duration>,
    /// At the end, print the activity of each disk on standard error
    #[arg(long)]
    stats: bool,
    /// Show the logs of ringway-io and QEMU, and each step
    #[arg(long, short)]
    verbose: bool,
}

impl Run {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let spec = MachineSpec {
            kernel: self.kernel,
            initrd: self.initrd,
            append: self.append,
            disks: self.disks,
            memory_bytes: self.memory,
            vcpus: self.vcpus,
            accel: self.accel,
            timeout: self.timeout,
        };
        spec.validate()?;
        let mut host = Host::find(launcher()?, self.verbose)?;
        host.sample = self.stats;
        let interrupt = terminal::interrupts()?;
        let keyboard = Keyboard::open();
        if keyboard.is_taken() {
            logging::write_line("ringway: all keys go to the guest, but Ctrl-C ends the machine");
        }
        let keys = keyboard.read().context("cannot start a thread")?;
        let console = Console::new(tokio::io::stdout(), Some(keys));
        let verbose = self.verbose;
        let mut note = |run_event: RunEvent| match run_event {
            RunEvent::Accel(_) | RunEvent::TryingKvm | RunEvent::Trouble(_) => {
                logging::write_line(&format!("ringway: {run_event}"))
            }
            _ if verbose => logging::write_line(&format!("ringway: {run_event}")),
            _ => {}
        };
        let result = run(&spec, &host, console, interrupt.first(), &mut note).await;
        drop(keyboard);
        let run_report = result?;
        if self.stats {
            match &run_report.stats {
                Some(stats) => {
                    let table =
                        table::disks(stats, &run_report.busy_tracker, table::id_and_backend);
                    logging::write_line(&table.to_string());
                }
                None => logging::write_line("ringway: no statistics: ringway-io did not answer"),
            }
        }
        Ok(exit_code(run_report.outcome, self.timeout))
    }
}

fn exit_code(outcome: Outcome<Interrupt>, timeout: Option<Duration>) -> ExitCode {
    match outcome {
        Outcome::PoweredOff => ExitCode::SUCCESS,
        Outcome::TimedOut => {
            let limit = timeout.unwrap_or_default();
            logging::write_line(&format!(
                "ringway: the time limit of {limit:?} passed; the machine was ended"
            ));
            ExitCode::from(TIMED_OUT)
        }
        Outcome::Stopped(interrupt) => {
            logging::write_line(&format!("ringway: {interrupt}; the machine was ended"));
            ExitCode::from(interrupt.exit_code())
        }
    }
}
