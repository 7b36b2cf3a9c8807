//! Complete run of one machine, as `ringway run` does it.

mod activity;
mod console;
mod error;
mod host;
mod resources;
pub(crate) mod workspace;

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

/// Progress of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// The accelerator is chosen.
    Accel(crate::accel::Decision),
    /// The trial boot under KVM has begun. It takes up to [`crate::accel::PROBE_DEADLINE`].
    TryingKvm,
    /// The datapath serves this many disks.
    Serving(usize),
    /// The guest runs.
    Started,
    /// The machine has ended, and the datapath is being stopped.
    Ended,
    /// A failure that does not change the result.
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

/// End of a run without failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<S> {
    /// The guest powered off.
    PoweredOff,
    /// The time limit passed, and the machine was ended.
    TimedOut,
    /// The caller requested a stop for this reason, and the machine was ended.
    Stopped(S),
}

/// Report of a completed run.
#[derive(Clone, Debug)]
pub struct RunReport<S> {
    /// End of the run.
    pub outcome: Outcome<S>,
    /// Counters of the datapath, if it still answered.
    pub stats: Option<Stats>,
    /// Busy time of each disk, if it was sampled.
    pub busy_tracker: BusyTracker,
}

/// Longest wait for the console's reader to take the last output.
const CONSOLE_DEADLINE: Duration = Duration::from_secs(2);

/// Runs one machine to its end. `stop` resolves when the caller wants it to end at once. `note`
/// receives the progress. Whatever the result, no process, socket or file remains.
///
/// # Errors
/// The first error. All parts are taken down all the same.
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

/// Starts all parts and waits for the machine's end.
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
    // Deliver the last output of a guest: it often contains the reason.
    if tokio::time::timeout(CONSOLE_DEADLINE, &mut output).await.is_err() {
        output.abort();
    }
    qemu_exit
}

/// Checks the specification against the host before anything is started.
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
