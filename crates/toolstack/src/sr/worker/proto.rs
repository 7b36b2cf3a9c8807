//! Protocol between the daemon and a storage worker: one JSON object a line.

mod request;
mod response;
#[cfg(test)]
mod tests;
mod wire;

use std::path::PathBuf;

use model::id::{SrId, Uuid};
use serde::{Deserialize, Serialize};

pub(crate) use request::SrRequest;
pub(crate) use response::SrResponse;
pub(super) use wire::WireError;
pub(crate) use wire::WireMerge;

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

impl Call {
    pub(super) fn sr(&self) -> SrId {
        SrId(self.sr)
    }
}

/// Answer to a call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    pub(super) id: u64,
    pub(super) outcome: Result<SrResponse, WireError>,
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
