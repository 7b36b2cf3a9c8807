//! Parameters of verbs, where they are not a specification.

use std::path::PathBuf;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::caps::Caps;
use crate::nic::NicLimits;
use crate::poll::PollChange;

/// Names a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskRef {
    /// Its id.
    pub id: String,
}

/// Names a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicRef {
    /// Its id.
    pub id: String,
}

/// Parameters of `disk.resize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// The disk's id.
    pub id: String,
    /// New size in bytes: a regular file or memory disk is grown to it. Absent: take the size that the backend
    /// has now (a block device or file that somebody else grew).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Parameters of `disk.caps`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetCaps {
    /// The disk's id.
    pub id: String,
    /// All its caps from now on: what is absent is not capped any more.
    #[serde(default)]
    pub caps: Option<Caps>,
}

/// Parameters of `nic.limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetLimits {
    /// The NIC's id.
    pub id: String,
    /// All its limits from now on: what is absent is none any more.
    #[serde(default)]
    pub limits: NicLimits,
}

/// Parameters of `upgrade`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// Absolute path of the new program. Absent: the file that is now where the running program
    /// was started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<PathBuf>,
}

/// Parameters of `disk.unexport`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unexport {
    /// The disk's id.
    pub id: String,
    /// Socket of the export; all of the disk's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
}

/// Parameters of `stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsQuery {
    /// Only this disk, or this NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Parameters of `disk.poll` and `nic.poll`: an id beside those of `poll.defaults`. What is absent stays as it is;
/// `null` is as the process is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetPoll {
    /// The disk's id, or the NIC's.
    pub id: String,
    /// What is to change.
    pub change: PollChange,
}

impl<'de> Deserialize<'de> for SetPoll {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Not flattened: that would take unknown fields.
        let mut params = serde_json::Map::deserialize(from)?;
        let id = params.remove("id").ok_or_else(|| D::Error::missing_field("id"))?;
        let id =
            String::deserialize(id).map_err(|error| D::Error::custom(format!("id: {error}")))?;
        let change = PollChange::deserialize(Value::Object(params)).map_err(D::Error::custom)?;
        Ok(Self { id, change })
    }
}
