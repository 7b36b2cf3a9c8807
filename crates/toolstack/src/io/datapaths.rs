//! [`Datapaths`] by a `ringway-io` for each SR.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::id::SrId;

use super::items::Owner;
use super::keep::{IoLaunch, Keep};
use super::served::Served;
use super::{Datapath, IoError};
use crate::fut::Fut;
use crate::machines::{self, Datapaths};

/// The datapaths of all SRs.
#[derive(Debug)]
pub struct IoDatapaths {
    run: PathBuf,
    launch: Arc<IoLaunch>,
    by_sr: Mutex<BTreeMap<SrId, Served>>,
}

impl IoDatapaths {
    /// Those whose sockets are in folders of `run`. What runs there already is found when it is
    /// asked for.
    pub fn new(run: &Path, launch: IoLaunch) -> Self {
        Self { run: run.into(), launch: Arc::new(launch), by_sr: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<SrId, Served>> {
        // Entries come and go whole.
        self.by_sr.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served(&self, sr: SrId) -> Result<Served, IoError> {
        let mut by_sr = self.all();
        if let Some(served) = by_sr.get(&sr) {
            return Ok(served.clone());
        }
        let folder = machines::sockets(&self.run, sr);
        let keep = Keep::new(Owner::Sr(sr), folder.clone(), Arc::clone(&self.launch));
        let keep = keep.map_err(|source| IoError::Folder { folder, source })?;
        let served = Served::new(keep);
        by_sr.insert(sr, served.clone());
        Ok(served)
    }
}

impl Datapaths for IoDatapaths {
    fn of(&self, sr: SrId) -> Fut<'_, Result<Arc<dyn Datapath>, IoError>> {
        Box::pin(async move { Ok(Arc::new(self.served(sr)?) as Arc<dyn Datapath>) })
    }

    fn end(&self, sr: SrId) -> Fut<'_, Result<(), IoError>> {
        Box::pin(async move {
            self.served(sr)?.end().await?;
            self.all().remove(&sr);
            Ok(())
        })
    }
}
