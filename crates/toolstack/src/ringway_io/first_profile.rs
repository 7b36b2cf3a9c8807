//! First profile of a storage: measured in the background if its folder has none.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use error_causes::error_chain;
use model::calibration::{Calibrate, DEFAULT_SHORT_S, StorageProfile};
use model::id::SrId;
use model::spec::DiskSpec;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::rpc_client::task;
use super::supervisor::Supervisor;
use super::{DatapathError, RpcConnection};

/// Extent of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalibrationExtent {
    /// Time of its loads in seconds, 2 to 600.
    pub seconds: u16,
    /// Bytes of the scratch file. Storage with less than four times as much free space is not
    /// measured.
    pub size_bytes: u64,
}

impl Default for CalibrationExtent {
    /// Returns 10 s with a file of 256 MiB.
    fn default() -> Self {
        Self { seconds: DEFAULT_SHORT_S, size_bytes: 256 << 20 }
    }
}

/// Measurements that are running, one for each SR at most.
#[derive(Debug, Default)]
pub(super) struct FirstProfiles {
    pub(super) extent: CalibrationExtent,
    running: Mutex<BTreeMap<SrId, JoinHandle<()>>>,
}

impl FirstProfiles {
    fn running(&self) -> MutexGuard<'_, BTreeMap<SrId, JoinHandle<()>>> {
        // Each change of the map is complete before it can panic.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures the storage of a folder of this SR unless it has a profile, or a measurement runs.
    /// `found` gets the profile.
    pub(super) fn begin(
        &self,
        sr: SrId,
        folder: &Path,
        supervisor: Arc<Supervisor<DiskSpec>>,
        found: oneshot::Sender<StorageProfile>,
    ) {
        let mut running = self.running();
        running.retain(|_, task| !task.is_finished());
        let (folder, extent) = (folder.to_path_buf(), self.extent);
        running.entry(sr).or_insert_with(|| {
            tokio::spawn(async move {
                match measure((sr, &folder), extent, &supervisor).await {
                    // The caller may not want to know.
                    Ok(profile) => drop(found.send(profile)),
                    Err(error) => tracing::warn!(
                        %sr,
                        "the storage in {} is not measured, so its disks do not share it by weight: \
                         {}. Remove the cause, then run `ringway calibrate {sr} --store`; or set \
                         other-config:calibrate=false of the SR",
                        folder.display(),
                        error_chain(&error),
                    ),
                }
            })
        });
    }

    /// Ends the measurement of this SR. When this returns, the caller's connection is closed, and
    /// `ringway-io` stops.
    pub(super) async fn end(&self, sr: SrId) {
        let task = self.running().remove(&sr);
        if let Some(task) = task {
            task.abort();
            let _aborted = task.await;
        }
    }
}

/// Returns the profile in the folder, which the disks of the process use, or a new one.
async fn measure(
    (sr, folder): (SrId, &Path),
    extent: CalibrationExtent,
    supervisor: &Arc<Supervisor<DiskSpec>>,
) -> Result<StorageProfile, DatapathError> {
    let starting = Arc::clone(supervisor);
    // A start that is interrupted would leave a process that nothing watches.
    task(async move { starting.ready(true).await }).await?;
    // Not one of the pool: it is in use for long.
    let mut connection = RpcConnection::connect(supervisor.control()).await?;
    let present = connection.storage_profile(folder).await?;
    if let Some(profile) = present.profile {
        return Ok(profile);
    }
    for note in present.notes {
        tracing::info!(%sr, "{note}");
    }
    tracing::info!(%sr, "the storage in {} is being measured", folder.display());
    let call = Calibrate {
        short: true,
        store: true,
        size_bytes: Some(extent.size_bytes),
        seconds: Some(extent.seconds),
        ..Calibrate::new(folder)
    };
    let calibration = connection.storage_calibrate(&call).await?;
    tracing::info!(%sr, "the storage in {} has a profile", folder.display());
    Ok(calibration.profile)
}
