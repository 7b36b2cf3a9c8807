//! Storage repositories: where the bytes of disks are, and who makes, finds and removes them.
//!
//! # Words
//! - **SR**: a place for disks, of one type. **Volume**: a disk in it.
//! - **Attached**: the bytes can be reached; no lock is held. **Activated**: they are about to be
//!   read and written.
//!
//! # Invariants
//! A call whose goal is reached does nothing and ends well. Whoever hangs on a dead storage hangs
//! alone: no call holds anything that another SR needs.

pub mod delay;
pub mod dir;
pub mod sim;
pub mod worker;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use model::id::{SrId, VdiId};
use model::spec::Backend;
use model::vdi::automaton::Access;

use crate::boxed_future::BoxFuture;

/// What a PBD says of where its SR is: `device_config`.
pub type Config = BTreeMap<String, String>;

/// Why an SR did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SrError {
    /// It did not answer in time.
    #[error("the storage did not answer {what} within {} s", .after.as_secs())]
    Late {
        /// What was asked.
        what: String,
        /// How long was waited.
        after: Duration,
    },
    /// The configuration cannot be used.
    #[error("{key}: {why}")]
    Config {
        /// Which key of it.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// It is not attached to this host.
    #[error("the storage repository is not attached")]
    NotAttached,
    /// The place is gone.
    #[error("{} is not there any more: mount it again, or plug the PBD anew", path.display())]
    Vanished {
        /// The place.
        path: PathBuf,
    },
    /// The volume is gone.
    #[error("volume {0} is not there")]
    NoVolume(VdiId),
    /// Volumes are in what should be empty.
    #[error("volumes are in it: {volumes}")]
    NotEmpty {
        /// How many.
        volumes: usize,
    },
    /// It does not fit.
    #[error("{needed} bytes are needed, {free} are free")]
    Full {
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// The system refused something.
    #[error("{what}")]
    Os {
        /// What was tried, with the path.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Its worker process died, or did not say what it should.
    #[error("the storage worker failed: {0}")]
    Worker(String),
}

/// Room in an SR, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// In all.
    pub total: u64,
    /// Of it taken, by whomever.
    pub used: u64,
}

/// A disk in an SR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Which: also its name there.
    pub vdi: VdiId,
    /// What a guest sees, in bytes.
    pub virtual_bytes: u64,
    /// What it takes there, in bytes.
    pub physical_bytes: u64,
    /// It cannot be written.
    pub read_only: bool,
}

/// Knows one type of SR.
pub trait SrDriver: fmt::Debug + Send + Sync {
    /// Its type, as `dir`.
    fn kind(&self) -> &'static str;
    /// Makes an empty one.
    fn create<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>>;
    /// Removes an empty one that is not attached, and nothing that is somebody else's. One that is
    /// not there is told as [`SrError::Vanished`]: what is to be mounted there may not be.
    fn destroy<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>>;
    /// Looks which are where the configuration says, recorded or not. Nothing is changed.
    fn probe<'a>(&'a self, config: &'a Config) -> BoxFuture<'a, Result<Vec<SrId>, SrError>>;
    /// Makes it usable on this host: a PBD is plugged.
    fn attach<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<Space, SrError>>;
    /// The opposite.
    fn detach(&self, sr: SrId) -> BoxFuture<'_, Result<(), SrError>>;
    /// What is in it.
    fn scan(&self, sr: SrId) -> BoxFuture<'_, Result<(Space, Vec<Volume>), SrError>>;
    /// Makes a volume of zeroes of this size in bytes.
    fn create_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<Volume, SrError>>;
    /// Removes a volume.
    fn destroy_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>>;
    /// Makes a volume larger, to this size in bytes.
    fn resize_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        bytes: u64,
    ) -> BoxFuture<'_, Result<Volume, SrError>>;
    /// Makes a volume's bytes reachable, and says how.
    fn attach_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        access: Access,
    ) -> BoxFuture<'_, Result<Backend, SrError>>;
    /// Prepares reading and writing.
    fn activate_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>>;
    /// The opposite.
    fn deactivate_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>>;
    /// The opposite of attach.
    fn detach_volume(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>>;
    /// Volumes that are attached on this host, whoever has asked for that.
    fn attached_volumes(&self, sr: SrId) -> BoxFuture<'_, Result<Vec<VdiId>, SrError>>;
}
