//! [`DatapathProvider`] with a `ringway-io` for each SR.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::calibration::StorageProfile;
use model::id::SrId;
use tokio::sync::{mpsc, oneshot};

use super::first_profile::{CalibrationExtent, FirstProfiles};
use super::full_follower::FullDisks;
use super::served_devices::DatapathOwner;
use super::sr_datapath::SrDatapath;
use super::supervisor::{IoLaunch, Supervisor};
use super::{Datapath, DatapathError};
use crate::boxed_future::BoxFuture;
use crate::machines::{self, DatapathProvider};

/// Most changes that wait for the receiver. Beyond that, followers wait.
const FULL_DISKS_MAX: usize = 64;

/// Datapaths of all SRs.
#[derive(Debug)]
pub struct IoDatapaths {
    run: PathBuf,
    launch: Arc<IoLaunch>,
    by_sr: Mutex<BTreeMap<SrId, SrDatapath>>,
    full_disks: (mpsc::Sender<FullDisks>, Mutex<Option<mpsc::Receiver<FullDisks>>>),
    first_profiles: FirstProfiles,
}

impl IoDatapaths {
    /// Creates the provider. Sockets are in subdirectories of `run`. Running processes are
    /// discovered on the first query.
    pub fn new(run: &Path, launch: IoLaunch) -> Self {
        let (sender, receiver) = mpsc::channel(FULL_DISKS_MAX);
        Self {
            run: run.into(),
            launch: Arc::new(launch),
            by_sr: Mutex::default(),
            full_disks: (sender, Mutex::new(Some(receiver))),
            first_profiles: FirstProfiles::default(),
        }
    }

    /// Sets the extent of the measurements of storage without a profile.
    #[must_use]
    pub fn calibrating(mut self, extent: CalibrationExtent) -> Self {
        self.first_profiles.extent = extent;
        self
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<SrId, SrDatapath>> {
        // Each change of the map is complete before it can panic.
        self.by_sr.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served(&self, sr: SrId) -> Result<SrDatapath, DatapathError> {
        let mut by_sr = self.all();
        if let Some(sr_datapath) = by_sr.get(&sr) {
            return Ok(sr_datapath.clone());
        }
        let folder = machines::sockets(&self.run, sr);
        let supervisor =
            Supervisor::new(DatapathOwner::Sr(sr), folder.clone(), Arc::clone(&self.launch));
        let supervisor = supervisor.map_err(|source| DatapathError::Folder { folder, source })?;
        let _ = supervisor.full_disks.set(self.full_disks.0.clone());
        let sr_datapath = SrDatapath::new(supervisor);
        by_sr.insert(sr, sr_datapath.clone());
        Ok(sr_datapath)
    }
}

impl DatapathProvider for IoDatapaths {
    fn of(&self, sr: SrId) -> BoxFuture<'_, Result<Arc<dyn Datapath>, DatapathError>> {
        Box::pin(async move { Ok(Arc::new(self.served(sr)?) as Arc<dyn Datapath>) })
    }

    fn end(&self, sr: SrId) -> BoxFuture<'_, Result<(), DatapathError>> {
        Box::pin(async move {
            self.first_profiles.end(sr).await;
            self.served(sr)?.end().await?;
            self.all().remove(&sr);
            // With many unread changes, the list of the SR is corrected when it serves again.
            let _ = self.full_disks.0.try_send(FullDisks { sr, disks: BTreeSet::new() });
            Ok(())
        })
    }

    fn calibrate(&self, sr: SrId, folder: &Path) -> oneshot::Receiver<StorageProfile> {
        let (found, profile) = oneshot::channel();
        match self.served(sr) {
            Ok(sr_datapath) => {
                self.first_profiles.begin(sr, folder, sr_datapath.supervisor(), found);
            }
            Err(error) => tracing::warn!(%sr, "the storage is not measured: {error}"),
        }
        profile
    }

    fn full_disks(&self) -> Option<mpsc::Receiver<FullDisks>> {
        self.full_disks.1.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
