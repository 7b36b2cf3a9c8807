//! One machine, from nothing to nothing: what `ringway run` does.

mod activity;
mod console;
mod error;
mod host;
mod resources;
mod workspace;

pub use activity::{BusyTracker, SAMPLE_EVERY};
pub use console::Console;
pub use error::RunError;
pub use host::Host;
pub use workspace::scratch_of_user;

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use model::machine::MachineSpec;
use model::report::Stats;

use crate::qemu::QemuExit;
use resources::RunResources;
use workspace::Workspace;

/// What a run tells while it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// The accelerator that was taken, and why.
    Accel(crate::accel::Decision),
    /// KVM is being tried; this takes up to [`crate::accel::PROBE_DEADLINE`].
    TryingKvm,
    /// The datapath serves this many disks.
    Serving(usize),
    /// The guest runs.
    Started,
    /// The machine has ended; the datapath is being stopped.
    Ended,
    /// Something went wrong that the result does not depend on.
    Trouble(String),
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accel(decision) => {
                write!(f, "accelerator {}: {}", decision.accel.name(), decision.why)
            }
            Self::TryingKvm => write!(f, "trying KVM with a short boot"),
            Self::Serving(1) => write!(f, "serving 1 disk"),
            Self::Serving(count) => write!(f, "serving {count} disks"),
            Self::Started => write!(f, "the guest runs"),
            Self::Ended => write!(f, "the guest has ended"),
            Self::Trouble(text) => f.write_str(text),
        }
    }
}

/// How a run ended, when nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<S> {
    /// The guest powered itself off.
    PoweredOff,
    /// The time limit passed; the machine was ended.
    TimedOut,
    /// The caller asked to stop, for this reason; the machine was ended.
    Stopped(S),
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct RunReport<S> {
    /// How it ended.
    pub outcome: Outcome<S>,
    /// What the datapath counted, if it could still be asked.
    pub stats: Option<Stats>,
    /// For how long each disk was busy, if that was asked for.
    pub busy_tracker: BusyTracker,
}

/// Longest wait for the console's reader to take the last output.
const CONSOLE_DEADLINE: Duration = Duration::from_secs(2);

/// Runs one machine to its end. `stop` resolves when the caller wants it to end at once; `note`
/// is told of each step. Whatever the result, no process, socket or file is left.
///
/// # Errors
/// The first cause; the rest is taken down all the same.
pub async fn run<S>(
    spec: &MachineSpec,
    host: &Host,
    console: Console,
    stop: impl Future<Output = S>,
    note: &mut (dyn FnMut(RunEvent) + Send),
) -> Result<RunReport<S>, RunError> {
    check(spec)?;
    let workspace = Workspace::new(&host.scratch)
        .map_err(|source| RunError::Scratch { path: host.scratch.clone(), source })?;
    let mut run_resources = RunResources::default();
    let result = tokio::select! {
        biased;
        reason = stop => Ok(Outcome::Stopped(reason)),
        () = limit(spec.timeout) => Ok(Outcome::TimedOut),
        qemu_exit = drive(spec, host, workspace.path(), &mut run_resources, console, note) => match qemu_exit {
            Ok(QemuExit::PoweredOff) => Ok(Outcome::PoweredOff),
            Ok(QemuExit::Asked) => Err(RunError::EndedOutside),
            Ok(QemuExit::Reset) => Err(RunError::Guest { panicked: false }),
            Ok(QemuExit::Panicked) => Err(RunError::Guest { panicked: true }),
            Err(error) => Err(error),
        },
    };
    note(RunEvent::Ended);
    let stats = run_resources.take_down(note).await;
    if let Err(error) = workspace.remove() {
        note(RunEvent::Trouble(format!("the sockets' directory was not removed: {error}")));
    }
    let busy_tracker = run_resources.busy_tracker;
    result.map(|outcome| RunReport { outcome, stats, busy_tracker })
}

/// Starts everything and waits for the machine's end.
async fn drive(
    spec: &MachineSpec,
    host: &Host,
    dir: &Path,
    run_resources: &mut RunResources,
    console: Console,
    note: &mut (dyn FnMut(RunEvent) + Send),
) -> Result<QemuExit, RunError> {
    run_resources.decide(spec, host, note).await?;
    run_resources.serve(spec, host, dir).await?;
    note(RunEvent::Serving(spec.disks.len()));
    let machine_console = run_resources.start(spec, host).await?;
    note(RunEvent::Started);
    let mut output = console.connect(machine_console);
    let qemu_exit = run_resources.wait(host).await;
    // The last words of a guest are often the ones that matter.
    if tokio::time::timeout(CONSOLE_DEADLINE, &mut output).await.is_err() {
        output.abort();
    }
    qemu_exit
}

/// Checks what the host can tell before anything is started.
fn check(spec: &MachineSpec) -> Result<(), RunError> {
    spec.validate()?;
    let readable = |what, path: &Path| match std::fs::File::open(path) {
        Ok(_) => Ok(()),
        Err(source) => Err(RunError::Unreadable { what, path: path.into(), source }),
    };
    readable("kernel", &spec.kernel)?;
    spec.initrd.as_deref().map_or(Ok(()), |initrd| readable("initrd", initrd))
}

async fn limit(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}
