//! What is held of a disk, read again by a worker that may be of another version.

use std::path::PathBuf;

use model::spec::{Backend, DiskSpec};
use serde::Deserialize;
use serde_json::Value;

use super::{HELD_FORMAT, PreservedDisk};

/// A disk that is held.
#[derive(Clone, Debug)]
pub(crate) enum PreservedDiskRecord {
    /// It can be brought back.
    Known(PreservedDisk),
    /// It was written by a newer program, or is broken: nothing is done to it but to forget it.
    Novel {
        /// As much of it as is understood, to be shown.
        preserved_disk: PreservedDisk,
        /// Why it is not brought back, and what can be done.
        reason: String,
    },
}

impl PreservedDiskRecord {
    /// What is held under an id.
    pub(super) fn read(id: &str, data: &Value) -> Self {
        let format = data.get("format").map_or(Some(1), Value::as_u64);
        let reason = match format {
            Some(format) if format <= HELD_FORMAT.into() => {
                match serde_json::from_value(data.clone()) {
                    Ok(preserved_disk) => return Self::Known(preserved_disk),
                    Err(error) => format!("what is held of it cannot be understood: {error}"),
                }
            }
            Some(format) => format!(
                "what is held of it has format {format}, and this program reads up to {HELD_FORMAT}"
            ),
            None => "what is held of it has no format".into(),
        };
        let reason = format!(
            "{reason}; upgrade to the version that wrote it (ringway-io upgrade), or detach the disk"
        );
        Self::Novel { preserved_disk: glimpse(id, data), reason }
    }

    /// What is to be known of it.
    pub(crate) fn held(&self) -> &PreservedDisk {
        match self {
            Self::Known(preserved_disk) | Self::Novel { preserved_disk, .. } => preserved_disk,
        }
    }
}

/// As much as can be seen of a disk that is not understood as a whole.
fn glimpse(id: &str, data: &Value) -> PreservedDisk {
    let spec = data.get("spec").unwrap_or(&Value::Null);
    let backend = part(spec, "backend").unwrap_or(Backend::Null(0));
    let socket: PathBuf = part(spec, "socket").unwrap_or_default();
    let whole = serde_json::from_value(spec.clone());
    PreservedDisk {
        format: HELD_FORMAT,
        spec: DiskSpec {
            id: id.into(),
            ..whole.unwrap_or_else(|_| DiskSpec::new(id, socket, backend))
        },
        active: false,
        paused: false,
        leaving: false,
        size: part(data, "size"),
        identity: None,
        exports: Vec::new(),
    }
}

fn part<T: for<'a> Deserialize<'a>>(of: &Value, name: &str) -> Option<T> {
    serde_json::from_value(of.get(name)?.clone()).ok()
}
