//! Wire types of the calls that carry a disk as a stream, `image.export` and `image.import`, and of
//! `image.copy`, whose stream is another disk.
//!
//! The caller listens on a Unix socket in a folder that only it can open, and names it. `ringway-io`
//! connects to it once.
//!
//! - **Export**: 8 bytes with the length of the image, most significant first, then the image. The
//!   answer to the call says whether the image is complete.
//! - **Import**: frames, each with 4 bytes for the length of its data, most significant first. An
//!   empty frame is the end of the image. A connection that ends without it was cut.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::image::{ImageFormat, MAX_IMAGE_DEADLINE_S};
use crate::spec::Backend;

/// Most data of a frame, in bytes.
pub const MAX_FRAME_BYTES: u32 = 1 << 20;

fn longest_deadline() -> u32 {
    MAX_IMAGE_DEADLINE_S
}

/// Parameters of `image.export`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageExport {
    /// Tree of images to read, as in `image.convert`.
    pub source: Backend,
    /// Format of the stream.
    pub format: ImageFormat,
    /// Identity of the content, which a VHD has.
    pub id: [u8; 16],
    /// Disk that the reader has already; VHD only. The stream has what differs from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ExportBase>,
    /// Absolute path of the socket on which the caller waits for the stream.
    pub stream: PathBuf,
    /// Longest time that the call takes, in seconds; 1 to 86,400, by default 86,400.
    #[serde(default = "longest_deadline")]
    pub deadline_s: u32,
}

/// Disk that the reader of an export has already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportBase {
    /// Its tree of images.
    pub source: Backend,
    /// Identity of its content.
    pub id: [u8; 16],
    /// File name that the differencing image gives its parent.
    pub name: String,
}

/// Parameters of `image.import`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageImport {
    /// Present images of the disk. No program may write them.
    pub present: Backend,
    /// Absolute path of the new image, which must not exist.
    pub path: PathBuf,
    /// Format of the stream.
    pub format: ImageFormat,
    /// Whether bytes may follow the image, or its end may be missing: the sender does not know its
    /// length.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open_end: bool,
    /// Length of the image in bytes, if the sender knows it. So an image that cannot fit is refused
    /// before its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// Absolute path of the socket on which the caller waits to send the stream.
    pub stream: PathBuf,
    /// Longest time that the call takes, in seconds; 1 to 86,400, by default 86,400.
    #[serde(default = "longest_deadline")]
    pub deadline_s: u32,
}

/// Parameters of `image.copy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageCopy {
    /// Tree of images to copy, as in `image.convert`.
    pub source: Backend,
    /// Tree of images whose content the disk has. Only what differs from it is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Backend>,
    /// Present images of the disk that gets the content. No program may write them.
    pub present: Backend,
    /// Absolute path of the new image, which must not exist.
    pub path: PathBuf,
    /// Longest time that the call takes, in seconds; 1 to 86,400, by default 86,400.
    #[serde(default = "longest_deadline")]
    pub deadline_s: u32,
}

/// Result of `image.import` and `image.copy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageImported {
    /// The new image replaces the top image. It has the same format, and the same images below.
    Replacement,
    /// The new image is a qcow2 image that goes over the present ones.
    Layer,
    /// The stream is not an image that the disk can take, and nothing was made. The sentence says
    /// why.
    Refused(String),
}
