//! Calls on image files without a disk: `image.info`, `image.check`, `image.map`, `image.create`,
//! `image.convert`, `image.snapshot`, `image.progress`.
//!
//! Each call runs on a thread of its own, because its storage may hang. Its caller waits until the
//! deadline of the call, or until the process ends or the caller hangs up. Then the work stops at
//! its next step. A thread that the storage holds keeps its permit, so hung storage cannot collect
//! threads.

mod convert;
mod create;
mod new_file;
mod qcow2;
mod raw;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use disk::DiskError;
use image::ImageError;
use model::image::{
    ImageCheck, ImageCheckReport, ImageCreate, ImageFormat, ImageInfo, ImageMap, ImageMapReply,
    ImageProgress, ImageProgressReply, ImageQuery, ImageSnapshotCall,
};
use model::rpc::{Call, RpcError, code};
use rustix::net::{RecvFlags, recv};
use serde::Serialize;
use serde_json::Value;
use vhost_user::{StopSignal, Woken};

use crate::error::{error_chain, failed};
use convert::Progress;

/// Most calls at a time. A call uses up to 64 MiB of memory, and a thread.
const MAX_CALLS: usize = 4;
/// Longest wait for work that was told to stop.
const CLEANUP: Duration = Duration::from_secs(2);
/// Time that `image.create` may take, in seconds.
const CREATE_DEADLINE_S: u32 = 30;

/// Calls on images that run in this process.
#[derive(Debug, Default)]
pub(crate) struct ImageCalls {
    running: Arc<AtomicUsize>,
    converting: Arc<Mutex<BTreeMap<PathBuf, Arc<Progress>>>>,
}

/// Permit of a running call, returned on drop.
struct CallPermit(Arc<AtomicUsize>);

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Conversion in the list of running ones, as long as it runs.
struct Shown {
    converting: Arc<Mutex<BTreeMap<PathBuf, Arc<Progress>>>>,
    path: PathBuf,
    progress: Arc<Progress>,
}

impl Shown {
    fn new(converting: Arc<Mutex<BTreeMap<PathBuf, Arc<Progress>>>>, path: &Path) -> Self {
        let progress = Arc::<Progress>::default();
        lock(&converting).insert(path.into(), Arc::clone(&progress));
        Self { converting, path: path.into(), progress }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let mut converting = lock(&self.converting);
        // Another call with the same path may have taken its place.
        if converting.get(&self.path).is_some_and(|one| Arc::ptr_eq(one, &self.progress)) {
            converting.remove(&self.path);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reason why a call on an image failed.
#[derive(Debug, thiserror::Error)]
enum ImageCallError {
    /// The file cannot be opened or locked.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The image is not as stated, damaged, or cannot be made.
    #[error("{path}: {source}")]
    Image {
        path: String,
        #[source]
        source: ImageError,
    },
    /// The format does not have this call, or a parameter is not possible.
    #[error("{0}")]
    Refused(String),
}

impl ImageCalls {
    /// Runs a call on an image. `caller` is its connection.
    ///
    /// # Errors
    /// The call failed or did not end in time, or too many calls are running.
    pub(crate) fn run(&self, call: Call, caller: BorrowedFd<'_>) -> Result<Value, RpcError> {
        match call {
            Call::ImageInfo(query) => {
                self.run_stoppable(query.deadline_s, caller, move |stop| info(&query, stop))
            }
            Call::ImageCheck(call) => {
                self.run_stoppable(call.deadline_s, caller, move |stop| check(&call, stop))
            }
            Call::ImageMap(call) => {
                self.run_stoppable(call.deadline_s, caller, move |stop| map(&call, stop))
            }
            Call::ImageCreate(call) => {
                self.run_stoppable(CREATE_DEADLINE_S, caller, move |stop| create(&call, stop))
            }
            Call::ImageConvert(call) => {
                let deadline_s = call.deadline_s;
                let converting = Arc::clone(&self.converting);
                self.run_stoppable(deadline_s, caller, move |stop| {
                    let shown = Shown::new(converting, &call.path);
                    convert::convert(&call, stop, &shown.progress)?;
                    new_info(&call.path, call.format, stop)
                })
            }
            Call::ImageSnapshot(call) => {
                self.run_stoppable(CREATE_DEADLINE_S, caller, move |stop| snapshot(&call, stop))
            }
            Call::ImageProgress => serde_json::to_value(self.progress()).map_err(failed),
            // The dispatcher sends no other call here.
            _ => Ok(Value::Null),
        }
    }

    /// Returns the progress of the running conversions.
    fn progress(&self) -> ImageProgressReply {
        let one = |(path, progress): (&PathBuf, &Arc<Progress>)| ImageProgress {
            path: path.clone(),
            done_bytes: progress.done.load(Ordering::Relaxed),
            total_bytes: progress.total.load(Ordering::Relaxed),
        };
        ImageProgressReply { converting: lock(&self.converting).iter().map(one).collect() }
    }

    fn permit(&self) -> Result<CallPermit, RpcError> {
        let permit = CallPermit(Arc::clone(&self.running));
        if permit.0.fetch_add(1, Ordering::Relaxed) < MAX_CALLS {
            return Ok(permit);
        }
        let message =
            format!("{MAX_CALLS} calls on images are running; try again when one has ended");
        Err(RpcError { code: code::BUSY, message })
    }

    fn run_stoppable<R: Serialize + Send + 'static>(
        &self,
        deadline_s: u32,
        caller: BorrowedFd<'_>,
        work: impl FnOnce(&Arc<AtomicBool>) -> Result<R, ImageCallError> + Send + 'static,
    ) -> Result<Value, RpcError> {
        let permit = self.permit()?;
        let ended = StopSignal::new().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (send, receive) = sync_channel(1);
        let (signal, flag) = (ended.clone(), Arc::clone(&stop));
        let thread = move || {
            // The caller may have stopped waiting.
            let _ = send.send(work(&flag));
            drop(permit);
            signal.stop();
        };
        std::thread::Builder::new().name("image".into()).spawn(thread).map_err(failed)?;
        let until = Instant::now() + Duration::from_secs(deadline_s.into());
        let why = wait(&ended, caller, until).map_err(failed)?;
        stop.store(true, Ordering::Relaxed);
        if why != WaitEnd::Ended {
            // It may have a file to remove.
            ended.wait(None, Some(CLEANUP)).map_err(failed)?;
        }
        let late = || RpcError { code: code::FAILED, message: why.text(deadline_s) };
        let result = match why {
            WaitEnd::Ended => receive.recv().map_err(|_| late())?,
            WaitEnd::Late | WaitEnd::CallerLeft => return Err(late()),
        };
        let value = result
            .map_err(|error| RpcError { code: code::FAILED, message: error_chain(&error) })?;
        serde_json::to_value(value).map_err(failed)
    }
}

/// End of the wait for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Ended,
    Late,
    CallerLeft,
}

impl WaitEnd {
    fn text(self, deadline_s: u32) -> String {
        match self {
            Self::Ended => "the call on the image failed inside; the log has the cause".into(),
            Self::Late => format!(
                "the call on the image did not end within {deadline_s} s; give it more time, or \
                 check its storage"
            ),
            Self::CallerLeft => "the caller hung up, or this process ends".into(),
        }
    }
}

/// Waits until the work ends, the deadline passes, or the caller's side is closed. The end of the
/// process closes it, too.
fn wait(ended: &StopSignal, caller: BorrowedFd<'_>, until: Instant) -> std::io::Result<WaitEnd> {
    let mut watched = Some(caller);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match ended.wait(watched, Some(left))? {
            Woken::Stopped => return Ok(WaitEnd::Ended),
            Woken::TimedOut => return Ok(WaitEnd::Late),
            Woken::Readable => {
                let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                match recv(caller, &mut [0; 1], flags) {
                    Ok((_, 0)) | Err(_) => return Ok(WaitEnd::CallerLeft),
                    // The next call waits for the reply to this one.
                    Ok(_) => watched = None,
                }
            }
        }
    }
}

fn info(query: &ImageQuery, stop: &Arc<AtomicBool>) -> Result<ImageInfo, ImageCallError> {
    match query.format {
        ImageFormat::Raw => raw::info(&query.path),
        ImageFormat::Qcow2 => qcow2::info(&query.path, stop),
    }
}

fn check(call: &ImageCheck, stop: &Arc<AtomicBool>) -> Result<ImageCheckReport, ImageCallError> {
    match call.format {
        ImageFormat::Raw => {
            let problem = "a raw image has no metadata, so there is nothing to check";
            Err(ImageCallError::Refused(problem.into()))
        }
        ImageFormat::Qcow2 => qcow2::check(&call.path, call.repair_leaks, stop),
    }
}

fn map(call: &ImageMap, stop: &Arc<AtomicBool>) -> Result<ImageMapReply, ImageCallError> {
    match call.format {
        ImageFormat::Raw => raw::map(call),
        ImageFormat::Qcow2 => qcow2::map(call, stop),
    }
}

fn create(call: &ImageCreate, stop: &Arc<AtomicBool>) -> Result<ImageInfo, ImageCallError> {
    create::create(call)?;
    new_info(&call.path, call.format, stop)
}

fn snapshot(call: &ImageSnapshotCall, stop: &Arc<AtomicBool>) -> Result<ImageInfo, ImageCallError> {
    create::snapshot(call, stop)?;
    new_info(&call.path, ImageFormat::Qcow2, stop)
}

/// Returns the properties of an image that was created.
fn new_info(
    path: &Path,
    format: ImageFormat,
    stop: &Arc<AtomicBool>,
) -> Result<ImageInfo, ImageCallError> {
    info(&ImageQuery { path: path.into(), format, deadline_s: CREATE_DEADLINE_S }, stop)
}
