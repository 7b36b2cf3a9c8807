//! Calls on a storage.

use std::time::Duration;

use model::calibration::{Calibrate, CalibrateProgressReply, Calibration};
use serde_json::json;

use super::{DatapathError, RpcConnection};

/// Longest wait for a measurement beyond twice the time of its loads: writing of the scratch file.
const SCRATCH: Duration = Duration::from_secs(310);
/// Longest wait for the progress.
const PROGRESS: Duration = Duration::from_secs(30);

impl RpcConnection {
    /// Calls `storage.calibrate`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn storage_calibrate(
        &mut self,
        call: &Calibrate,
    ) -> Result<Calibration, DatapathError> {
        let loads = Duration::from_secs(call.load_seconds().into());
        self.typed("storage.calibrate", json!(call), loads * 2 + SCRATCH).await
    }

    /// Calls `storage.progress`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn storage_progress(&mut self) -> Result<CalibrateProgressReply, DatapathError> {
        self.typed("storage.progress", json!({}), PROGRESS).await
    }
}
