//! What is asked of a machine, and what becomes of it.

use std::fmt;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::admission::StepLimits;
use model::id::Domid;
use model::plan::StepAction;
use model::refusal::Refusal;

use crate::boxed_future::BoxFuture;
use crate::exec::{CancelToken, ProgressFn, StepError};

/// How long an operation waits for those before it, unless the settings say otherwise. Twice what
/// a step of hung storage takes.
pub const QUEUE_DEADLINE: Duration = Duration::from_secs(120);

/// How machines are worked on.
#[derive(Clone, Debug)]
pub struct MachinesConfig {
    /// How many steps may run at once.
    pub limits: StepLimits,
    /// How long an operation waits for those before it.
    pub queue_deadline: Duration,
    /// Sockets of disks and interfaces are below it, in `io/`.
    pub run: PathBuf,
    /// CPUs of the host: no interface has more pairs of queues unless that is asked for.
    pub host_cpus: u16,
    /// No domain had this number or a higher one.
    pub first_domid: Domid,
}

impl MachinesConfig {
    /// The defaults, with sockets in `run`.
    pub fn new(run: PathBuf) -> Self {
        let (limits, queue_deadline) = (StepLimits::default(), QUEUE_DEADLINE);
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let host_cpus = u16::try_from(cpus).unwrap_or(u16::MAX);
        Self { limits, queue_deadline, run, host_cpus, first_domid: Domid(1) }
    }
}

/// Who asks for an operation.
pub struct OpHooks {
    /// Whether it may begin: asked when its turn comes, and the operation counts as under way from
    /// then on. Must not wait.
    pub gate: Box<dyn Fn() -> Result<(), Refusal> + Send + Sync>,
    /// Waited for after the gate and before anything is done: for what must be on disk by then.
    pub noted: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    /// Told how it comes along.
    pub progress: ProgressFn,
    /// Ends it.
    pub cancel: CancelToken,
}

impl OpHooks {
    /// One that nothing holds up and nobody watches.
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
        f.debug_struct("Job").field("cancel", &self.cancel).finish_non_exhaustive()
    }
}

/// Why an operation did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// It may not begin.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Its turn did not come in time.
    #[error("another operation on the machine takes too long; try again when it has ended")]
    Busy,
    /// It was cancelled, or a shutdown by force has overtaken it.
    #[error("the operation was cancelled")]
    Cancelled,
    /// A step failed.
    #[error("{verb:?} failed")]
    Failed {
        /// The first step that failed.
        verb: StepAction,
        /// Why.
        #[source]
        error: StepError,
    },
}
