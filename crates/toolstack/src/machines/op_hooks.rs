//! Options, hooks and errors of operations.

use std::fmt;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::admission::StepLimits;
use model::id::Domid;
use model::plan::StepAction;
use model::refusal::Refusal;

use super::StepError;
use crate::boxed_future::BoxFuture;
use crate::exec::{CancelToken, ProgressFn};

/// Default of [`MachinesConfig::queue_deadline`]: twice the time that a step of hung storage takes.
pub const QUEUE_DEADLINE: Duration = Duration::from_secs(120);

/// Settings of [`Machines`](super::Machines).
#[derive(Clone, Debug)]
pub struct MachinesConfig {
    /// Limits of parallel steps.
    pub limits: StepLimits,
    /// Longest wait of an operation for those before it.
    pub queue_deadline: Duration,
    /// Run directory. Its `io/` contains the sockets of disks and interfaces.
    pub run: PathBuf,
    /// CPUs of the host: the default limit of an interface's queue pairs.
    pub host_cpus: u16,
    /// First domain id to use. All earlier domains had lower ids.
    pub first_domid: Domid,
}

impl MachinesConfig {
    /// Returns the defaults, with sockets in `run`.
    pub fn new(run: PathBuf) -> Self {
        let (limits, queue_deadline) = (StepLimits::default(), QUEUE_DEADLINE);
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let host_cpus = u16::try_from(cpus).unwrap_or(u16::MAX);
        Self { limits, queue_deadline, run, host_cpus, first_domid: Domid(1) }
    }
}

/// Hooks of an operation's caller.
pub struct OpHooks {
    /// Check that decides whether the operation may begin. It runs when the operation is next,
    /// which from then on counts as running. Must not block.
    pub gate: Box<dyn Fn() -> Result<(), Refusal> + Send + Sync>,
    /// Future to await after the gate and before the first step: writes that must be on disk by
    /// then.
    pub noted: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    /// Progress callback.
    pub progress: ProgressFn,
    /// Cancellation of the operation.
    pub cancel: CancelToken,
}

impl OpHooks {
    /// Returns hooks that do nothing.
    pub fn plain() -> Self {
        Self {
            gate: Box::new(|| Ok(())),
            noted: Box::new(|| Box::pin(std::future::ready(()))),
            progress: Arc::new(|_| ()),
            cancel: CancelToken::new(),
        }
    }
}

impl fmt::Debug for OpHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpHooks").field("cancel", &self.cancel).finish_non_exhaustive()
    }
}

/// Error of an operation.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// The gate or the planner refused the operation.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The operations before it took longer than the queue deadline.
    #[error("another operation on the machine takes too long; try again when it has ended")]
    Busy,
    /// The operation was cancelled, or a forced shutdown preempted it.
    #[error("the operation was cancelled")]
    Cancelled,
    /// A step failed.
    #[error("{verb:?} failed")]
    Failed {
        /// First step that failed.
        verb: StepAction,
        /// Error of that step.
        #[source]
        error: StepError,
    },
}
