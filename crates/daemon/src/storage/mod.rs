//! Drivers of SRs and calls to them.
//!
//! # Model
//! [`Storage`] finds the driver by SR type. A `SrHandle` is an SR with its driver. Each call has a
//! deadline and returns API errors. Attaches and detaches of VM disks go through plans of
//! [machines] instead.
//!
//! [machines]: toolstack::machines

mod coalesce;
mod foreign;
pub(crate) mod layers;
pub(crate) mod names;
mod profile;
mod scan;
pub(crate) mod space;

use std::sync::Arc;
use std::time::Duration;

use model::id::{SrId, Uuid, VbdId, VdiId};
use toolstack::boxed_future::BoxFuture;
use toolstack::machines::Drivers;
use toolstack::sr::{Config, Names, Space, SrDriver, SrError, SrScan, Volume};
use xenapi::table::{pbd, sr};
use xenapi::{ApiError, codes};

use crate::app::AppState;
use crate::db::{Ref, View};
use crate::errors::storage_failed;
use crate::records::fields::{pairs, references, text, uuid};

pub use coalesce::Coalescer;
pub(crate) use coalesce::KEY as COALESCE;
pub(crate) use scan::{found, grown, measured, scan};

/// Longest time for a call to an SR. Some deadlines of drivers are shorter.
pub const STORAGE_DEADLINE: Duration = Duration::from_secs(120);

/// Drivers by SR type.
#[derive(Clone, Debug)]
pub struct Storage {
    drivers: Vec<Arc<dyn SrDriver>>,
    deadline: Duration,
}

/// SR with its driver.
#[derive(Clone, Debug)]
pub(crate) struct SrHandle {
    pub(crate) sr: Ref,
    pub(crate) id: SrId,
    driver: Arc<dyn SrDriver>,
    deadline: Duration,
}

impl Storage {
    /// Creates the table of these drivers. `deadline` limits each call.
    pub fn new(drivers: &Drivers, deadline: Duration) -> Self {
        Self { drivers: drivers.srs.clone(), deadline }
    }

    /// Checks the location of a new SR or PBD of this type, without access to it.
    ///
    /// # Errors
    /// `SR_UNKNOWN_DRIVER` if the type has no driver, or the driver's error.
    pub(crate) fn check_config(&self, kind: &str, config: &Config) -> Result<(), ApiError> {
        let nobody = SrId(Uuid::default());
        let sr_handle = self.place(Ref::of(nobody.0), nobody, kind)?;
        let checked = sr_handle.driver.check(config);
        checked.map_err(|error| storage_failed(&error, &sr_handle.sr, None))
    }

    /// Returns the available SR types.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.drivers.iter().map(|driver| driver.kind())
    }

    /// Returns the handle of a recorded SR.
    ///
    /// # Errors
    /// `HANDLE_INVALID` if the SR does not exist. `SR_UNKNOWN_DRIVER` if its type has no driver.
    pub(crate) fn of(&self, view: &View<'_>, place: &Ref) -> Result<SrHandle, ApiError> {
        let id = SrId(uuid(view, place, sr::Field::uuid)?);
        self.place(place.clone(), id, text(view, place, sr::Field::r#type)?)
    }

    /// Returns the handle of an SR that may not be recorded yet.
    ///
    /// # Errors
    /// `SR_UNKNOWN_DRIVER` if the type has no driver.
    pub(crate) fn place(&self, place: Ref, id: SrId, kind: &str) -> Result<SrHandle, ApiError> {
        let driver = self.drivers.iter().find(|driver| driver.kind() == kind);
        let driver = driver.ok_or_else(|| codes::sr_unknown_driver(kind))?.clone();
        Ok(SrHandle { sr: place, id, driver, deadline: self.deadline })
    }

    /// Searches for SRs of this type at the configured location, recorded or not.
    ///
    /// # Errors
    /// `SR_UNKNOWN_DRIVER` if the type has no driver, or the driver's error.
    pub(crate) async fn probe(&self, kind: &str, config: &Config) -> Result<Vec<SrId>, ApiError> {
        let nobody = SrId(Uuid::default());
        let sr_handle = self.place(Ref::of(nobody.0), nobody, kind)?;
        sr_handle.within("a probe", sr_handle.driver.probe(config)).await
    }
}

impl SrHandle {
    /// Creates an empty SR.
    pub(crate) async fn create(&self, config: &Config) -> Result<(), ApiError> {
        self.within("the creation of the SR", self.driver.create(self.id, config)).await
    }

    /// Destroys an empty SR that is not attached.
    pub(crate) async fn destroy(&self, config: &Config) -> Result<(), ApiError> {
        self.within("the destruction of the SR", self.driver.destroy(self.id, config)).await
    }

    /// Attaches the SR to this host.
    pub(crate) async fn attach(&self, config: &Config) -> Result<Space, ApiError> {
        self.within("attach", self.driver.attach(self.id, config)).await
    }

    /// Detaches volumes that a former daemon left attached. A volume that cannot be detached does
    /// no harm: its next attach finds it attached.
    pub(crate) async fn tidy(&self, app: &AppState) {
        let tidied = app.machines.detach_leftovers(self.id, self.driver.kind());
        if let Err(error) = self.deadline("the removal of leftovers", tidied).await {
            tracing::warn!(sr = %self.id, "volumes may still be attached: {error}");
        }
    }

    /// Detaches the SR.
    pub(crate) async fn detach(&self) -> Result<(), ApiError> {
        self.within("detach", self.driver.detach(self.id)).await
    }

    /// Returns the space and the volumes of the SR.
    pub(crate) async fn scan(&self) -> Result<SrScan, SrError> {
        self.deadline("scan", self.driver.scan(self.id)).await
    }

    /// Returns the space of the SR, if its type tells it without a scan.
    pub(crate) async fn space(&self) -> Result<Option<Space>, SrError> {
        self.deadline("a measurement of its space", self.driver.space(self.id)).await
    }

    /// Returns the slots that have layers in the SR.
    async fn layers(&self) -> Result<Vec<VbdId>, SrError> {
        self.deadline("a look for layers", self.driver.layers(self.id)).await
    }

    /// Removes the layers of a slot that does not exist any more.
    async fn destroy_layers(&self, slot: VbdId) -> Result<(), SrError> {
        let removed = self.driver.destroy_layers(self.id, slot);
        self.deadline("the removal of a layer", removed).await
    }

    /// Creates a volume.
    pub(crate) async fn create_volume(&self, vdi: VdiId, bytes: u64) -> Result<Volume, ApiError> {
        self.within("the creation of a disk", self.driver.create_volume(self.id, vdi, bytes)).await
    }

    /// Destroys a volume. A missing volume counts as destroyed.
    pub(crate) async fn destroy_volume(&self, vdi: VdiId) -> Result<(), SrError> {
        let removed = self.driver.destroy_volume(self.id, vdi);
        match self.deadline("the destruction of a disk", removed).await {
            Err(SrError::NoVolume(_)) => Ok(()),
            removed => removed,
        }
    }

    /// Stores the names of a volume.
    pub(crate) async fn set_names(&self, vdi: VdiId, names: Names) -> Result<(), SrError> {
        let stored = self.driver.set_names(self.id, vdi, names);
        self.deadline("the names of a disk", stored).await
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

/// Returns the PBD of an SR and its device configuration.
///
/// # Errors
/// `SR_HAS_NO_PBDS` if there is none.
pub(crate) fn connection(view: &View<'_>, place: &Ref) -> Result<(Ref, Config), ApiError> {
    let first = references(view, place, sr::Field::PBDs)?.into_iter().next();
    let first = first.ok_or_else(|| codes::sr_has_no_pbds(place.as_str()))?;
    let config = pairs(view, &first, pbd::Field::device_config)?;
    Ok((first, config))
}
