//! Storage repositories (SRs): drivers that create, find and remove disks.
//!
//! # Words
//! - **SR**: a place for disks, of one type. **Volume**: a disk in it.
//! - **Attached**: the volume's bytes can be reached, and no lock is taken. **Activated**: the
//!   volume is prepared for reads and writes.
//!
//! # Invariants
//! A call whose goal is already reached does nothing and succeeds. A call that hangs on dead
//! storage has nothing that another SR needs.

pub mod delay;
pub mod dir;
mod file_system;
pub mod foreign;
pub mod golden;
pub mod iso;
mod places;
mod scan;
pub mod sim;
pub mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use model::id::{SrId, Uuid, VbdId, VdiId};
use model::image::{ImageCreate, ImageFormat};
use model::spec::{Backend, BlockSize};
use model::sr::SrFeature;
use model::vbd::Tuning;
use model::vdi::automaton::Access;

use serde::{Deserialize, Serialize};

use crate::boxed_future::BoxFuture;
use crate::ringway_io::DatapathError;
pub use dir::SnapshotOf;
use foreign::{ForeignFile, ForeignVolume};
pub use scan::{NoRawVolume, SrScan, UnreadableFile};

/// Location of an SR in a PBD: `device_config`.
pub type Config = BTreeMap<String, String>;

/// Error of an SR.
#[derive(Debug, thiserror::Error)]
pub enum SrError {
    /// The storage did not answer in time.
    #[error("the storage did not answer {what} within {} s", .after.as_secs())]
    Late {
        /// Request without an answer.
        what: String,
        /// Time waited.
        after: Duration,
    },
    /// The configuration is invalid.
    #[error("{key}: {why}")]
    Config {
        /// Key of the invalid value.
        key: String,
        /// Reason.
        why: String,
    },
    /// The SR is not attached to this host.
    #[error("the storage repository is not attached")]
    NotAttached,
    /// The place of the SR does not exist.
    #[error("{} does not exist any more: mount it again, or plug the PBD again", path.display())]
    Vanished {
        /// Path of the place.
        path: PathBuf,
    },
    /// The volume does not exist.
    #[error("volume {0} does not exist")]
    NoVolume(VdiId),
    /// The SR to remove contains volumes.
    #[error("the storage repository has volumes: {volumes}")]
    NotEmpty {
        /// Number of volumes.
        volumes: usize,
    },
    /// The space does not suffice.
    #[error("{needed} bytes are needed, {free} are free")]
    Full {
        /// Needed bytes.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// Storage of this type does not have the call.
    #[error("storage of this type cannot do this")]
    Unsupported,
    /// A system call failed.
    #[error("{what}")]
    Os {
        /// Operation, with its path.
        what: String,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The SR's datapath failed.
    #[error("the datapath of the storage repository failed")]
    Datapath(#[source] Box<DatapathError>),
    /// The worker process died, or violated the protocol.
    #[error("the storage worker failed: {0}")]
    Worker(String),
}

/// Space of an SR, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Total space.
    pub total: u64,
    /// Used space, by all users of the storage.
    pub used: u64,
    /// Part of it that caches of images take, for a type with such caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches: Option<u64>,
}

/// Names of a volume that its users gave, as far as the SR stores them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// Name.
    #[serde(default, rename = "name_label", skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// Description.
    #[serde(default, rename = "name_description", skip_serializing_if = "String::is_empty")]
    pub description: String,
}

impl Names {
    /// Most bytes of a name and of a description that an SR stores, as JSON.
    pub const MAX_BYTES: [usize; 2] = [256, 512];

    /// Returns whether an SR stores them.
    pub fn are_short(&self) -> bool {
        let bytes =
            |text: &String| serde_json::to_string(text).map_or(usize::MAX, |text| text.len());
        let [label, description] = Self::MAX_BYTES;
        bytes(&self.label) <= label && bytes(&self.description) <= description
    }
}

/// Disk in an SR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Id of the volume; also its name in the SR, unless there is a file name.
    pub vdi: VdiId,
    /// Size that a guest sees, in bytes.
    pub virtual_bytes: u64,
    /// Space that the volume uses, in bytes.
    pub physical_bytes: u64,
    /// True if the volume cannot be written.
    pub read_only: bool,
    /// The volume that this one is a snapshot of, and when.
    pub snapshot_of: Option<SnapshotOf>,
    /// Whether the volume has a content to which it goes back when its machine boots.
    pub resets: bool,
    /// Names that the SR stores. `None` if its type stores none.
    pub names: Option<Names>,
    /// Name of the volume's file, where the id is not the name.
    pub file_name: Option<String>,
    /// Format of the volume's lowest image, over which others may lie.
    pub format: ImageFormat,
}

/// New image that goes over a volume's images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// File of the new image, which does not exist yet.
    pub file: PathBuf,
    /// Present images of the volume.
    pub base: Backend,
}

impl Layer {
    /// Returns the format of the new image.
    pub fn format(&self) -> ImageFormat {
        let base = self.base.image().map_or(ImageFormat::Raw, |(_, format)| format);
        base.of_layer()
    }
}

/// Merge of images of an SR that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentMerge {
    /// Images that become one, top first.
    pub images: Vec<PathBuf>,
    /// These images, and all below them.
    pub source: Backend,
    /// Number of images that become one.
    pub count: u32,
    /// New image.
    pub into: PathBuf,
    /// Its format.
    pub format: ImageFormat,
    /// Whether the new image exists, complete.
    pub is_complete: bool,
}

/// Driver for one type of SR.
pub trait SrDriver: fmt::Debug + Send + Sync {
    /// Returns the SR type, such as `dir`.
    fn kind(&self) -> &'static str;
    /// Returns what SRs of this type can do.
    fn features(&self) -> &'static [SrFeature];
    /// Checks the location of a new SR or PBD, without access to it.
    fn check(&self, config: &Config) -> Result<(), SrError>;
    /// Creates an empty SR.
    fn create<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>>;
    /// Removes an empty SR that is not attached, and nothing that belongs to others. A missing SR
    /// gives [`SrError::Vanished`]: its file system may not be mounted.
    fn destroy<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>>;
    /// Returns the SRs at the configured place, recorded or not. Changes nothing.
    fn probe<'a>(&'a self, config: &'a Config) -> BoxFuture<'a, Result<Vec<SrId>, SrError>>;
    /// Attaches the SR to this host: a PBD is plugged.
    fn attach<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<Space, SrError>>;
    /// Returns the folder of the images of an attached SR. `None` if it has no such folder.
    fn folder(&self, _sr: SrId) -> Option<PathBuf> {
        None
    }
    /// Detaches the SR: a PBD is unplugged.
    fn detach(&self, sr: SrId) -> BoxFuture<'_, Result<(), SrError>>;
    /// Returns the space and the volumes of the SR.
    fn scan(&self, sr: SrId) -> BoxFuture<'_, Result<SrScan, SrError>>;
    /// Returns the space of an attached SR. `None` if its type does not tell without a scan.
    fn space(&self, _sr: SrId) -> BoxFuture<'_, Result<Option<Space>, SrError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// Creates a volume of zeroes with this size in bytes.
    fn create_volume(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _bytes: u64,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Begins a volume of zeroes with an image of this format, which is not raw, and names the image.
    /// The caller creates it, then calls [`SrDriver::settle_image`]. Until then there is no volume, and
    /// the next attach of the SR removes what is left.
    fn prepare_image(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _bytes: u64,
        _format: ImageFormat,
    ) -> BoxFuture<'_, Result<ImageCreate, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Makes a volume of an image that was prepared and exists.
    fn settle_image(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Removes a volume.
    fn destroy_volume(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Checks that a volume can grow to this size in bytes. Returns its images if the caller, or a
    /// datapath, makes the top image larger before [`SrDriver::resize_volume`].
    fn prepare_resize(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _bytes: u64,
    ) -> BoxFuture<'_, Result<Option<Backend>, SrError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// Grows a volume to this size in bytes.
    fn resize_volume(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _bytes: u64,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Begins to put a new image over those of a volume, and names it. The caller creates the image,
    /// or lets a datapath do it, then calls [`SrDriver::settle_layer`].
    ///
    /// `served` is the file name of the image that a datapath writes for the volume, if one does.
    /// From then on, no other call for the volume may run until the layer is settled.
    fn prepare_layer(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _layer: Uuid,
        _served: Option<String>,
    ) -> BoxFuture<'_, Result<Layer, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Ends the change of a volume's images. The new image is the top if a datapath writes it
    /// (`served`), or if none serves the volume and the image exists; otherwise it is removed, and
    /// the call fails.
    fn settle_layer(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _served: Option<String>,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Makes what lies below the top of a volume the content to which the volume goes back, under
    /// this name. The top is as new. `None` makes the volume keep its content.
    fn set_reset_point(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _point: Option<Uuid>,
    ) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Begins to put a new image over the reset point of a volume, in place of what is over it now,
    /// and names the image. The caller creates it, and calls [`SrDriver::settle_layer`]. `None` if
    /// nothing was written since, or the volume has no such point.
    fn prepare_reset(
        &self,
        _sr: SrId,
        _vdi: VdiId,
    ) -> BoxFuture<'_, Result<Option<Layer>, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Stores the names of a volume. A type that stores none does nothing. Names that are not
    /// [short](Names::are_short) are refused.
    fn set_names(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _names: Names,
    ) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Returns whether a clone can share the images of a volume as they are, because nothing was
    /// written to its top. The caller makes sure that no datapath writes the volume.
    fn can_share(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<bool, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Adds a read-only volume with the images below the top of another one, whose top is new.
    fn add_snapshot(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _snapshot_of: SnapshotOf,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Adds a volume over the images of another one that [`SrDriver::can_share`] allows. It is no
    /// volume until it has got a layer of its own, and the next attach of the SR removes it.
    fn add_clone(&self, _sr: SrId, _vdi: VdiId, _of: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Adds a volume with the content of another one, if the storage can share its blocks. `None` if it
    /// cannot. The caller makes sure that no program writes the other volume.
    fn clone_file(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _of: VdiId,
    ) -> BoxFuture<'_, Result<Option<Volume>, SrError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// Returns the images of a volume, to read them.
    fn images(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<Backend, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Returns the block size that guests know of a volume.
    fn block_size(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<BlockSize, SrError>> {
        let usual = BlockSize::Bytes(BlockSize::DEFAULT_BYTES);
        Box::pin(std::future::ready(Ok(usual)))
    }
    /// Returns the file for the copy of a volume of this size in bytes, which guests know with this
    /// block size. The copy is a volume as soon
    /// as the file exists. [`SrDriver::settle_layer`] returns it.
    fn prepare_copy(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _bytes: u64,
        _block_size: BlockSize,
    ) -> BoxFuture<'_, Result<PathBuf, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Names the file of a new image with new content of a volume, which does not exist yet. Returns
    /// it with the present images, which no program may write from then on.
    /// [`SrDriver::settle_import`] or [`SrDriver::abandon_import`] follows.
    fn prepare_import(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<Layer, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Gives a volume its new content: the new image replaces the top one, or goes over it with this
    /// name.
    fn settle_import(
        &self,
        _sr: SrId,
        _vdi: VdiId,
        _layer: Option<Uuid>,
    ) -> BoxFuture<'_, Result<Volume, SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Removes the new image, if there is one. The volume stays as it is.
    fn abandon_import(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Returns the merge of images that is under way, or begins the next one, with a new image of
    /// this id. `None` if there is nothing to merge. The images of the volumes `kept` stay as they
    /// are.
    ///
    /// The caller creates the new image, has the disks of each of [`SrDriver::merge_users`] replace
    /// the former images, calls [`SrDriver::switch_merge`] for it, then [`SrDriver::end_merge`].
    fn begin_merge(
        &self,
        _sr: SrId,
        _into: Uuid,
        _kept: BTreeSet<VdiId>,
    ) -> BoxFuture<'_, Result<Option<PresentMerge>, SrError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
    /// Returns the volumes that have the images of the merge.
    fn merge_users(&self, _sr: SrId) -> BoxFuture<'_, Result<Vec<VdiId>, SrError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
    /// Records that a volume has the new image of the merge. No datapath serves the former ones.
    fn switch_merge(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Ends the merge: removes the former images, which no datapath serves. If the new image does not
    /// exist, gives the merge up. Returns false if volumes still have the former images.
    fn end_merge(&self, _sr: SrId) -> BoxFuture<'_, Result<bool, SrError>> {
        Box::pin(std::future::ready(Ok(true)))
    }
    /// Returns the files that users put into the SR.
    fn foreign_files(&self, _sr: SrId) -> BoxFuture<'_, Result<Vec<ForeignFile>, SrError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
    /// Makes volumes of foreign files, which open as their formats and fit together.
    fn adopt(&self, _sr: SrId, _volumes: Vec<ForeignVolume>) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Err(SrError::Unsupported)))
    }
    /// Makes a volume's bytes reachable. Returns the backend, and the block size that guests know.
    fn attach_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        access: Access,
    ) -> BoxFuture<'_, Result<(Backend, BlockSize), SrError>>;
    /// Returns the backend of a slot that writes an attached volume. A type whose volumes are never
    /// written puts a layer of the slot over the volume's backend, `base`; the others return `base`.
    fn attach_layer(
        &self,
        _sr: SrId,
        _slot: VbdId,
        _tuning: Tuning,
        base: Backend,
    ) -> BoxFuture<'_, Result<Backend, SrError>> {
        Box::pin(std::future::ready(Ok(base)))
    }
    /// Returns the limit of the overflow file of a slot's layer, in bytes. `wanted` is that of the slot's
    /// record.
    fn overflow_size(&self, _sr: SrId, _wanted: Option<u64>) -> Result<Option<u64>, SrError> {
        Err(SrError::Unsupported)
    }
    /// Removes the layer of a slot if it does not outlive its machine. No datapath serves it.
    fn detach_layer(&self, _sr: SrId, _slot: VbdId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Removes all layers of a slot that does not exist any more.
    fn destroy_layers(&self, _sr: SrId, _slot: VbdId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Returns the slots that have layers in an attached SR.
    fn layers(&self, _sr: SrId) -> BoxFuture<'_, Result<Vec<VbdId>, SrError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
    /// Prepares reads and writes. Storage that locks no volumes does nothing.
    fn activate_volume(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Ends reads and writes.
    fn deactivate_volume(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Detaches a volume.
    fn detach_volume(&self, _sr: SrId, _vdi: VdiId) -> BoxFuture<'_, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Returns all volumes that are attached on this host, by any caller. Storage that does nothing to
    /// attach a volume has none.
    fn attached_volumes(&self, _sr: SrId) -> BoxFuture<'_, Result<Vec<VdiId>, SrError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
