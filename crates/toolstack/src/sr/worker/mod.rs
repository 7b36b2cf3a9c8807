//! Storage workers: processes in which everything happens that touches the paths of an SR.
//!
//! # Why processes
//! A thread that looks at a file of a dead network file system sleeps in the kernel, and no signal
//! ends that. In the daemon it would keep the daemon from ending, with all that it has locked. A
//! worker that sleeps so is left behind, and holds nothing that anybody needs.
//!
//! # Model
//! The daemon starts itself in a hidden mode, at the other end of a socket pair. Calls are lines of
//! JSON with numbers; the worker answers them in any order, each from a thread of its own. A call
//! that is not answered in time costs the worker its place: the next call starts another one, those
//! under way there may still end, then it is killed. When [`MAX_LEFT_EACH`] of an SR, or
//! [`MAX_LEFT`] of the host, have not ended for all that, the last one of an SR that hangs is kept.
//!
//! # Errors
//! [`SrError::Late`] for what was not answered; [`SrError::Worker`] for what was asked of a worker
//! that died. Both may have been done.

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

pub(crate) use proto::{MAX_VOLUMES, SrRequest, SrResponse};
pub use serve::serve;

/// Most workers of a host that are left behind, each with some MiB of memory.
pub const MAX_LEFT: usize = 8;
/// Most of them of one SR: one that is asked again and again leaves some for others.
pub const MAX_LEFT_EACH: usize = 2;
/// The mode in which the daemon's program is a worker.
pub const MODE: &str = "--storage-worker";

/// Least of the longest waits for a call: others than steps have it too, whatever a step has.
const CALL_DEADLINE: Duration = Duration::from_secs(30);

/// Longest wait for a call where a step has this deadline: half as long, so that which file did not
/// answer is told before the step has ended by itself, but no less than 30 s.
pub fn call_deadline(step: Duration) -> Duration {
    CALL_DEADLINE.max(step / 2)
}

/// What all workers of a host have in common.
#[derive(Clone, Debug)]
pub struct Host {
    helper_command: HelperCommand,
    deadline: Duration,
    left: Arc<Semaphore>,
}

impl Host {
    /// Workers that are started like this; each call ends within `deadline`.
    pub fn new(helper_command: HelperCommand, deadline: Duration) -> Self {
        Self { helper_command, deadline, left: Arc::new(Semaphore::new(MAX_LEFT)) }
    }

    /// How many workers are left behind now.
    pub fn left_behind(&self) -> usize {
        MAX_LEFT.saturating_sub(self.left.available_permits())
    }
}

/// The worker of one SR: always one that takes calls.
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

/// Given back when one that was left behind has really ended.
#[derive(Debug)]
struct AbandonedWorker {
    _of_sr: OwnedSemaphorePermit,
    _of_host: OwnedSemaphorePermit,
}

impl Worker {
    /// One that is started by the first call.
    pub(crate) fn new(host: &Host) -> Self {
        let (host, current) = (host.clone(), Mutex::default());
        let left = Arc::new(Semaphore::new(MAX_LEFT_EACH));
        Self { shared: Arc::new(Shared { host, current, left }) }
    }

    /// Whether anything is asked of it, or one that it has left behind is still there.
    pub(crate) fn is_busy(&self) -> bool {
        let is_asked = || self.shared.current().as_ref().is_some_and(|process| process.is_asked());
        Arc::strong_count(&self.shared) > 1
            || self.shared.left.available_permits() < MAX_LEFT_EACH
            || is_asked()
    }

    /// Has something done. May be dropped: the call goes on to its end or its deadline.
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
        // Replaced whole.
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

    /// A call to this process has not ended in time.
    fn replace(&self, process: &Arc<Process>) {
        let mut current = self.current();
        if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, process)) {
            return;
        }
        let place = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_owned().ok();
        let (Some(_of_sr), Some(_of_host)) = (place(&self.left), place(&self.host.left)) else {
            tracing::error!(
                "{MAX_LEFT_EACH} workers of a storage, or {MAX_LEFT} of all, hang: no more are left \
                 behind until one of them ends; look for storage that does not answer"
            );
            return;
        };
        let abandoned_worker = AbandonedWorker { _of_sr, _of_host };
        *current = None;
        let (process, deadline) = (Arc::clone(process), self.host.deadline);
        tokio::spawn(async move {
            // By then each call that is under way there has ended or is late.
            tokio::time::sleep(deadline).await;
            process.abandon(abandoned_worker);
        });
    }
}
