//! Calls on a storage.

use std::path::Path;
use std::time::Duration;

use model::calibration::{
    Calibrate, CalibrateProgressReply, Calibration, ProfileQuery, ProfileReply,
};
use serde_json::json;

use super::rpc_connection::written;
use super::{DatapathError, RpcConnection};

/// Longest wait for a measurement beyond twice the time of its loads: writing of the scratch file.
const SCRATCH: Duration = Duration::from_secs(310);
/// Longest wait for the progress, and for the use of a profile.
const SHORT: Duration = Duration::from_secs(40);

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
        self.typed("storage.calibrate", written("storage.calibrate", call)?, loads * 2 + SCRATCH)
            .await
    }

    /// Calls `storage.profile` for a folder.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn storage_profile(&mut self, folder: &Path) -> Result<ProfileReply, DatapathError> {
        let query = ProfileQuery { path: folder.into() };
        self.typed("storage.profile", written("storage.profile", &query)?, SHORT).await
    }

    /// Calls `storage.progress`.
    ///
    /// # Errors
    /// The errors of [`Self::call`].
    pub async fn storage_progress(&mut self) -> Result<CalibrateProgressReply, DatapathError> {
        self.typed("storage.progress", json!({}), SHORT).await
    }
}
