//! Meaning of the descriptors in a disk's preserved entry.

use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::{PreservedDisk, PreservedFds};
use crate::keeper_link::PreservedEntry;
use crate::open_disk::Sources;

/// Field of the record that says what each descriptor is.
const FIELD: &str = "fds";

/// Meaning of a descriptor. In the record: `"memory"`, `"journal"`, `"overlay"`, or `"file:3"` for
/// `{"fd":3}` of the spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
enum FdRole {
    /// Bytes of a memory disk.
    Memory,
    /// Journal of the image at the top.
    Journal,
    /// Writes of an overlay.
    Overlay,
    /// File that was handed in under this number.
    File(u32),
}

impl From<FdRole> for String {
    fn from(role: FdRole) -> Self {
        match role {
            FdRole::Memory => "memory".into(),
            FdRole::Journal => "journal".into(),
            FdRole::Overlay => "overlay".into(),
            FdRole::File(number) => format!("file:{number}"),
        }
    }
}

impl TryFrom<String> for FdRole {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = text.strip_prefix("file:").and_then(|number| number.parse().ok());
        match number {
            Some(number) => Ok(Self::File(number)),
            None if text == "memory" => Ok(Self::Memory),
            None if text == "journal" => Ok(Self::Journal),
            None if text == "overlay" => Ok(Self::Overlay),
            None => Err(format!("{text:?} is no descriptor of a disk")),
        }
    }
}

impl PreservedFds {
    /// Returns the keeper's entry of a disk.
    pub(super) fn entry(
        self,
        preserved_disk: &PreservedDisk,
    ) -> serde_json::Result<PreservedEntry> {
        let Self { listener, sources, exports } = self;
        let memory = sources.memory.map(|fd| (FdRole::Memory, fd));
        let files = sources.files.into_iter().map(|(number, fd)| (FdRole::File(number), fd));
        let journal = sources.journal.map(|fd| (FdRole::Journal, fd));
        let overlay = sources.overlay.map(|fd| (FdRole::Overlay, fd));
        let (roles, fds): (Vec<FdRole>, Vec<OwnedFd>) =
            memory.into_iter().chain(journal).chain(overlay).chain(files).unzip();
        let mut data = serde_json::to_value(preserved_disk)?;
        if let Some(fields) = data.as_object_mut()
            && !roles.is_empty()
        {
            fields.insert(FIELD.into(), serde_json::to_value(roles)?);
        }
        let sockets = listener.into_iter().chain(exports).collect();
        let stop_ms = preserved_disk.spec.stop_deadline_ms;
        Ok(PreservedEntry { sockets, data, fds, stop_ms })
    }

    /// Returns the descriptors of a disk's entry. Older workers do not record what they are; all of
    /// theirs are bytes of memory disks.
    ///
    /// # Errors
    /// The record does not match the descriptors.
    pub(crate) fn read(preserved_entry: PreservedEntry) -> io::Result<Self> {
        let PreservedEntry { sockets, data, fds, .. } = preserved_entry;
        let roles = match data.get(FIELD) {
            None => vec![FdRole::Memory; fds.len().min(1)],
            Some(roles) => Vec::<FdRole>::deserialize(roles)?,
        };
        if roles.len() != fds.len() {
            let (named, came) = (roles.len(), fds.len());
            return Err(io::Error::other(format!(
                "the preserved record names {named} descriptors and came with {came}; detach the \
                 disk and attach it again"
            )));
        }
        let mut sources = Sources::default();
        for (role, fd) in roles.into_iter().zip(fds) {
            match role {
                FdRole::Memory => sources.memory = Some(fd),
                FdRole::Journal => sources.journal = Some(fd),
                FdRole::Overlay => sources.overlay = Some(fd),
                FdRole::File(number) => {
                    sources.files.insert(number, fd);
                }
            }
        }
        let mut sockets = sockets.into_iter();
        // Without a socket of the disk, all are those of its exports.
        let listens = !data["spec"]["socket"].is_null();
        let listener = if listens { sockets.next() } else { None };
        Ok(Self { listener, sources, exports: sockets.collect() })
    }
}

#[cfg(test)]
mod tests {
    use model::spec::{Backend, DiskSpec};
    use serde_json::json;
    use vhost_user::{Access, Listener};

    use super::*;

    fn file(bytes: u64) -> OwnedFd {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        file.into()
    }

    fn size(fd: &OwnedFd) -> i64 {
        rustix::fs::fstat(fd).unwrap().st_size
    }

    #[test]
    fn the_record_tells_what_each_descriptor_is() {
        let preserved_disk: PreservedDisk = serde_json::from_value(json!({
            "spec": DiskSpec::new("d", "/s", Backend::Memory(512)), "active": true,
        }))
        .unwrap();
        let files = [(7, file(7)), (3, file(3))].into();
        let sources = Sources {
            memory: Some(file(1)),
            journal: Some(file(2)),
            overlay: Some(file(4)),
            files,
            ..Sources::default()
        };
        let fds = PreservedFds { sources, ..PreservedFds::default() };
        let entry = fds.entry(&preserved_disk).unwrap();
        assert_eq!(entry.data["fds"], json!(["memory", "journal", "overlay", "file:3", "file:7"]));
        let Sources { memory, journal, overlay, files, .. } =
            PreservedFds::read(entry).unwrap().sources;
        let sizes = [&memory, &journal, &overlay].map(|fd| fd.as_ref().map(size));
        assert_eq!(sizes, [Some(1), Some(2), Some(4)]);
        let files: Vec<_> = files.iter().map(|(number, fd)| (*number, size(fd))).collect();
        assert_eq!(files, [(3, 3), (7, 7)]);
        // A disk without descriptors has the record that it always had.
        let entry = PreservedFds::default().entry(&preserved_disk).unwrap();
        assert_eq!(entry.data, serde_json::to_value(&preserved_disk).unwrap());
    }

    #[test]
    fn the_first_socket_is_that_of_the_disk_if_it_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let listen = |name: &str| Listener::bind(&folder.path().join(name), &Access::default());
        let (one, other) = (listen("1").unwrap(), listen("2").unwrap());
        let with = DiskSpec::new("d", folder.path().join("1"), Backend::Memory(512));
        let without = DiskSpec::without_socket("d", Backend::Memory(512));
        for (spec, listener, exports) in
            [(with, Some(&one), &[&other][..]), (without, None, &[&one, &other])]
        {
            let preserved: PreservedDisk =
                serde_json::from_value(json!({"spec": spec, "active": false})).unwrap();
            let fds = PreservedFds {
                listener: listener.map(|one| one.parts().unwrap()),
                exports: exports.iter().map(|one| one.parts().unwrap()).collect(),
                ..PreservedFds::default()
            };
            let read = PreservedFds::read(fds.entry(&preserved).unwrap()).unwrap();
            assert_eq!(
                read.listener.map(|parts| parts.path),
                listener.map(|one| one.path().into())
            );
            let found: Vec<_> = read.exports.iter().map(|parts| parts.path.as_path()).collect();
            assert_eq!(found, exports.iter().map(|one| one.path()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_record_of_a_former_version_has_memory_alone() {
        let entry = |data, fds| PreservedEntry { data, fds, ..PreservedEntry::default() };
        let read = |data, fds| PreservedFds::read(entry(data, fds)).map(|fds| fds.sources);
        let sources = read(json!({}), vec![file(5)]).unwrap();
        assert_eq!((sources.memory.as_ref().map(size), sources.files.len()), (Some(5), 0));
        assert!(read(json!({}), vec![]).unwrap().memory.is_none());
        for odd in
            [json!([]), json!(["memory", "file:1"]), json!(["file:x"]), json!(["disk"]), json!(1)]
        {
            assert!(read(json!({"fds": odd}), vec![file(1)]).is_err(), "{odd}");
        }
    }
}
