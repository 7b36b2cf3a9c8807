//! Directories of SRs, and the workers that access them.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::id::SrId;

use super::worker::{Host, SrRequest, SrResponse, Worker};
use super::{Config, SrError};

/// Configuration key of the directory.
pub const LOCATION: &str = "location";
/// Most places that are not attached but have a worker. Beyond that, calls with new places are
/// refused: they may all be on dead storage.
const MAX_OTHERS: usize = 32;

/// Places of the SRs of a driver.
#[derive(Debug)]
pub(super) struct Places {
    host: Host,
    attached: Mutex<BTreeMap<SrId, Attached>>,
    /// Workers of places that are not attached. Each place has its own, so that dead storage blocks
    /// no other.
    others: Mutex<BTreeMap<PathBuf, Worker>>,
}

/// Place of an attached SR.
#[derive(Clone, Debug)]
pub(super) struct Attached {
    pub(super) place: PathBuf,
    pub(super) worker: Worker,
}

impl Places {
    pub(super) fn new(host: Host) -> Self {
        Self { host, attached: Mutex::default(), others: Mutex::default() }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Worker>> {
        // Each change of the map is complete before it can panic.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attached(&self) -> MutexGuard<'_, BTreeMap<SrId, Attached>> {
        // Each change of the map is complete before it can panic.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the worker of a place that is not attached.
    fn other(&self, place: &Path) -> Result<Worker, SrError> {
        let mut others = self.others();
        if let Some(worker) = others.get(place) {
            return Ok(worker.clone());
        }
        // Places whose calls have ended need no worker any more.
        others.retain(|_, worker| worker.is_busy());
        if others.len() >= MAX_OTHERS {
            let why = format!("the storage at {MAX_OTHERS} unattached places does not answer");
            return Err(SrError::Worker(why));
        }
        let worker = Worker::new(&self.host);
        others.insert(place.into(), worker.clone());
        Ok(worker)
    }

    /// Sends a request about a place that is not attached. Its worker stays for the attach.
    pub(super) async fn call_at(
        &self,
        sr: SrId,
        place: &Path,
        sr_request: SrRequest,
    ) -> Result<SrResponse, SrError> {
        self.other(place)?.call(sr, place, sr_request).await
    }

    /// Ends the worker of a place that is not attached.
    pub(super) fn end(&self, place: &Path) {
        self.others().remove(place);
    }

    /// Returns the place of an attached SR.
    ///
    /// # Errors
    /// [`SrError::NotAttached`].
    pub(super) fn of(&self, sr: SrId) -> Result<Attached, SrError> {
        self.attached().get(&sr).cloned().ok_or(SrError::NotAttached)
    }

    /// Attaches an SR with this request.
    ///
    /// # Errors
    /// The SR is attached from another place, or the request fails.
    pub(super) async fn attach(
        &self,
        sr: SrId,
        place: PathBuf,
        sr_request: SrRequest,
    ) -> Result<SrResponse, SrError> {
        let before = self.of(sr).ok();
        if let Some(before) = before.as_ref().filter(|before| before.place != place) {
            let why = format!("it is attached from {}: detach it first", before.place.display());
            return Err(location(why));
        }
        let worker = match before {
            Some(before) => before.worker,
            None => self.other(&place)?,
        };
        let response = worker.call(sr, &place, sr_request).await?;
        self.others().remove(&place);
        self.attached().entry(sr).or_insert_with(|| Attached { place, worker });
        Ok(response)
    }

    /// Detaches an SR. Its worker exits by itself when its connection closes.
    pub(super) fn detach(&self, sr: SrId) {
        self.attached().remove(&sr);
    }

    /// Sends a request about an attached SR.
    pub(super) async fn call(
        &self,
        sr: SrId,
        sr_request: SrRequest,
    ) -> Result<SrResponse, SrError> {
        let Attached { place, worker } = self.of(sr)?;
        worker.call(sr, &place, sr_request).await
    }
}

/// Parses a directory.
///
/// # Errors
/// It is no absolute path without `..`.
pub(super) fn directory(text: &str) -> Result<PathBuf, SrError> {
    let place = Path::new(text);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if place.is_absolute() && place.components().all(plain) && !text.contains('\0') {
        return Ok(place.into());
    }
    Err(location(format!("{text:?} is not an absolute path without `..`")))
}

/// Checks that a configuration has these keys only.
///
/// # Errors
/// Names the first other key, and all that are known.
pub(super) fn check_keys(config: &Config, known: &[&str]) -> Result<(), SrError> {
    match config.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let known = known.join(", ");
            let why = format!("this type of storage has no such key; it has: {known}");
            Err(SrError::Config { key: key.clone(), why })
        }
    }
}

pub(super) fn location(why: String) -> SrError {
    SrError::Config { key: LOCATION.into(), why }
}
