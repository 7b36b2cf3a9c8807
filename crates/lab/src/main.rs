//! `ringway-lab`: runs experiments and shows their results.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use lab::experiment::{self, Experiment, Options};
use lab::interrupted::Interrupted;
use lab::peer::PeerArgument;
use lab::results::Results;
use lab::{experiments, progress, table, verdict};

/// Exit code for wrong usage, as in clap.
const USAGE: u8 = 2;
/// Base of the exit codes after a signal, as in shells.
const SIGNALLED: usize = 128;

/// Experiments that measure each claim against peers in one run.
#[derive(Debug, Parser)]
#[command(name = "ringway-lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the experiments.
    List,
    /// Run an experiment; write JSON, Markdown and plots (SVG); print the report, which begins with
    /// the verdict. Exit codes: 0 every bar was met, 1 failed, 2 wrong usage, 3 a bar was missed
    /// (FAIL), 4 none was missed but one is undecided, because the spread is too large, 130 Ctrl-C.
    Run(RunArguments),
    /// Print the newest results of every experiment, or of one.
    Report {
        /// Name of the experiment.
        name: Option<String>,
        /// Directory of results.
        #[arg(long, value_name = "DIR", default_value = "lab-results")]
        out: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct RunArguments {
    /// Name of the experiment; see `list`.
    name: String,
    /// Run for less than a minute: fewer cells, short windows.
    #[arg(long)]
    quick: bool,
    /// Directory of results.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    out: PathBuf,
    /// Number of rounds.
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Length of one sample in milliseconds.
    #[arg(long, value_name = "MS")]
    window_ms: Option<u64>,
    /// Only cells whose name contains this text, for example `null-4k-d1`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Directory for images [default: /var/tmp].
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Add a running vhost-user backend, for example SPDK's, to the cells of an experiment with one
    /// client. Give its socket and the process whose CPU time counts. The backend serves the disk
    /// that you gave it, of at least 64 MiB. So choose cells of the same kind with --only, and use
    /// taskset to pin it to the CPU that the report names. The lab keeps one connection for the
    /// whole run. Between its samples, SIGSTOP stops the backend, because it may spin. May be given
    /// again
    #[arg(long, value_name = "NAME=SOCKET,PID")]
    peer: Vec<PeerArgument>,
    /// Measure another build of `ringway-blk` in the same run, for example that of the last
    /// release. Only `sleeping` supports it. The bars are those over a build that publishes a batch
    /// only at its end
    #[arg(long, value_name = "PATH", conflicts_with = "control")]
    other_binary: Option<PathBuf>,
    /// Measure peers in the place of our systems, which shows the noise of the method on this host.
    #[arg(long)]
    control: bool,
}

/// Usage error, independent of the host.
#[derive(Debug)]
struct Wrong(String);

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Command::List => list(),
        Command::Run(arguments) => run(arguments),
        Command::Report { name, out } => report(name.as_deref(), &out),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            complain(&error);
            match error.downcast_ref::<Wrong>() {
                Some(_) => ExitCode::from(USAGE),
                None => ExitCode::FAILURE,
            }
        }
    }
}

fn list() -> Result<ExitCode> {
    for experiment in experiments() {
        print(&format!("{:<17} {}\n", experiment.name(), experiment.summary()));
    }
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: RunArguments) -> Result<ExitCode> {
    let experiment = find(&arguments.name)?;
    let stop = Arc::new(AtomicBool::new(false));
    let by = Arc::new(AtomicUsize::new(0));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let number = usize::try_from(signal).unwrap_or_default();
        // In this order, code that sees `stop` also sees the signal number.
        signal_hook::flag::register_usize(signal, Arc::clone(&by), number)
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .context("cannot catch signals")?;
    }
    let options = Options {
        quick: arguments.quick,
        rounds: arguments.rounds,
        window_ms: arguments.window_ms,
        only: arguments.only,
        control: arguments.control,
        scratch: arguments.scratch,
        peers: arguments.peer,
        other_binary: arguments.other_binary,
    };
    let mut progress = progress::on_stderr();
    let run = experiment::run(experiment.as_ref(), &options, progress.as_mut(), &stop);
    let results = match run {
        Err(error) if error.is::<Interrupted>() => {
            complain(&error);
            let code = SIGNALLED.saturating_add(by.load(Ordering::Relaxed));
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)));
        }
        run => run?,
    };
    // First the report: on a full disk, it is all that remains of a long run.
    show(&results);
    let written = results.write(&arguments.out)?;
    print("\nWritten:\n");
    for path in [&written.json, &written.markdown].into_iter().chain(&written.plots) {
        print(&format!("{}\n", path.display()));
    }
    Ok(results.verdict.map_or(ExitCode::SUCCESS, |verdict| verdict.exit_code().into()))
}

/// Prints the report, in colour on a terminal unless `NO_COLOR` is set.
fn show(results: &Results) {
    let report = table::markdown(results);
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let coloured = std::io::stdout().is_terminal() && !plain;
    print(&if coloured { verdict::coloured(&report) } else { report });
}

/// Prints a text. Without a reader of standard output, the exit code and the files tell the result.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn complain(error: &anyhow::Error) {
    let _ = writeln!(std::io::stderr(), "ringway-lab: {error:#}");
}

fn report(name: Option<&str>, out: &std::path::Path) -> Result<ExitCode> {
    if let Some(name) = name {
        find(name)?;
    }
    let newest = Results::newest(out, name)?;
    if newest.is_empty() {
        bail!("no results in {}; run an experiment first", out.display());
    }
    for results in newest {
        show(&results);
        print("\n");
    }
    Ok(ExitCode::SUCCESS)
}

fn find(name: &str) -> Result<Box<dyn Experiment>> {
    let found = experiments().into_iter().find(|e| e.name() == name);
    found
        .with_context(|| Wrong(format!("no experiment is called '{name}'; see `ringway-lab list`")))
}
