//! Parameters of calls that are not a specification.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::caps::Caps;
use crate::image::{ImageFormat, snapshot_format};
use crate::nic::NicLimits;
use crate::poll::PollChange;
use crate::share::{DEFAULT_WEIGHT, DiskShare};
use crate::spec::{Backend, BootSet};

/// Most disks of one `disk.snapshot`: all of them wait until the last one is ready.
pub const MAX_SNAPSHOT_DISKS: usize = 255;

/// Reference to a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskRef {
    /// Id of the disk.
    pub id: String,
}

/// Parameters of `disk.detach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    /// Id of the disk.
    pub id: String,
    /// Whether the disk is detached even if its front-end is connected. True when absent, as before
    /// the field existed: an older daemon does not send it, and an older `ringway-io` rejects it.
    #[serde(default = "forced")]
    pub force: bool,
}

fn forced() -> bool {
    true
}

/// Reference to a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicRef {
    /// Id of the NIC.
    pub id: String,
}

/// Parameters of `disk.resize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Id of the disk.
    pub id: String,
    /// New size in bytes, to which a regular file or memory disk grows. When absent, the disk gets
    /// the current size of its backend (a block device or file that another program has grown).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Parameters of `disk.replace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// Id of the disk.
    pub id: String,
    /// New backend. It has the same content and size as the present one.
    pub backend: Backend,
    /// Present backend. The call fails if the disk has another one.
    pub expect: Backend,
}

/// Parameters of `disk.snapshot`: all snapshots are of one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Disks, each once.
    pub disks: Vec<SnapshotDisk>,
}

impl Snapshot {
    /// Checks the fields without accessing the host.
    ///
    /// # Errors
    /// The problem, and the accepted values.
    pub fn check(&self) -> Result<(), String> {
        if self.disks.is_empty() || self.disks.len() > MAX_SNAPSHOT_DISKS {
            let count = self.disks.len();
            return Err(format!("disks: {count} disks are not in 1 to {MAX_SNAPSHOT_DISKS}"));
        }
        let mut ids = BTreeSet::new();
        for disk in &self.disks {
            if !ids.insert(&disk.id) {
                return Err(format!("disks: {:?} is there twice", disk.id));
            }
            if disk.file.as_os_str().is_empty() {
                return Err(format!("disks: the file of {:?} is empty", disk.id));
            }
        }
        Ok(())
    }
}

/// A disk of which a snapshot is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotDisk {
    /// Id of the disk.
    pub id: String,
    /// Path of the new image, which gets all later writes. It must not exist.
    pub file: PathBuf,
    /// Format of the new image, by default qcow2. A VHD may lie over a VHD or a raw image.
    #[serde(default = "snapshot_format")]
    pub format: ImageFormat,
}

/// Parameters of `disk.weight`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetWeight {
    /// Id of the disk.
    pub id: String,
    /// Weight, 1 to 1000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Requests a second that the disk gets at least; an absent floor is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_iops: Option<u64>,
    /// Bytes a second that the disk gets at least; an absent floor is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_bytes: Option<u64>,
}

impl SetWeight {
    /// Returns the new share of the disk.
    pub fn share(&self) -> DiskShare {
        let &Self { weight, floor_iops, floor_bytes, .. } = self;
        DiskShare { weight: weight.unwrap_or(DEFAULT_WEIGHT), floor_iops, floor_bytes }
    }
}

/// Parameters of `disk.caps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetCaps {
    /// Id of the disk.
    pub id: String,
    /// All new caps; an absent cap is removed.
    #[serde(default)]
    pub caps: Option<Caps>,
}

/// Parameters of `nic.limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetLimits {
    /// Id of the NIC.
    pub id: String,
    /// All new limits; an absent limit is removed.
    #[serde(default)]
    pub limits: NicLimits,
}

/// Parameters of `disk.wait_full`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFull {
    /// Ids of the disks of which the caller knows that they wait for space. When absent, the call is
    /// answered at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<BTreeSet<String>>,
}

/// Reference to the golden image below a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoldenRef {
    /// Id of a disk on the image, or identity of the image.
    pub image: String,
}

/// Parameters of `golden.warm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoldenWarm {
    /// Id of a disk on the image, or identity of the image.
    pub image: String,
    /// Most bytes a second, at least 65,536. When absent, there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
}

/// Parameters of `golden.import_boot_set`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoldenImport {
    /// Absolute path of the cache directory.
    pub cache: PathBuf,
    /// Boot set that `golden.export_boot_set` has reported.
    pub boot_set: BootSet,
}

/// Parameters of `golden.clean`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoldenClean {
    /// Absolute path of the cache directory.
    pub cache: PathBuf,
    /// Bytes that all cache files together may keep. When absent, none stays that is unused for long
    /// enough.
    #[serde(default)]
    pub keep: u64,
    /// Seconds for which a file must be unused to be removed.
    pub unused_seconds: u64,
}

/// Parameters of `upgrade`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// Absolute path of the new program. When absent, the file at the path that the running program
    /// was started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<PathBuf>,
}

/// Parameters of `disk.unexport`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unexport {
    /// Id of the disk.
    pub id: String,
    /// Socket of the export; all exports of the disk when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
}

/// Parameters of `stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsQuery {
    /// Id of the only disk or NIC to report; everything when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Parameters of `disk.poll` and `nic.poll`: an id, and those of `poll.defaults`. Absent fields
/// stay; `null` restores the default of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetPoll {
    /// Id of the disk or NIC.
    pub id: String,
    /// Change of the polling settings.
    pub change: PollChange,
}

impl<'de> Deserialize<'de> for SetPoll {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // `serde(flatten)` would accept unknown fields.
        let mut params = serde_json::Map::deserialize(from)?;
        let id = params.remove("id").ok_or_else(|| D::Error::missing_field("id"))?;
        let id =
            String::deserialize(id).map_err(|error| D::Error::custom(format!("id: {error}")))?;
        let change = PollChange::deserialize(Value::Object(params)).map_err(D::Error::custom)?;
        Ok(Self { id, change })
    }
}
