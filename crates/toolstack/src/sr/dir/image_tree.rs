//! Images of an SR and the volumes that have them, for users.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use model::id::VdiId;
use serde::{Deserialize, Serialize};

use super::directory::{SrDirectory, location};
use super::record::{ImageName, Record};
use crate::sr::{SrError, Volume};

/// Images of an SR in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageTree {
    /// Images that volumes have, or that no record names.
    pub images: Vec<TreeImage>,
    /// Volumes.
    pub volumes: Vec<TreeVolume>,
    /// Merge under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<TreeMerge>,
}

/// Image of an SR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeImage {
    /// File name.
    pub name: String,
    /// Image below it, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
    /// Space that the file uses, in bytes. Absent if the file does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Whether no record names it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub orphan: bool,
}

/// Volume of an SR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeVolume {
    /// Id.
    pub vdi: String,
    /// Size that a guest sees, in bytes.
    pub bytes: u64,
    /// Images, top first.
    pub images: Vec<String>,
    /// Whether it is never written.
    pub read_only: bool,
    /// Whether a crash left it incomplete. The next attach removes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Id of the volume that it is a snapshot of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_of: Option<String>,
}

/// Merge of images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeMerge {
    /// Images that become one, top first.
    pub images: Vec<String>,
    /// New image.
    pub into: String,
    /// Whether the new image exists, so that volumes are changing to it.
    pub complete: bool,
}

/// Reads the images of the SR in a directory. Changes nothing.
///
/// # Errors
/// The directory is no SR, a record is invalid, or a system call failed.
pub fn image_tree(place: &Path) -> Result<ImageTree, SrError> {
    if SrDirectory::probe(place)?.is_none() {
        return Err(location(format!("{} is no storage repository", place.display())));
    }
    SrDirectory::at(place)?.image_tree()
}

impl SrDirectory<'_> {
    /// Returns the images of the SR, and the volumes that have them.
    ///
    /// # Errors
    /// A record is invalid, or a system call failed.
    pub(crate) fn image_tree(&self) -> Result<ImageTree, SrError> {
        let names = self.names()?;
        let (records, journal) = (self.records(&names)?, self.merge_journal()?);
        // What a reset or a removal leaves for a moment is no orphan.
        let leaving = self.removed(&names)?;
        let leaving = leaving.values().flat_map(Record::files);
        let leaving = leaving.chain(records.values().flat_map(|one| one.replaced.clone()));
        let leaving: BTreeSet<_> = leaving.collect();
        let mut below: BTreeMap<ImageName, Option<ImageName>> = BTreeMap::new();
        let mut volumes = Vec::new();
        for (vdi, record) in records {
            let files: Vec<_> = record.used().collect();
            for (at, image) in files.iter().enumerate() {
                below.insert(*image, files.get(at.saturating_add(1)).copied());
            }
            volumes.push(of_record(vdi, &record));
        }
        let known = below.keys().copied().chain(journal.images()).chain(leaving);
        let known: BTreeSet<_> = known.collect();
        let mut orphans = BTreeSet::new();
        for image in names.iter().filter_map(|name| ImageName::parse(name)) {
            if known.contains(&image) {
                continue;
            }
            below.insert(image, None);
            // A raw image without a record is a volume.
            match image.unrecorded().map(|vdi| self.unrecorded(vdi)) {
                None => drop(orphans.insert(image)),
                Some(Ok(volume)) => volumes.push(of_volume(image, &volume)),
                Some(Err(_)) => drop(below.remove(&image)),
            }
        }
        let mut images = Vec::new();
        for (image, below) in below {
            images.push(TreeImage {
                name: image.to_string(),
                below: below.map(|one| one.to_string()),
                stored_bytes: self.stored_bytes(image)?,
                orphan: orphans.contains(&image),
            });
        }
        let merge = match journal.merge {
            None => None,
            Some(merge) => Some(TreeMerge {
                images: merge.images.iter().map(ToString::to_string).collect(),
                into: merge.into.to_string(),
                complete: self.has(&merge.into.to_string())?,
            }),
        };
        Ok(ImageTree { images, volumes, merge })
    }
}

fn of_record(vdi: VdiId, record: &Record) -> TreeVolume {
    TreeVolume {
        vdi: vdi.to_string(),
        bytes: record.bytes,
        images: record.images.iter().map(ToString::to_string).collect(),
        read_only: record.read_only,
        incomplete: record.incomplete,
        snapshot_of: record.snapshot_of.map(|of| of.vdi.to_string()),
    }
}

fn of_volume(image: ImageName, volume: &Volume) -> TreeVolume {
    TreeVolume {
        vdi: volume.vdi.to_string(),
        bytes: volume.virtual_bytes,
        images: vec![image.to_string()],
        read_only: volume.read_only,
        incomplete: false,
        snapshot_of: None,
    }
}
