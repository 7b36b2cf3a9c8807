//! Calls on a storage: `storage.calibrate`, `storage.profile` and `storage.progress`.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use calibrate::{CalibrateError, Progress};
use model::calibration::{
    Calibrate, CalibrateProgress, CalibrateProgressReply, Calibration, ProfileQuery, ProfileReply,
};
use model::rpc::RpcError;
use serde_json::Value;

use crate::call_threads::CallThreads;
use crate::disk_registry::DiskRegistry;

/// Time for writing the scratch file, in seconds.
const SCRATCH_S: u32 = 300;
/// Time for the use of a profile, in seconds.
const PROFILE_S: u32 = 30;
/// Most calls at a time that use a profile.
const PROFILE_CALLS: usize = 4;

/// Running measurement: its path, and how far it is.
type Running = Arc<Mutex<Option<(PathBuf, Arc<Progress>)>>>;

/// Calls on a storage that run in this process.
#[derive(Debug)]
pub(crate) struct StorageCalls {
    calibrate_threads: CallThreads,
    profile_threads: CallThreads,
    running: Running,
}

impl Default for StorageCalls {
    fn default() -> Self {
        // Two at a time would measure each other.
        let calibrate_threads = CallThreads::new("the measurement of a storage", 1);
        let profile_threads = CallThreads::new("the use of a profile", PROFILE_CALLS);
        Self { calibrate_threads, profile_threads, running: Running::default() }
    }
}

impl StorageCalls {
    /// Measures a storage. Stores the profile if the call says so, and makes disks use it. `caller` is
    /// the caller's connection.
    ///
    /// # Errors
    /// The storage cannot be measured, or another measurement is running.
    pub(crate) fn calibrate(
        &self,
        call: Calibrate,
        disk_registry: &Arc<DiskRegistry>,
        caller: BorrowedFd<'_>,
    ) -> Result<Value, RpcError> {
        let deadline_s = u32::from(call.load_seconds()) * 2 + SCRATCH_S;
        let running = Arc::clone(&self.running);
        let disk_registry = Arc::clone(disk_registry);
        self.calibrate_threads.run(deadline_s, caller, move |stop| {
            let progress = Arc::<Progress>::default();
            *lock(&running) = Some((call.path.clone(), Arc::clone(&progress)));
            let calibration = calibrate::run(&call, stop, &progress);
            *lock(&running) = None;
            let mut calibration = calibration?;
            if call.store {
                calibration.stored = Some(store(&calibration, &disk_registry)?);
            }
            Ok::<_, CalibrateError>(calibration)
        })
    }

    /// Makes the storage of a folder follow the profile in it, and the disks on that storage.
    ///
    /// # Errors
    /// The folder cannot be accessed, or storage does not answer.
    pub(crate) fn profile(
        &self,
        query: ProfileQuery,
        disk_registry: &Arc<DiskRegistry>,
        caller: BorrowedFd<'_>,
    ) -> Result<Value, RpcError> {
        let disk_registry = Arc::clone(disk_registry);
        self.profile_threads.run(PROFILE_S, caller, move |_| disk_registry.use_profile(&query.path))
    }

    /// Returns the progress of the running measurement.
    pub(crate) fn progress(&self) -> CalibrateProgressReply {
        let one = |(path, progress): &(PathBuf, Arc<Progress>)| CalibrateProgress {
            path: path.clone(),
            done_cells: progress.done.load(Ordering::Relaxed),
            total_cells: progress.total.load(Ordering::Relaxed),
            left_s: u32::try_from(progress.left_ms.load(Ordering::Relaxed).div_ceil(1000))
                .unwrap_or(u32::MAX),
        };
        CalibrateProgressReply { calibrating: lock(&self.running).iter().map(one).collect() }
    }
}

/// Stores the profile in the folder that was measured, and makes disks use it.
fn store(
    calibration: &Calibration,
    disk_registry: &DiskRegistry,
) -> Result<ProfileReply, CalibrateError> {
    let Calibration { path, profile, .. } = calibration;
    let stored = calibrate::store_profile(path, profile);
    stored.map_err(|source| CalibrateError::Store { path: path.clone(), source })?;
    let used = disk_registry.use_profile(path);
    // It is stored: the next attach finds it.
    Ok(used
        .unwrap_or_else(|error| ProfileReply { notes: vec![error.message], ..Default::default() }))
}

fn lock(running: &Running) -> MutexGuard<'_, Option<(PathBuf, Arc<Progress>)>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
