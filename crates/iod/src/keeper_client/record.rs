//! Preserved record of a disk, read by a worker that may have another version.

use model::spec::{Backend, DiskSpec};
use serde::Deserialize;
use serde_json::Value;

use super::{HELD_FORMAT, PreservedDisk};

/// Preserved disk.
#[derive(Clone, Debug)]
pub(crate) enum PreservedDiskRecord {
    /// The disk can be restored.
    Known(PreservedDisk),
    /// A newer program wrote the record, or it is broken. The disk can only be detached.
    Novel {
        /// The understood part of the record, for reports.
        preserved_disk: PreservedDisk,
        /// Reason why the disk is not restored, and the remedy.
        reason: String,
    },
}

impl PreservedDiskRecord {
    /// Decodes the entry of this id.
    pub(super) fn read(id: &str, data: &Value) -> Self {
        let format = data.get("format").map_or(Some(1), Value::as_u64);
        let reason = match format {
            Some(format) if format <= HELD_FORMAT.into() => {
                match serde_json::from_value(data.clone()) {
                    Ok(preserved_disk) => return Self::Known(preserved_disk),
                    Err(error) => format!("the preserved record cannot be decoded: {error}"),
                }
            }
            Some(format) => format!(
                "the preserved record has format {format}, and this program reads up to \
                 {HELD_FORMAT}"
            ),
            None => "the preserved record has no format".into(),
        };
        let reason = format!(
            "{reason}; upgrade to the version that wrote it (ringway-io upgrade), or detach the disk"
        );
        Self::Novel { preserved_disk: glimpse(id, data), reason }
    }

    /// Returns the understood part of the record.
    pub(crate) fn held(&self) -> &PreservedDisk {
        match self {
            Self::Known(preserved_disk) | Self::Novel { preserved_disk, .. } => preserved_disk,
        }
    }
}

/// Decodes the understood part of a record that cannot be decoded as a whole.
fn glimpse(id: &str, data: &Value) -> PreservedDisk {
    let spec = data.get("spec").unwrap_or(&Value::Null);
    let backend = part(spec, "backend").unwrap_or(Backend::Null(0));
    let partial =
        DiskSpec { socket: part(spec, "socket"), ..DiskSpec::without_socket(id, backend) };
    let whole = serde_json::from_value(spec.clone());
    PreservedDisk {
        format: HELD_FORMAT,
        spec: DiskSpec { id: id.into(), ..whole.unwrap_or(partial) },
        active: false,
        paused: false,
        leaving: false,
        size: part(data, "size"),
        block_size: part(data, "block_size"),
        identity: None,
        identities: Vec::new(),
        exports: Vec::new(),
    }
}

fn part<T: for<'a> Deserialize<'a>>(of: &Value, name: &str) -> Option<T> {
    serde_json::from_value(of.get(name)?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of each format, written when that format was the newest.
    const PLAIN: &str = include_str!("../../tests/fixtures/preserved-disk-1.json");
    const TREE: &str = include_str!("../../tests/fixtures/preserved-disk-2.json");

    #[test]
    fn every_recorded_format_is_read_and_written_byte_for_byte() {
        for (text, format, files) in [(PLAIN, 1, 1), (TREE, 2, 2)] {
            let data = serde_json::from_str(text).unwrap();
            let PreservedDiskRecord::Known(disk) = PreservedDiskRecord::read("d1", &data) else {
                panic!("{text}")
            };
            assert_eq!(serde_json::to_string_pretty(&disk).unwrap() + "\n", text);
            assert_eq!(PreservedDisk::format_of(&disk.spec), format);
            assert_eq!(disk.file_identities().len(), files);
        }
    }

    #[test]
    fn a_disk_without_a_socket_is_none_of_a_worker_that_knows_the_first_format_alone() {
        let mut data: Value = serde_json::from_str(PLAIN).unwrap();
        data["spec"].as_object_mut().unwrap().remove("socket").unwrap();
        let read = PreservedDiskRecord::read("d1", &data);
        assert_eq!(read.held().spec.socket, None);
        assert_eq!(PreservedDisk::format_of(&read.held().spec), HELD_FORMAT);
        data["format"] = (HELD_FORMAT + 1).into();
        assert_eq!(PreservedDiskRecord::read("d1", &data).held().spec.socket, None);
    }

    #[test]
    fn a_tree_from_the_future_is_shown_as_far_as_it_is_known() {
        let read = |text: &str| {
            PreservedDiskRecord::read("d1", &serde_json::from_str(text).unwrap()).held().clone()
        };
        let future = TREE.replace("\"format\": 2", "\"format\": 3");
        assert_eq!(
            read(&future).spec.backend.to_string(),
            "fd:3 over 8388608 bytes at 1048576 of /img/a.raw"
        );
        let novel = future.replace("\"raw\"", "\"novel\"");
        assert_eq!(read(&novel).spec.backend, Backend::Null(0));
        assert_eq!(read(&novel).size, Some(1 << 20));
    }
}
