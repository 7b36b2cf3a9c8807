//! Wire types of the calls on image files: parameters and results of `image.*`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::Backend;

/// Most extents of a reply to `image.map`. Such a reply fits into a line.
pub const MAX_MAP_EXTENTS: u32 = 10_000;
/// Extents of a reply to `image.map` unless its caller says otherwise.
const DEFAULT_MAP_EXTENTS: u32 = 1_000;
/// Longest time that a call may take, in seconds: a day.
pub const MAX_IMAGE_DEADLINE_S: u32 = 86_400;
/// Time that a call may take unless its caller says otherwise, in seconds.
pub const DEFAULT_IMAGE_DEADLINE_S: u32 = 30;

/// Format of an image. It is always stated, never guessed: a guest could write the header of
/// another format into a raw image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// The bytes of the disk.
    Raw,
    /// qcow2, version 2 or 3.
    Qcow2,
    /// VHD: fixed, dynamic or differencing.
    Vhd,
}

impl ImageFormat {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vhd => "vhd",
        }
    }

    /// Returns the format of a new layer over an image of this format. A VHD lies over VHDs, so that
    /// programs which know only these read the whole chain.
    pub fn of_layer(self) -> Self {
        match self {
            Self::Vhd => Self::Vhd,
            Self::Raw | Self::Qcow2 => Self::Qcow2,
        }
    }

    /// Returns QEMU's name, which headers of qcow2 images have.
    pub fn qemu_name(self) -> &'static str {
        match self {
            Self::Vhd => "vpc",
            other => other.name(),
        }
    }
}

impl std::str::FromStr for ImageFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let formats = [Self::Raw, Self::Qcow2, Self::Vhd];
        let found = formats.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| format!("{text:?} is not raw, qcow2 or vhd"))
    }
}

fn default_deadline() -> u32 {
    DEFAULT_IMAGE_DEADLINE_S
}

fn longest_deadline() -> u32 {
    MAX_IMAGE_DEADLINE_S
}

/// Returns the format of a new image over another one, unless the caller says otherwise.
pub(crate) fn snapshot_format() -> ImageFormat {
    ImageFormat::Qcow2
}

fn default_extents() -> u32 {
    DEFAULT_MAP_EXTENTS
}

/// Parameters of `image.info`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageQuery {
    /// Absolute path of the image.
    pub path: PathBuf,
    /// Its format.
    pub format: ImageFormat,
    /// Longest time that the call takes, in seconds; 1 to 86,400, by default 30.
    #[serde(default = "default_deadline")]
    pub deadline_s: u32,
}

/// Parameters of `image.check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageCheck {
    /// Absolute path of the image.
    pub path: PathBuf,
    /// Its format.
    pub format: ImageFormat,
    /// Whether leaked clusters are released. The image must have no errors then.
    #[serde(default)]
    pub repair_leaks: bool,
    /// Longest time that the call takes, in seconds; 1 to 86,400, by default 30.
    #[serde(default = "default_deadline")]
    pub deadline_s: u32,
}

/// Parameters of `image.map`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageMap {
    /// Absolute path of the image.
    pub path: PathBuf,
    /// Its format.
    pub format: ImageFormat,
    /// First byte of the disk to report.
    #[serde(default)]
    pub start: u64,
    /// Most extents of the reply; 1 to 10,000, by default 1,000.
    #[serde(default = "default_extents")]
    pub limit: u32,
    /// Longest time that the call takes, in seconds; 1 to 86,400, by default 30.
    #[serde(default = "default_deadline")]
    pub deadline_s: u32,
}

/// Parameters of `image.create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageCreate {
    /// Absolute path of the image, which must not exist.
    pub path: PathBuf,
    /// Its format.
    pub format: ImageFormat,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Reference to the image below; qcow2 and VHD only. A VHD with one is a differencing image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<ImageBacking>,
    /// Whether a VHD is a fixed one: the disk as it is, then a footer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fixed: bool,
}

/// Parameters of `image.convert`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageConvert {
    /// Tree of images to copy: files, windows of files, and qcow2 images and VHDs over them. Paths are
    /// absolute.
    pub source: Backend,
    /// Absolute path of the new image, which must not exist.
    pub path: PathBuf,
    /// Its format.
    pub format: ImageFormat,
    /// Number of images of `source`, from the top down, that the new image replaces: at least 1. It
    /// lies over the next image of `source` if there is one, and is qcow2 or VHD then. When absent, it has
    /// the whole disk and no backing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// Whether the copy makes way for the disks of this process: it pauses while they are slower
    /// than usual, and leaves nothing in the page cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// Longest time that the call takes, in seconds; 1 to 86,400, by default 86,400.
    #[serde(default = "longest_deadline")]
    pub deadline_s: u32,
}

impl ImageConvert {
    /// Creates the parameters of a copy of a whole disk, with the longest deadline.
    pub fn whole(source: Backend, path: PathBuf, format: ImageFormat) -> Self {
        let deadline_s = MAX_IMAGE_DEADLINE_S;
        Self { source, path, format, layers: None, background: false, deadline_s }
    }
}

/// Parameters of `image.commit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageCommit {
    /// Id of a disk with an overlay, which is paused or inactive.
    pub id: String,
    /// Absolute path of the new qcow2 image, which must not exist. It lies over the overlay's base.
    pub path: PathBuf,
    /// Longest time that the call takes, in seconds; 1 to 86,400, by default 86,400.
    #[serde(default = "longest_deadline")]
    pub deadline_s: u32,
}

/// Parameters of `image.snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSnapshotCall {
    /// Absolute path of the image that becomes the base. No program may write it from then on.
    pub base: PathBuf,
    /// Its format.
    pub base_format: ImageFormat,
    /// Absolute path of the new image over it, which must not exist.
    pub path: PathBuf,
    /// Format of the new image, by default qcow2. A VHD may lie over a VHD or a raw image.
    #[serde(default = "snapshot_format")]
    pub format: ImageFormat,
}

/// Parameters of `image.resize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageResize {
    /// Tree whose top image becomes larger. No program may write it meanwhile. Paths are absolute.
    pub image: Backend,
    /// New size of the disk in bytes. The new part reads as zeroes.
    pub size: u64,
    /// Longest time that the call takes, in seconds; 1 to 86,400, by default 30.
    #[serde(default = "default_deadline")]
    pub deadline_s: u32,
}

/// Result of `image.progress`: the running calls of `image.convert`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageProgressReply {
    /// Each of them.
    pub converting: Vec<ImageProgress>,
}

/// Progress of a call of `image.convert`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageProgress {
    /// Path of the new image.
    pub path: PathBuf,
    /// Bytes of the disk that are done.
    pub done_bytes: u64,
    /// Size of the disk in bytes.
    pub total_bytes: u64,
}

/// Reference of an image to the image below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageBacking {
    /// Path, absolute or relative to the image's directory.
    pub file: PathBuf,
    /// Format. An image of another program may not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// Result of `image.info`, `image.create`, `image.convert`, `image.snapshot` and `image.resize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Path of the image.
    pub path: PathBuf,
    /// Its format.
    pub format: ImageFormat,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Space that the file uses on its storage, in bytes.
    pub stored_bytes: u64,
    /// Whether another process writes the image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_written: bool,
    /// Properties of a qcow2 image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qcow2: Option<Qcow2Info>,
    /// Properties of a VHD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhd: Option<VhdInfo>,
    /// Notes for the caller, with remedies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Properties of a qcow2 image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qcow2Info {
    /// Version, 2 or 3.
    pub version: u32,
    /// Size of a cluster in bytes.
    pub cluster_bytes: u64,
    /// Size of a subcluster in bytes. Absent without extended L2 entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subcluster_bytes: Option<u64>,
    /// Width of a refcount in bits.
    pub refcount_bits: u32,
    /// Compression method: `zlib` or `zstd`.
    pub compression: String,
    /// Names of the feature bits that are set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// Whether the image must be repaired before it is written.
    pub needs_repair: bool,
    /// Reference to the image below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<ImageBacking>,
    /// Number of internal snapshots.
    pub snapshot_count: u32,
    /// The first 500 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<ImageSnapshot>,
    /// Number of persistent bitmaps.
    pub bitmap_count: u32,
    /// The first 500 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bitmaps: Vec<ImageBitmap>,
}

/// Properties of a VHD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VhdInfo {
    /// Type: `fixed`, `dynamic` or `differencing`.
    pub disk_type: String,
    /// Size of a block in bytes. Absent in fixed images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_bytes: Option<u64>,
    /// Program that made the image, as it calls itself: four characters.
    pub creator: String,
    /// Time of its creation, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// Identity of the content, which images over it name.
    pub unique_id: String,
    /// Parent of a differencing image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<VhdParent>,
    /// Whether XenServer's batmap is there.
    pub batmap: bool,
}

/// Parent of a differencing VHD, as the image names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VhdParent {
    /// Identity of its content. Zeroes for a raw image.
    pub unique_id: String,
    /// Time when it was last changed, in seconds since 1970.
    pub unix_seconds: u64,
    /// Path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// Internal snapshot of a qcow2 image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSnapshot {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Time of its creation, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// Size of the machine's saved state in bytes.
    pub vm_state_bytes: u64,
}

/// Persistent bitmap of a qcow2 image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageBitmap {
    /// Name.
    pub name: String,
    /// Bytes of the disk that a bit stands for.
    pub granularity_bytes: u64,
    /// Whether its program did not store it completely.
    pub in_use: bool,
}

/// Result of `image.check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageCheckReport {
    /// Number of faults through which data is or can be lost.
    pub errors: u64,
    /// Number of clusters of the file that nothing uses; after a repair, those that are left.
    pub leaks: u64,
    /// Number of leaks that were repaired before.
    #[serde(default)]
    pub repaired_leaks: u64,
    /// Number of wrong marks of clusters as unshared that were corrected before.
    #[serde(default)]
    pub repaired_marks: u64,
    /// The first 100 faults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<ImageFault>,
    /// Number of clusters of the disk.
    pub clusters: u64,
    /// Number of these that the image stores.
    pub allocated_clusters: u64,
    /// Number of these that are compressed.
    pub compressed_clusters: u64,
}

/// Fault of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFault {
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Whether it only wastes space.
    pub leak: bool,
    /// Broken rule.
    pub problem: String,
}

/// Result of `image.map`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageMapReply {
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Extents in order, without gaps.
    pub extents: Vec<ImageExtent>,
    /// Start of the next call, if the reply does not reach the end of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Range of a disk with one kind of storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageExtent {
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Kind of storage.
    pub kind: ImageExtentKind,
    /// Offset of the first byte in the file in bytes, for data that is not compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_offset: Option<u64>,
}

/// Kind of storage of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageExtentKind {
    /// The image has nothing: the image below has it, or it is zero.
    Unallocated,
    /// It is zero.
    Zero,
    /// The file has it.
    Data,
    /// The file has it compressed.
    Compressed,
}
