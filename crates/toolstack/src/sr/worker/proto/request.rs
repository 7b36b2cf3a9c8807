//! Requests of the daemon.

use std::fmt;

use model::id::{Uuid, VdiId};
use model::image::ImageFormat;
use serde::{Deserialize, Serialize};

use super::text;
use crate::sr::Names;
use crate::sr::foreign::ForeignVolume;

/// Request of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum SrRequest {
    /// Create an empty SR.
    Create,
    /// Remove an empty SR.
    Destroy,
    /// Find the SR at the place.
    Probe,
    /// Check that the SR exists, and remove incomplete files of a crash.
    Attach,
    /// Report space and volumes.
    Scan,
    /// Report space.
    Space,
    /// Report space and volumes of a directory of ISO files.
    ScanIsos,
    /// Find an ISO file.
    FindIso {
        #[serde(with = "text")]
        vdi: Uuid,
    },
    /// Open the directory of layers over golden images, which is created, and report its space.
    OpenLayers,
    /// Report the files of layers.
    Layers,
    /// Remove the layers of a slot.
    RemoveLayers {
        #[serde(with = "text")]
        slot: Uuid,
        /// Whether only layers that do not outlive their machine are removed.
        volatile_only: bool,
    },
    /// Create a volume.
    CreateVolume {
        #[serde(with = "text")]
        vdi: Uuid,
        bytes: u64,
    },
    /// Name the image of a new volume, which is not raw.
    PrepareImage {
        #[serde(with = "text")]
        vdi: Uuid,
        bytes: u64,
        format: ImageFormat,
    },
    /// Make a volume of its image, which exists.
    SettleImage {
        #[serde(with = "text")]
        vdi: Uuid,
    },
    /// Remove a volume.
    DestroyVolume {
        #[serde(with = "text")]
        vdi: Uuid,
    },
    /// Check that a volume can grow.
    PrepareResize {
        #[serde(with = "text")]
        vdi: Uuid,
        bytes: u64,
    },
    /// Grow a volume.
    ResizeVolume {
        #[serde(with = "text")]
        vdi: Uuid,
        bytes: u64,
    },
    /// Find a volume.
    FindVolume {
        #[serde(with = "text")]
        vdi: Uuid,
    },
    /// Check that a copy of this size in bytes can be begun, which guests know with the block size of
    /// its storage, or with the usual one.
    PrepareCopy {
        #[serde(with = "text")]
        vdi: Uuid,
        bytes: u64,
        storage_blocks: bool,
    },
    /// Name a new image that goes over those of a volume.
    PrepareLayer {
        #[serde(with = "text")]
        vdi: Uuid,
        #[serde(with = "text")]
        layer: Uuid,
        /// File name of the image that a datapath writes for the volume.
        served: Option<String>,
    },
    /// Record whether the new image is the top.
    SettleLayer {
        #[serde(with = "text")]
        vdi: Uuid,
        /// File name of the image that a datapath writes for the volume.
        served: Option<String>,
    },
    /// Make what lies below the top of a volume the content to which it goes back, or keep none.
    SetResetPoint {
        #[serde(with = "text")]
        vdi: Uuid,
        point: Option<VdiId>,
    },
    /// Name a new image over the content to which a volume goes back.
    PrepareReset {
        #[serde(with = "text")]
        vdi: Uuid,
    },
    /// Store the names of a volume.
    SetNames {
        #[serde(with = "text")]
        vdi: Uuid,
        names: Names,
    },
    /// Ask whether a clone can share the images of a volume as they are.
    CanShare {
        #[serde(with = "text")]
        vdi: Uuid,
    },
    /// Add a volume over images of another one.
    ShareImages {
        #[serde(with = "text")]
        vdi: Uuid,
        #[serde(with = "text")]
        of: Uuid,
        /// Time of the snapshot, in seconds since 1970; absent for other volumes.
        snapshot: Option<i64>,
    },
    /// Add a volume whose file shares the blocks of another one.
    CloneFile {
        #[serde(with = "text")]
        vdi: Uuid,
        #[serde(with = "text")]
        of: Uuid,
    },
    /// Find the images of a volume that gets new content.
    PrepareImport {
        #[serde(with = "text")]
        vdi: Uuid,
    },
    /// Give a volume its new content.
    SettleImport {
        #[serde(with = "text")]
        vdi: Uuid,
        /// UUID of the new image, if it goes over the present ones.
        layer: Option<Uuid>,
    },
    /// Remove new content that is not complete.
    AbandonImport {
        #[serde(with = "text")]
        vdi: Uuid,
    },
    /// Return the merge of images under way, or begin the next one.
    BeginMerge {
        #[serde(with = "text")]
        into: Uuid,
        /// Volumes whose images stay as they are.
        kept: Vec<String>,
    },
    /// Report the volumes that have the images of the merge.
    MergeUsers,
    /// Record that a volume has the new image of the merge.
    SwitchMerge {
        #[serde(with = "text")]
        vdi: Uuid,
    },
    /// End the merge.
    EndMerge,
    /// Report the files that users put into the directory.
    ForeignFiles,
    /// Make volumes of such files.
    Adopt { volumes: Vec<ForeignVolume> },
}

impl fmt::Display for SrRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => write!(f, "create"),
            Self::Destroy => write!(f, "destroy"),
            Self::Probe => write!(f, "probe"),
            Self::Attach => write!(f, "attach"),
            Self::Scan => write!(f, "scan"),
            Self::Space => write!(f, "measure the space"),
            Self::ScanIsos => write!(f, "scan"),
            Self::FindIso { vdi } => write!(f, "find volume {vdi}"),
            Self::OpenLayers => write!(f, "open the directory of layers"),
            Self::Layers => write!(f, "list layers"),
            Self::RemoveLayers { slot, .. } => write!(f, "remove the layers of slot {slot}"),
            Self::CreateVolume { vdi, .. } => write!(f, "create volume {vdi}"),
            Self::PrepareImage { vdi, .. } => write!(f, "prepare the image of volume {vdi}"),
            Self::SettleImage { vdi } => write!(f, "settle the image of volume {vdi}"),
            Self::DestroyVolume { vdi } => write!(f, "destroy volume {vdi}"),
            Self::PrepareResize { vdi, .. } => write!(f, "prepare the growth of volume {vdi}"),
            Self::ResizeVolume { vdi, .. } => write!(f, "resize volume {vdi}"),
            Self::FindVolume { vdi } => write!(f, "find volume {vdi}"),
            Self::PrepareCopy { vdi, .. } => write!(f, "prepare the copy {vdi}"),
            Self::PrepareLayer { vdi, .. } => write!(f, "prepare a layer of volume {vdi}"),
            Self::SettleLayer { vdi, .. } => write!(f, "settle the layer of volume {vdi}"),
            Self::SetResetPoint { vdi, .. } => write!(f, "set the reset point of volume {vdi}"),
            Self::PrepareReset { vdi } => write!(f, "prepare a reset of volume {vdi}"),
            Self::SetNames { vdi, .. } => write!(f, "store the names of volume {vdi}"),
            Self::CanShare { vdi } => write!(f, "look at the layer of volume {vdi}"),
            Self::ShareImages { of, .. } => write!(f, "share the images of volume {of}"),
            Self::CloneFile { of, .. } => write!(f, "clone the file of volume {of}"),
            Self::PrepareImport { vdi } => write!(f, "prepare an import to volume {vdi}"),
            Self::SettleImport { vdi, .. } => write!(f, "settle the import to volume {vdi}"),
            Self::AbandonImport { vdi } => write!(f, "abandon the import to volume {vdi}"),
            Self::BeginMerge { .. } => write!(f, "begin a merge of images"),
            Self::MergeUsers => write!(f, "look for users of merged images"),
            Self::SwitchMerge { vdi } => write!(f, "switch volume {vdi} to a merged image"),
            Self::EndMerge => write!(f, "end a merge of images"),
            Self::ForeignFiles => write!(f, "look for files of users"),
            Self::Adopt { .. } => write!(f, "make volumes of files of users"),
        }
    }
}
