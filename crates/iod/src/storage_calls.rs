//! Calls on a storage: `storage.calibrate` and `storage.progress`.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use calibrate::Progress;
use model::calibration::{Calibrate, CalibrateProgress, CalibrateProgressReply};
use model::rpc::RpcError;
use serde_json::Value;

use crate::call_threads::CallThreads;

/// Time for writing the scratch file, in seconds.
const SCRATCH_S: u32 = 300;

/// Running measurement: its path, and how far it is.
type Running = Arc<Mutex<Option<(PathBuf, Arc<Progress>)>>>;

/// Calls on a storage that run in this process.
#[derive(Debug)]
pub(crate) struct StorageCalls {
    threads: CallThreads,
    running: Running,
}

impl Default for StorageCalls {
    fn default() -> Self {
        // Two at a time would measure each other.
        let threads = CallThreads::new("the measurement of a storage", 1);
        Self { threads, running: Running::default() }
    }
}

impl StorageCalls {
    /// Measures a storage. `caller` is the caller's connection.
    ///
    /// # Errors
    /// The storage cannot be measured, or another measurement is running.
    pub(crate) fn calibrate(
        &self,
        call: Calibrate,
        caller: BorrowedFd<'_>,
    ) -> Result<Value, RpcError> {
        let deadline_s = u32::from(call.load_seconds()) * 2 + SCRATCH_S;
        let running = Arc::clone(&self.running);
        self.threads.run(deadline_s, caller, move |stop| {
            let progress = Arc::<Progress>::default();
            *lock(&running) = Some((call.path.clone(), Arc::clone(&progress)));
            let calibration = calibrate::run(&call, stop, &progress);
            *lock(&running) = None;
            calibration
        })
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

fn lock(running: &Running) -> MutexGuard<'_, Option<(PathBuf, Arc<Progress>)>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
