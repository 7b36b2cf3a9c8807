//! Which SR has which driver, and what is asked of it.
//!
//! # Model
//! [`Storage`] knows the drivers by the type of their SRs. A `SrHandle` is one SR with its driver;
//! every call through it has a deadline, and fails as clients see it. What [machines] do with
//! disks goes to the drivers by plans, not from here.
//!
//! [machines]: toolstack::machines

mod scan;

use std::sync::Arc;
use std::time::Duration;

use model::id::{SrId, Uuid, VdiId};
use toolstack::boxed_future::BoxFuture;
use toolstack::machines::Drivers;
use toolstack::sr::{Config, Space, SrDriver, SrError, Volume};
use xenapi::table::{pbd, sr};
use xenapi::{ApiError, codes};

use crate::app::AppState;
use crate::db::{Ref, View};
use crate::errors::storage_failed;
use crate::records::fields::{pairs, references, text, uuid};

pub(crate) use scan::{found, grown, measured, scan};

/// Most time that an SR has for what is asked of it. A driver's own deadlines are shorter where it
/// has some.
pub const STORAGE_DEADLINE: Duration = Duration::from_secs(120);

/// The drivers, by the type of their SRs.
#[derive(Clone, Debug)]
pub struct Storage {
    drivers: Vec<Arc<dyn SrDriver>>,
    deadline: Duration,
}

/// An SR with its driver.
#[derive(Clone, Debug)]
pub(crate) struct SrHandle {
    pub(crate) sr: Ref,
    pub(crate) id: SrId,
    driver: Arc<dyn SrDriver>,
    deadline: Duration,
}

impl Storage {
    /// With these drivers, each of which has `deadline` for what is asked of it.
    pub fn new(drivers: &Drivers, deadline: Duration) -> Self {
        Self { drivers: drivers.srs.clone(), deadline }
    }

    /// Types of SRs that can be had.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.drivers.iter().map(|driver| driver.kind())
    }

    /// An SR that is recorded.
    ///
    /// # Errors
    /// There is no such SR, or no driver for it.
    pub(crate) fn of(&self, view: &View<'_>, place: &Ref) -> Result<SrHandle, ApiError> {
        let id = SrId(uuid(view, place, sr::Field::uuid)?);
        self.place(place.clone(), id, text(view, place, sr::Field::r#type)?)
    }

    /// An SR of this type that may not be recorded yet.
    ///
    /// # Errors
    /// There is no driver for it.
    pub(crate) fn place(&self, place: Ref, id: SrId, kind: &str) -> Result<SrHandle, ApiError> {
        let driver = self.drivers.iter().find(|driver| driver.kind() == kind);
        let driver = driver.ok_or_else(|| codes::sr_unknown_driver(kind))?.clone();
        Ok(SrHandle { sr: place, id, driver, deadline: self.deadline })
    }

    /// SRs of this type where the configuration says, recorded or not.
    ///
    /// # Errors
    /// There is no driver for it, or the place cannot be looked at.
    pub(crate) async fn probe(&self, kind: &str, config: &Config) -> Result<Vec<SrId>, ApiError> {
        let nobody = SrId(Uuid::default());
        let sr_handle = self.place(Ref::of(nobody.0), nobody, kind)?;
        sr_handle.within("a look for storage", sr_handle.driver.probe(config)).await
    }
}

impl SrHandle {
    /// Makes an empty one.
    pub(crate) async fn create(&self, config: &Config) -> Result<(), ApiError> {
        self.within("the making of it", self.driver.create(self.id, config)).await
    }

    /// Removes an empty one that is not attached.
    pub(crate) async fn destroy(&self, config: &Config) -> Result<(), ApiError> {
        self.within("the end of it", self.driver.destroy(self.id, config)).await
    }

    /// Makes it usable on this host.
    pub(crate) async fn attach(&self, config: &Config) -> Result<Space, ApiError> {
        self.within("attach", self.driver.attach(self.id, config)).await
    }

    /// Lets go of what a daemon before this one has left attached. What cannot be let go of is in
    /// nobody's way: who wants the volume finds it attached.
    pub(crate) async fn tidy(&self, app: &AppState) {
        let tidied = app.machines.detach_leftovers(self.id, self.driver.kind());
        if let Err(error) = self.deadline("the end of what is left", tidied).await {
            tracing::warn!(sr = %self.id, "something may be left attached: {error}");
        }
    }

    /// The opposite of attach.
    pub(crate) async fn detach(&self) -> Result<(), ApiError> {
        self.within("detach", self.driver.detach(self.id)).await
    }

    /// What is in it.
    pub(crate) async fn scan(&self) -> Result<(Space, Vec<Volume>), SrError> {
        self.deadline("scan", self.driver.scan(self.id)).await
    }

    /// Makes a volume.
    pub(crate) async fn create_volume(&self, vdi: VdiId, bytes: u64) -> Result<Volume, ApiError> {
        self.within("a new disk", self.driver.create_volume(self.id, vdi, bytes)).await
    }

    /// Removes a volume. One that is not there is removed already.
    pub(crate) async fn destroy_volume(&self, vdi: VdiId) -> Result<(), SrError> {
        let removed = self.driver.destroy_volume(self.id, vdi);
        match self.deadline("the end of a disk", removed).await {
            Err(SrError::NoVolume(_)) => Ok(()),
            removed => removed,
        }
    }

    /// Makes a volume larger.
    pub(crate) async fn resize_volume(
        &self,
        (vdi, named): (VdiId, &Ref),
        bytes: u64,
    ) -> Result<Volume, ApiError> {
        let resized = self.driver.resize_volume(self.id, vdi, bytes);
        let resized = self.deadline("another size of a disk", resized).await;
        resized.map_err(|error| storage_failed(&error, &self.sr, Some(named)))
    }

    async fn within<T>(
        &self,
        what: &str,
        call: BoxFuture<'_, Result<T, SrError>>,
    ) -> Result<T, ApiError> {
        self.deadline(what, call).await.map_err(|error| storage_failed(&error, &self.sr, None))
    }

    async fn deadline<T>(
        &self,
        what: &str,
        call: BoxFuture<'_, Result<T, SrError>>,
    ) -> Result<T, SrError> {
        match tokio::time::timeout(self.deadline, call).await {
            Ok(ended) => ended,
            Err(_) => Err(SrError::Late { what: what.to_owned(), after: self.deadline }),
        }
    }
}

/// The host's connection to an SR, and what it says of where that is.
///
/// # Errors
/// `SR_HAS_NO_PBDS`: there is none.
pub(crate) fn connection(view: &View<'_>, place: &Ref) -> Result<(Ref, Config), ApiError> {
    let first = references(view, place, sr::Field::PBDs)?.into_iter().next();
    let first = first.ok_or_else(|| codes::sr_has_no_pbds(place.as_str()))?;
    let config = pairs(view, &first, pbd::Field::device_config)?;
    Ok((first, config))
}
