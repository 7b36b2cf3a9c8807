//! Result of a scan of an SR.

use model::id::VdiId;
use serde::{Deserialize, Serialize};

use super::{Space, SrError, Volume};

/// Space and volumes of an SR.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SrScan {
    /// Space of the SR.
    pub space: Space,
    /// Volumes.
    pub volumes: Vec<Volume>,
    /// Files that are volumes if they were volumes before. Otherwise, they may be images of a volume
    /// whose record cannot be read.
    pub doubtful: Vec<Volume>,
    /// Files of the SR that cannot be read. Nothing is known of their volumes.
    pub unreadable: Vec<UnreadableFile>,
    /// Volumes without a record whose files may be no raw images, whatever their names say.
    pub no_raw: Vec<NoRawVolume>,
}

/// Volume whose file may be no raw image. A guest could have written what it begins with, so this
/// matters only if nothing else knows the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoRawVolume {
    /// Name of the file.
    pub name: String,
    /// Volume.
    pub vdi: VdiId,
    /// Reason, with what to do if the file is no raw image.
    pub why: String,
}

/// File with a record of the SR that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnreadableFile {
    /// Name of the file.
    pub name: String,
    /// Volume whose record it is. `None` if it is no record of a present volume.
    pub vdi: Option<VdiId>,
    /// Reason, with the path and the remedy.
    pub why: String,
}

impl From<(Space, Vec<Volume>)> for SrScan {
    fn from((space, volumes): (Space, Vec<Volume>)) -> Self {
        Self { space, volumes, ..Self::default() }
    }
}

impl SrScan {
    /// Returns the error that names what cannot be read, if there is such a file.
    pub fn unreadable_error(&self) -> Option<SrError> {
        let first = self.unreadable.first()?;
        let more = match self.unreadable.len().saturating_sub(1) {
            0 => String::new(),
            more => format!("; {more} more such files are in this storage repository"),
        };
        Some(super::places::location(format!("{}{more}", first.why)))
    }

    /// Returns the file with the record of this volume, if it cannot be read.
    pub fn unreadable_of(&self, vdi: VdiId) -> Option<&UnreadableFile> {
        self.unreadable.iter().find(|one| one.vdi == Some(vdi))
    }
}
