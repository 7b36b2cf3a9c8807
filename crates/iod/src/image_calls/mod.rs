//! Calls on image files without a disk: `image.info`, `image.check`, `image.map`, `image.create`,
//! `image.convert`, `image.snapshot`, `image.resize`, `image.export`, `image.import`,
//! `image.copy`, `image.commit`, `image.progress`.
//!
//! Each call runs on a thread of its own, because its storage may hang.

mod commit;
mod convert;
mod create;
mod export;
mod import;
#[cfg(test)]
mod layer_tests;
mod new_file;
mod open_file;
mod pace;
mod qcow2;
mod raw;
mod resize;
mod source;
#[cfg(test)]
mod stream_tests;
mod target;
#[cfg(test)]
mod tests;
mod units;
mod vhd;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use disk::{DiskError, ImageLock};
use image::ImageError;
use model::image::{
    ImageCheck, ImageCheckReport, ImageCreate, ImageFormat, ImageInfo, ImageMap, ImageMapReply,
    ImageProgress, ImageProgressReply, ImageQuery, ImageSnapshotCall,
};
use model::rpc::{Call, RpcError};
use model::spec::Backend;
use overlay::OverlayDisk;
use serde_json::Value;

use crate::call_threads::CallThreads;
use crate::disk_registry::DiskRegistry;
use crate::error::failed;
use convert::Progress;
pub(crate) use pace::DiskLoad;

/// Time that `image.create` may take, in seconds.
const CREATE_DEADLINE_S: u32 = 30;

/// Running conversions, by the path of the new image.
type Converting = Arc<Mutex<BTreeMap<PathBuf, Arc<Progress>>>>;

/// Most calls at a time. A call uses up to 64 MiB of memory, and a thread.
const MAX_CALLS: usize = 4;

/// Most exports and imports at a time. Each uses up to 64 MiB of memory, and a thread.
const MAX_STREAMS: usize = 16;

/// Calls on images that run in this process.
#[derive(Debug)]
pub(crate) struct ImageCalls {
    threads: CallThreads,
    /// Exports and imports, which may take as long as their peers.
    streams: CallThreads,
    converting: Converting,
}

impl Default for ImageCalls {
    fn default() -> Self {
        let threads = CallThreads::new("the call on an image", MAX_CALLS);
        let streams = CallThreads::new("the export or import of an image", MAX_STREAMS);
        Self { threads, streams, converting: Converting::default() }
    }
}

/// Conversion in the list of running ones, as long as it runs.
struct Shown {
    converting: Converting,
    path: PathBuf,
    progress: Arc<Progress>,
}

impl Shown {
    fn new(converting: Converting, path: &Path) -> Self {
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
    /// The disk of the call cannot be used now.
    #[error(transparent)]
    Served(#[from] RpcError),
}

impl ImageCallError {
    /// Returns the conversion of an error of the image at `path`.
    fn image(path: &Path) -> impl Fn(ImageError) -> Self {
        move |source| Self::Image { path: path.display().to_string(), source }
    }
}

impl ImageCalls {
    /// Runs a call on an image. `caller` is its connection. Copies in the background make way for the
    /// disks of `disk_registry`.
    ///
    /// # Errors
    /// The call failed or did not end in time, or too many calls are running.
    pub(crate) fn run(
        &self,
        call: Call,
        disk_registry: &Arc<DiskRegistry>,
        caller: BorrowedFd<'_>,
    ) -> Result<Value, RpcError> {
        match call {
            Call::ImageInfo(query) => {
                self.threads.run(query.deadline_s, caller, move |stop| info(&query, stop))
            }
            Call::ImageCheck(call) => {
                self.threads.run(call.deadline_s, caller, move |stop| check(&call, stop))
            }
            Call::ImageMap(call) => {
                self.threads.run(call.deadline_s, caller, move |stop| map(&call, stop))
            }
            Call::ImageCreate(call) => {
                self.threads.run(CREATE_DEADLINE_S, caller, move |stop| create(&call, stop))
            }
            Call::ImageConvert(call) => {
                let deadline_s = call.deadline_s;
                let converting = Arc::clone(&self.converting);
                let disk_registry = Arc::clone(disk_registry);
                self.threads.run(deadline_s, caller, move |stop| {
                    let shown = Shown::new(converting, &call.path);
                    let load = || disk_registry.load();
                    convert::convert(&call, stop, &shown.progress, &load)?;
                    new_info(&call.path, call.format, stop)
                })
            }
            Call::ImageCopy(call) => {
                let deadline_s = call.deadline_s;
                let converting = Arc::clone(&self.converting);
                self.threads.run(deadline_s, caller, move |stop| {
                    let shown = Shown::new(converting, &call.path);
                    import::copy(&call, stop, &shown.progress)
                })
            }
            Call::ImageCommit(call) => {
                let converting = Arc::clone(&self.converting);
                let disk_registry = Arc::clone(disk_registry);
                self.threads.run(call.deadline_s, caller, move |stop| {
                    let shown = Shown::new(converting, &call.path);
                    let commit = |overlay: &OverlayDisk, base: &Backend| {
                        commit::commit(&call, (overlay, base), stop, &shown.progress)
                    };
                    disk_registry.commit(&call.id, commit)?;
                    new_info(&call.path, ImageFormat::Qcow2, stop)
                })
            }
            Call::ImageSnapshot(call) => {
                self.threads.run(CREATE_DEADLINE_S, caller, move |stop| snapshot(&call, stop))
            }
            Call::ImageResize(call) => self.threads.run(call.deadline_s, caller, move |stop| {
                let (path, format) = resize::resize(&call, stop)?;
                new_info(&path, format, stop)
            }),
            Call::ImageExport(call) => {
                self.streams.run(call.deadline_s, caller, move |stop| export::export(&call, stop))
            }
            Call::ImageImport(call) => {
                self.streams.run(call.deadline_s, caller, move |stop| import::import(&call, stop))
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
}

fn info(query: &ImageQuery, stop: &Arc<AtomicBool>) -> Result<ImageInfo, ImageCallError> {
    match query.format {
        ImageFormat::Raw => raw::info(&query.path),
        ImageFormat::Qcow2 => qcow2::info(&query.path, stop),
        ImageFormat::Vhd => vhd::info(&query.path, stop),
    }
}

fn check(call: &ImageCheck, stop: &Arc<AtomicBool>) -> Result<ImageCheckReport, ImageCallError> {
    match call.format {
        ImageFormat::Raw => {
            let problem = "a raw image has no metadata, so there is nothing to check";
            Err(ImageCallError::Refused(problem.into()))
        }
        ImageFormat::Qcow2 => qcow2::check(&call.path, call.repair_leaks, stop),
        ImageFormat::Vhd => vhd::check(&call.path, call.repair_leaks, stop),
    }
}

fn map(call: &ImageMap, stop: &Arc<AtomicBool>) -> Result<ImageMapReply, ImageCallError> {
    match call.format {
        ImageFormat::Raw => raw::map(call),
        ImageFormat::Qcow2 => qcow2::map(call, stop),
        ImageFormat::Vhd => vhd::map(call, stop),
    }
}

fn create(call: &ImageCreate, stop: &Arc<AtomicBool>) -> Result<ImageInfo, ImageCallError> {
    create::create(call, stop)?;
    new_info(&call.path, call.format, stop)
}

fn snapshot(call: &ImageSnapshotCall, stop: &Arc<AtomicBool>) -> Result<ImageInfo, ImageCallError> {
    create::snapshot(call, stop)?;
    new_info(&call.path, call.format, stop)
}

/// Returns the properties of an image that was created.
fn new_info(
    path: &Path,
    format: ImageFormat,
    stop: &Arc<AtomicBool>,
) -> Result<ImageInfo, ImageCallError> {
    info(&ImageQuery { path: path.into(), format, deadline_s: CREATE_DEADLINE_S }, stop)
}

/// Returns a note if another process writes the image that `file` has open.
fn written_note(path: &Path, file: &Arc<OwnedFd>) -> Result<Option<String>, DiskError> {
    let note = "another process writes the image, so this may be outdated";
    Ok(ImageLock::is_written(path, file)?.then(|| note.into()))
}
