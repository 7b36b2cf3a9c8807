//! Files that users put into the folder of an SR.
//!
//! A file is what its name says: `NAME.raw`, `NAME.qcow2` or `NAME.vhd`. It becomes a volume when
//! it opens as that format, with all its parents. No content is probed.

use model::id::VdiId;
use model::image::ImageFormat;
use serde::{Deserialize, Serialize};

use super::Names;

/// Most files that a scan reports and takes. The next scan goes on.
pub const MAX_FOREIGN_FILES: usize = 1000;

/// File that belongs to no volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignFile {
    /// File name.
    pub name: String,
    /// Format that the name states, or the reason why the file becomes no volume.
    pub format: Result<ImageFormat, String>,
}

/// Volume to make of foreign files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForeignVolume {
    /// Id of the new volume.
    pub vdi: VdiId,
    /// Names of the new volume.
    pub names: Names,
    /// Size that a guest sees, in bytes.
    pub bytes: u64,
    /// Files with its images, top first.
    pub images: Vec<ForeignImage>,
}

/// File that becomes an image of a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForeignImage {
    /// Present name.
    pub from: String,
    /// New name: a UUID and the format.
    pub to: String,
}
