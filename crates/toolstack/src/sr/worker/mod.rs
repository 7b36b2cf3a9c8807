//! Storage workers: processes that access the paths of an SR.
//!
//! # Why processes
//! A thread that accesses a file of a dead network file system sleeps in the kernel, and no signal
//! ends that. In the daemon it would prevent the daemon's exit, with all its locks. A sleeping
//! worker is abandoned, and has nothing that another process needs.
//!
//! # Model
//! The daemon starts itself in a hidden mode, with a socket pair between them. Calls are JSON lines
//! with ids. The worker answers in any order, and runs each call in its own thread.
//!
//! If a call is not answered in time, the worker is replaced: the next call starts another one.
//! Running calls may still end in the old worker, and then it is killed. At most [`MAX_LEFT_EACH`]
//! killed workers of an SR, and [`MAX_LEFT`] of the host, may still exist. At this limit a hung SR
//! keeps its last worker.
//!
//! # Errors
//! [`SrError::Late`] for a call without an answer; [`SrError::Worker`] for a call to a worker that
//! died. In both cases the call may have taken effect.

mod process;
mod proto;
mod serve;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::id::SrId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::boxed_future::BoxFuture;
use crate::helper_command::HelperCommand;
use crate::sr::SrError;
use process::Process;
use proto::Call;

pub(crate) use proto::{MAX_VOLUMES, SrRequest, SrResponse, WireMerge};
pub use serve::serve;

/// Most abandoned workers of a host, each with some MiB of memory.
pub const MAX_LEFT: usize = 8;
/// Most abandoned workers of one SR, so that repeated calls to a hung SR do not use up the host's
/// limit.
pub const MAX_LEFT_EACH: usize = 2;
/// Mode argument of the daemon's program for a worker.
pub const MODE: &str = "--storage-worker";

/// Shortest deadline of a call. It also applies to calls that belong to no step.
const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// Returns the deadline of a call for a step with this deadline: half of it, but at least 30 s. So
/// the call's error, which names the file, comes before the step's.
pub fn call_deadline(step: Duration) -> Duration {
    CALL_DEADLINE.max(step / 2)
}

/// Settings and limits shared by all workers of a host.
#[derive(Clone, Debug)]
pub struct Host {
    helper_command: HelperCommand,
    deadline: Duration,
    left: Arc<Semaphore>,
}

impl Host {
    /// Creates the settings: the command that starts a worker, and the deadline of each call.
    pub fn new(helper_command: HelperCommand, deadline: Duration) -> Self {
        Self { helper_command, deadline, left: Arc::new(Semaphore::new(MAX_LEFT)) }
    }

    /// Returns the number of abandoned workers.
    pub fn left_behind(&self) -> usize {
        MAX_LEFT.saturating_sub(self.left.available_permits())
    }
}

/// Worker of one SR. A replaced process is hidden from callers.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    host: Host,
    current: Mutex<Option<Arc<Process>>>,
    left: Arc<Semaphore>,
}

/// Permit of an abandoned worker, returned when its process has exited.
#[derive(Debug)]
struct AbandonedWorker {
    _of_sr: OwnedSemaphorePermit,
    _of_host: OwnedSemaphorePermit,
}

impl Worker {
    /// Creates a worker, whose process the first call starts.
    pub(crate) fn new(host: &Host) -> Self {
        let (host, current) = (host.clone(), Mutex::default());
        let left = Arc::new(Semaphore::new(MAX_LEFT_EACH));
        Self { shared: Arc::new(Shared { host, current, left }) }
    }

    /// Returns whether a call runs in it, or one of its abandoned processes still exists.
    pub(crate) fn is_busy(&self) -> bool {
        let is_asked = || self.shared.current().as_ref().is_some_and(|process| process.is_asked());
        Arc::strong_count(&self.shared) > 1
            || self.shared.left.available_permits() < MAX_LEFT_EACH
            || is_asked()
    }

    /// Executes a request. May be dropped: the call continues to its end or its deadline.
    pub(crate) fn call(
        &self,
        sr: SrId,
        place: &Path,
        sr_request: SrRequest,
    ) -> BoxFuture<'static, Result<SrResponse, SrError>> {
        let (shared, place) = (Arc::clone(&self.shared), place.to_owned());
        let call = Call { id: 0, sr: sr.0, place, work: sr_request };
        Box::pin(async move {
            let called = tokio::spawn(async move { shared.call(call).await }).await;
            called.unwrap_or_else(|error| Err(SrError::Worker(error.to_string())))
        })
    }
}

impl Shared {
    async fn call(&self, call: Call) -> Result<SrResponse, SrError> {
        let process = self.process()?;
        let (what, after) = (call.work.to_string(), self.host.deadline);
        let called = tokio::time::timeout(after, process.call(call)).await;
        called.unwrap_or_else(|_| {
            self.replace(&process);
            Err(SrError::Late { what, after })
        })
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Process>>> {
        // The value is replaced as a whole.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self) -> Result<Arc<Process>, SrError> {
        let mut current = self.current();
        match &*current {
            Some(process) if !process.has_ended() => Ok(Arc::clone(process)),
            _ => {
                let started = Process::start(&self.host.helper_command);
                let process = started.map_err(|source| SrError::Os {
                    what: format!("cannot start {}", self.host.helper_command.program.display()),
                    source,
                })?;
                *current = Some(Arc::clone(&process));
                Ok(process)
            }
        }
    }

    /// Replaces a process after a call has passed its deadline.
    fn replace(&self, process: &Arc<Process>) {
        let mut current = self.current();
        if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, process)) {
            return;
        }
        let place = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_owned().ok();
        let (Some(_of_sr), Some(_of_host)) = (place(&self.left), place(&self.host.left)) else {
            tracing::error!(
                "{MAX_LEFT_EACH} workers of a storage, or {MAX_LEFT} of all, hang: no more are \
                 abandoned until one of them ends; check for storage that does not answer"
            );
            return;
        };
        let abandoned_worker = AbandonedWorker { _of_sr, _of_host };
        *current = None;
        let (process, deadline) = (Arc::clone(process), self.host.deadline);
        tokio::spawn(async move {
            // By then each running call has ended or passed its deadline.
            tokio::time::sleep(deadline).await;
            process.abandon(abandoned_worker);
        });
    }
}
