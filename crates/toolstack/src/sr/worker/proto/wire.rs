//! Volumes, merges and errors in the protocol.

use std::io;
use std::path::PathBuf;

use model::id::{Uuid, VdiId};
use model::image::ImageFormat;
use serde::{Deserialize, Serialize};

use super::text;
use crate::sr::{Names, SnapshotOf, SrError, Volume};

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
pub(in crate::sr::worker) enum WireError {
    Config { key: String, why: String },
    Vanished { path: PathBuf },
    NoVolume { vdi: String },
    NotEmpty { volumes: usize },
    Full { needed: u64, free: u64 },
    Os { what: String, code: Option<i32>, said: String },
    Worker(String),
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
