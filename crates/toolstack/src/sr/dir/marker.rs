//! Marker file with the SR's id. A mount point without its file system has none.

use model::id::{BadUuid, SrId};
use serde::{Deserialize, Serialize};

/// Name of the marker file.
pub(super) const MARKER: &str = ".ringway-sr";
/// Format version of the marker of an SR that has had no volume with a record.
const FORMAT: u32 = 1;
/// Format version of the marker of an SR with records. Programs that know only the first version
/// would take shared images for volumes, so they must refuse it.
const FORMAT_WITH_RECORDS: u32 = 2;

/// Content of the marker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Marker {
    format: u32,
    sr: String,
}

impl Marker {
    pub(super) fn of(sr: SrId) -> Self {
        Self { format: FORMAT, sr: sr.to_string() }
    }

    /// Returns the marker for an SR with records, unless this is one.
    pub(super) fn with_records(self) -> Option<Self> {
        let is_old = self.format < FORMAT_WITH_RECORDS;
        is_old.then_some(Self { format: FORMAT_WITH_RECORDS, ..self })
    }

    pub(super) fn text(&self) -> String {
        // Serialization of two plain fields cannot fail.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Parses a marker.
    ///
    /// # Errors
    /// The format is unknown. The text is the reason.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let marker: Self = serde_json::from_slice(text)
            .map_err(|error| format!("its {MARKER} cannot be parsed: {error}"))?;
        match marker.format {
            FORMAT | FORMAT_WITH_RECORDS => Ok(marker),
            other => Err(format!(
                "its {MARKER} has format {other}, this version knows {FORMAT} and \
                 {FORMAT_WITH_RECORDS}"
            )),
        }
    }

    /// Returns the SR of the marker.
    ///
    /// # Errors
    /// The marker has no UUID. The text is the reason.
    pub(super) fn sr(&self) -> Result<SrId, String> {
        let parsed = self.sr.parse().map(SrId);
        parsed.map_err(|error: BadUuid| format!("its {MARKER} cannot be parsed: {error}"))
    }

    /// Checks that the marker is that of `sr`.
    ///
    /// # Errors
    /// The directory belongs to another SR. The text is the reason.
    pub(super) fn check(&self, sr: SrId) -> Result<(), String> {
        match self.sr == sr.to_string() {
            true => Ok(()),
            false => Err(format!("belongs to storage repository {}, not to {sr}", self.sr)),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::id::Uuid;

    use super::*;

    #[test]
    fn a_marker_says_whose_it_is() {
        let [ours, other] = [1, 2].map(|n| SrId(Uuid::from_random([n; 16])));
        let marker = Marker::parse(Marker::of(ours).text().as_bytes()).unwrap();
        assert_eq!((marker.check(ours), marker.sr()), (Ok(()), Ok(ours)));
        assert!(marker.check(other).unwrap_err().contains(&ours.to_string()));
        for (text, why) in
            [("", "EOF"), ("7", "invalid type"), (r#"{"format":3,"sr":"x"}"#, "format 3")]
        {
            let error = Marker::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let odd = Marker::parse(br#"{"format":1,"sr":"x"}"#).unwrap();
        assert!(odd.sr().unwrap_err().contains("`x` is no UUID"));
    }
}
