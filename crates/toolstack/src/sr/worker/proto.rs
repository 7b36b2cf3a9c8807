//! Protocol between the daemon and a storage worker: one JSON object a line.

use std::fmt;
use std::io;
use std::path::PathBuf;

use model::id::{SrId, Uuid, VdiId};
use model::image::ImageFormat;
use model::spec::BlockSize;
use serde::{Deserialize, Serialize};

use crate::sr::foreign::{ForeignFile, ForeignVolume};
use crate::sr::{Names, NoRawVolume, SnapshotOf, Space, SrError, SrScan, UnreadableFile, Volume};

/// Longest line in bytes: enough for a scan of [`MAX_VOLUMES`].
pub(crate) const MAX_LINE_BYTES: usize = 80 << 20;
/// Most volumes that a scan reports.
pub(crate) const MAX_VOLUMES: usize = 65_536;

/// Call for one SR.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Call {
    /// Id of the call. The answer repeats it.
    pub(super) id: u64,
    #[serde(with = "text")]
    pub(super) sr: Uuid,
    /// Directory of the SR.
    pub(super) place: PathBuf,
    pub(super) work: SrRequest,
}

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

/// Answer to a call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    pub(super) id: u64,
    pub(super) outcome: Result<SrResponse, WireError>,
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SrResponse {
    /// Success without a value.
    Nothing,
    /// Space of an SR.
    Space { total: u64, used: u64 },
    /// Space of an SR, and its volumes.
    Scan {
        total: u64,
        used: u64,
        volumes: Vec<WireVolume>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        doubtful: Vec<WireVolume>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        unreadable: Vec<UnreadableFile>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        no_raw: Vec<NoRawVolume>,
    },
    /// Volume.
    Volume(WireVolume),
    /// Volume, its images from the top down, and whether guests know it with the block size of its
    /// storage.
    Found { volume: WireVolume, images: Vec<String>, storage_blocks: bool },
    /// File names of images, from the top down.
    Images(Vec<String>),
    /// Answer to a question.
    Is(bool),
    /// SRs.
    Srs(Vec<SrId>),
    /// Ids of volumes.
    Vdis(Vec<String>),
    /// Merge of images.
    Merge(WireMerge),
    /// Files of users.
    Foreign(Vec<ForeignFile>),
}

/// Merge of images in the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireMerge {
    /// Images from the first one that is merged down to the lowest.
    pub(crate) chain: Vec<String>,
    /// Number of images that become one.
    pub(crate) count: u32,
    /// New image.
    pub(crate) into: String,
    /// Whether the new image exists.
    pub(crate) is_complete: bool,
}

/// Volume in the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireVolume {
    #[serde(with = "text")]
    vdi: Uuid,
    virtual_bytes: u64,
    physical_bytes: u64,
    read_only: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    snapshot_of: Option<SnapshotOf>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    resets: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<Names>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file_name: Option<String>,
    format: ImageFormat,
}

/// [`SrError`] in the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WireError {
    Config { key: String, why: String },
    Vanished { path: PathBuf },
    NoVolume { vdi: String },
    NotEmpty { volumes: usize },
    Full { needed: u64, free: u64 },
    Os { what: String, code: Option<i32>, said: String },
    Worker(String),
}

impl SrResponse {
    /// Creates the answer about the space of an SR.
    pub(crate) fn space(space: Space) -> Self {
        Self::Space { total: space.total, used: space.used }
    }

    /// Creates the answer to a scan.
    pub(crate) fn scan(scan: SrScan) -> Self {
        let SrScan { space: Space { total, used }, volumes, doubtful, unreadable, no_raw } = scan;
        let [volumes, doubtful] =
            [volumes, doubtful].map(|some| some.into_iter().map(WireVolume::from).collect());
        Self::Scan { total, used, volumes, doubtful, unreadable, no_raw }
    }

    /// Returns the space.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_space(self) -> Result<Space, SrError> {
        match self {
            Self::Space { total, used } => Ok(Space { total, used }),
            other => Err(other.unexpected()),
        }
    }

    /// Returns the result of a scan.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_scan(self) -> Result<SrScan, SrError> {
        match self {
            Self::Scan { total, used, volumes, doubtful, unreadable, no_raw } => {
                let [volumes, doubtful] =
                    [volumes, doubtful].map(|some| some.into_iter().map(Volume::from).collect());
                let space = Space { total, used };
                Ok(SrScan { space, volumes, doubtful, unreadable, no_raw })
            }
            other => Err(other.unexpected()),
        }
    }

    /// Returns the volume.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_volume(self) -> Result<Volume, SrError> {
        match self {
            Self::Volume(wire_volume) => Ok(wire_volume.into()),
            other => Err(other.unexpected()),
        }
    }

    /// Returns the found volume, its images and its block size.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_found(self) -> Result<(Volume, Vec<String>, BlockSize), SrError> {
        match self {
            Self::Found { volume, images, storage_blocks: true } => {
                Ok((volume.into(), images, BlockSize::Storage))
            }
            Self::Found { volume, images, storage_blocks: false } => {
                let block_size = BlockSize::Bytes(BlockSize::DEFAULT_BYTES);
                Ok((volume.into(), images, block_size))
            }
            other => Err(other.unexpected()),
        }
    }

    /// Returns the images.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_images(self) -> Result<Vec<String>, SrError> {
        match self {
            Self::Images(images) => Ok(images),
            other => Err(other.unexpected()),
        }
    }

    /// Returns the answer to a question.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_is(self) -> Result<bool, SrError> {
        match self {
            Self::Is(is) => Ok(is),
            other => Err(other.unexpected()),
        }
    }

    /// Returns the SRs.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_srs(self) -> Result<Vec<SrId>, SrError> {
        match self {
            Self::Srs(found) => Ok(found),
            other => Err(other.unexpected()),
        }
    }

    /// Returns the volumes.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_vdis(self) -> Result<Vec<VdiId>, SrError> {
        let Self::Vdis(vdis) = self else { return Err(self.unexpected()) };
        let parse = |vdi: &String| match vdi.parse() {
            Ok(vdi) => Ok(VdiId(vdi)),
            Err(error) => Err(SrError::Worker(format!("its answer: {error}"))),
        };
        vdis.iter().map(parse).collect()
    }

    /// Returns the merge, if there is one.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_merge(self) -> Result<Option<WireMerge>, SrError> {
        match self {
            Self::Merge(merge) => Ok(Some(merge)),
            Self::Nothing => Ok(None),
            other => Err(other.unexpected()),
        }
    }

    /// Returns the files of users.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_foreign(self) -> Result<Vec<ForeignFile>, SrError> {
        match self {
            Self::Foreign(files) => Ok(files),
            other => Err(other.unexpected()),
        }
    }

    /// Checks that the answer has no value.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_nothing(self) -> Result<(), SrError> {
        match self {
            Self::Nothing => Ok(()),
            other => Err(other.unexpected()),
        }
    }

    fn unexpected(self) -> SrError {
        SrError::Worker(format!("its answer does not match the call: {self:?}"))
    }
}

impl From<Volume> for WireVolume {
    fn from(volume: Volume) -> Self {
        let Volume { vdi, virtual_bytes, physical_bytes, read_only, snapshot_of, .. } = volume;
        let (vdi, resets) = (vdi.0, volume.resets);
        let (names, file_name, format) = (volume.names, volume.file_name, volume.format);
        Self {
            vdi,
            virtual_bytes,
            physical_bytes,
            read_only,
            snapshot_of,
            resets,
            names,
            file_name,
            format,
        }
    }
}

impl From<WireVolume> for Volume {
    fn from(wire_volume: WireVolume) -> Self {
        let WireVolume { vdi, virtual_bytes, physical_bytes, read_only, snapshot_of, .. } =
            wire_volume;
        let (vdi, resets) = (VdiId(vdi), wire_volume.resets);
        let (names, file_name) = (wire_volume.names, wire_volume.file_name);
        let format = wire_volume.format;
        Self {
            vdi,
            virtual_bytes,
            physical_bytes,
            read_only,
            snapshot_of,
            resets,
            names,
            file_name,
            format,
        }
    }
}

impl From<SrError> for WireError {
    fn from(error: SrError) -> Self {
        match error {
            SrError::Config { key, why } => Self::Config { key, why },
            SrError::Vanished { path } => Self::Vanished { path },
            SrError::NoVolume(vdi) => Self::NoVolume { vdi: vdi.to_string() },
            SrError::NotEmpty { volumes } => Self::NotEmpty { volumes },
            SrError::Full { needed, free } => Self::Full { needed, free },
            SrError::Os { what, source } => {
                Self::Os { what, code: source.raw_os_error(), said: source.to_string() }
            }
            // Only the daemon creates these errors, not a worker.
            error @ (SrError::Late { .. }
            | SrError::NotAttached
            | SrError::Unsupported
            | SrError::Datapath(_)) => Self::Worker(error.to_string()),
            SrError::Worker(why) => Self::Worker(why),
        }
    }
}

impl From<WireError> for SrError {
    fn from(fault: WireError) -> Self {
        match fault {
            WireError::Config { key, why } => Self::Config { key, why },
            WireError::Vanished { path } => Self::Vanished { path },
            WireError::NoVolume { vdi } => match vdi.parse() {
                Ok(vdi) => Self::NoVolume(VdiId(vdi)),
                Err(error) => Self::Worker(format!("its answer: {error}")),
            },
            WireError::NotEmpty { volumes } => Self::NotEmpty { volumes },
            WireError::Full { needed, free } => Self::Full { needed, free },
            WireError::Os { what, code, said } => {
                let source =
                    code.map_or_else(|| io::Error::other(said), io::Error::from_raw_os_error);
                Self::Os { what, source }
            }
            WireError::Worker(why) => Self::Worker(why),
        }
    }
}

impl Call {
    pub(super) fn sr(&self) -> SrId {
        SrId(self.sr)
    }
}

/// Serialization of UUIDs as text.
mod text {
    use model::id::Uuid;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &Uuid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
