//! Answers of a worker.

use model::id::{SrId, VdiId};
use model::spec::BlockSize;
use serde::{Deserialize, Serialize};

use super::wire::{WireMerge, WireVolume};
use crate::sr::foreign::ForeignFile;
use crate::sr::{NoRawVolume, Space, SrError, SrScan, UnreadableFile, Volume};

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SrResponse {
    /// Success without a value.
    Nothing,
    /// Space of an SR.
    Space(Space),
    /// Space of an SR, and its volumes.
    Scan {
        #[serde(flatten)]
        space: Space,
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

impl SrResponse {
    /// Creates the answer to a scan.
    pub(crate) fn scan(scan: SrScan) -> Self {
        let SrScan { space, volumes, doubtful, unreadable, no_raw } = scan;
        let [volumes, doubtful] =
            [volumes, doubtful].map(|some| some.into_iter().map(WireVolume::from).collect());
        Self::Scan { space, volumes, doubtful, unreadable, no_raw }
    }

    /// Returns the space.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_space(self) -> Result<Space, SrError> {
        match self {
            Self::Space(space) => Ok(space),
            other => Err(other.unexpected()),
        }
    }

    /// Returns the result of a scan.
    ///
    /// # Errors
    /// The answer is another one.
    pub(crate) fn into_scan(self) -> Result<SrScan, SrError> {
        match self {
            Self::Scan { space, volumes, doubtful, unreadable, no_raw } => {
                let [volumes, doubtful] =
                    [volumes, doubtful].map(|some| some.into_iter().map(Volume::from).collect());
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
