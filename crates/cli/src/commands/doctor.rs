//! `ringway doctor`: examines this host and suggests remedies.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use toolstack::accel::ProbeCache;
use toolstack::binaries::{self, QEMU, RINGWAY_IO};
use toolstack::doctor::{Finding, Level, Subject, examine, worst};

use super::die_with_parent::launcher;
use crate::table;

/// Output format of the findings.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Table for terminals
    Table,
    /// Array of JSON objects, for programs
    Json,
}

/// Options of `ringway doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway doctor
  ringway doctor --path /srv/images --format json

Exit code 0 when nothing fails (warnings are no failures), else 1.")]
pub(crate) struct Doctor {
    /// Output format
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Image, block device or directory to test for direct I/O
    #[arg(long, value_name = "PATH", default_value = ".")]
    path: PathBuf,
    /// Kernel for the trial boot under KVM [default: that of the test guest, if it is built]
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
}

impl Doctor {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let subject = Subject {
            qemu: binaries::in_path(QEMU),
            ringway_io: binaries::ours(RINGWAY_IO).ok(),
            kvm: "/dev/kvm".into(),
            kernel: self.kernel.or_else(guest_kernel),
            probe_cache: ProbeCache::of_user(),
            launcher: launcher()?,
            path: self.path,
        };
        let findings = examine(&subject).await;
        let mut output = std::io::stdout().lock();
        match self.format {
            Format::Json => {
                serde_json::to_writer_pretty(&mut output, &findings)?;
                writeln!(output)?;
            }
            Format::Table => print(&mut output, &findings)?,
        }
        Ok(match worst(&findings) {
            Level::Failure => ExitCode::FAILURE,
            Level::Ok | Level::Warning => ExitCode::SUCCESS,
        })
    }
}

/// Returns the test guest's kernel from the output directory of `make guest`.
fn guest_kernel() -> Option<PathBuf> {
    let kernel = super::guest_dir().join("vmlinuz");
    kernel.is_file().then_some(kernel)
}

fn print(output: &mut impl Write, findings: &[Finding]) -> std::io::Result<()> {
    let mut table = table::new(&["", "check", "found"], 3);
    for finding in findings {
        table.add_row([mark(finding.level), finding.check, &finding.found]);
    }
    writeln!(output, "{table}")?;
    for finding in findings {
        if let Some(advice) = &finding.advice {
            writeln!(output, "{} {}: {advice}", mark(finding.level), finding.check)?;
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (failures, warnings) = (count(Level::Failure), count(Level::Warning));
    writeln!(output, "{failures} failing, {warnings} notes, of {} checks", findings.len())
}

fn mark(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Warning => "note",
        Level::Failure => "FAIL",
    }
}
