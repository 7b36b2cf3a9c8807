//! Opening of the disk that a spec describes.

mod error;
mod image_journal;
mod model_storage;
mod open_tree;
mod overlay_memory;
mod reference;
mod storage_disks;
mod tree;

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use disk::{Disk, FileDisk, FileOptions, OnFull, SmallBlocks};
use model::spec::{CacheMode, DiskSpec};

pub use error::OpenError;
pub(crate) use open_tree::OpenTree;
pub(crate) use storage_disks::{StorageDisks, share_storages_in, use_profile};
use tree::TreeOpener;
pub(crate) use tree::{FileState, label};
pub use tree::{LowerImage, Sources, TreeFile};

/// Prefix of the name of a socket without a path: `fd:3`.
pub(crate) const CONNECTED: &str = "fd:";

/// Opened disk.
#[derive(Debug)]
pub struct Opened {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Its tree, with the data that a successor needs.
    pub(crate) tree: OpenTree,
    /// Reason not to attach the disk. A disk that is served goes on: its image may be about to lose
    /// the reference.
    pub refusal: Option<OpenError>,
}

/// Opens the disk that a spec describes, with all files of its tree. A memory disk with preserved
/// bytes continues with them. Takes no lock and changes nothing.
///
/// # Errors
/// [`OpenError`] names the image, the cause and the remedy.
pub fn open(spec: &DiskSpec, sources: Sources) -> Result<Opened, OpenError> {
    open_again(spec, sources, None)
}

/// Opens a disk whose guest was told a `size` in bytes. If the image has grown since, the guest
/// sees the growth only after a resize.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_again(
    spec: &DiskSpec,
    sources: Sources,
    size: Option<u64>,
) -> Result<Opened, OpenError> {
    TreeOpener::new(spec, sources).open(size)
}

/// Returns the byte of the image that serves as the fence between this process and its successor. A
/// disk without a socket is known to its successor by its id alone. Returns `None` if no successor is
/// possible, because the front-end cannot reconnect. Then the writer locks alone must suffice.
pub fn fence(spec: &DiskSpec) -> Option<u64> {
    let Some(socket) = &spec.socket else { return Some(disk::fence_byte(&spec.id, &[])) };
    if socket.as_os_str().as_bytes().starts_with(CONNECTED.as_bytes()) {
        return None;
    }
    let whole = std::path::absolute(socket).unwrap_or_else(|_| socket.clone());
    Some(disk::fence_byte(&spec.id, whole.as_os_str().as_bytes()))
}

/// Takes over a disk that another process opened by the same spec, with its open files, top first.
///
/// # Errors
/// A file is not what the other process told, or their number is wrong.
pub(crate) fn adopt(
    spec: &DiskSpec,
    sources: Sources,
    open_files: Vec<(OwnedFd, FileState)>,
) -> Result<Opened, OpenError> {
    let (count, expected) = (open_files.len(), spec.backend.files().count());
    if count != expected {
        return Err(OpenError::HandedOver { count, expected });
    }
    TreeOpener::of_open_files(spec, sources, open_files).open(None)
}

/// Presents a disk in blocks of `block_size` bytes, if its own are larger. `None` keeps its own.
fn in_blocks(disk: Arc<dyn Disk>, block_size: Option<u32>) -> Arc<dyn Disk> {
    match block_size {
        Some(block_size) if block_size < disk.geometry().block_size => {
            Arc::new(SmallBlocks::new(disk, block_size))
        }
        _ => disk,
    }
}

fn fenced(disk: FileDisk, spec: &DiskSpec) -> FileDisk {
    match fence(spec) {
        Some(byte) => disk.fenced(byte),
        None => disk,
    }
}

fn options(spec: &DiskSpec, path: PathBuf, read_only: bool) -> FileOptions {
    FileOptions {
        path,
        read_only,
        direct: spec.cache == CacheMode::None,
        block_size: spec.block_bytes(),
        on_full: match spec.on_full {
            model::spec::OnFull::Wait => OnFull::Wait,
            model::spec::OnFull::Error => OnFull::Error,
        },
    }
}

/// Converts a disk's geometry for reports.
pub fn reported(geometry: disk::Geometry) -> model::report::Geometry {
    model::report::Geometry {
        size_bytes: geometry.size,
        block_size: geometry.block_size,
        read_only: geometry.read_only,
    }
}

#[cfg(test)]
mod tests {
    use model::spec::Backend;

    use super::*;

    #[test]
    fn disks_meet_their_successors_only() {
        let spec = |id: &str, socket: &str| DiskSpec::new(id, socket, Backend::Null(512));
        let of = |id, socket| fence(&spec(id, socket));
        assert_eq!(of("a", "/s"), of("a", "/s"));
        assert_eq!(of("a", "s"), fence(&spec("a", "s")));
        assert_ne!(of("a", "/s"), of("b", "/s"));
        assert_ne!(of("disk", "/s"), of("disk", "/t"));
        assert_eq!(of("disk", "fd:3"), None);
        let without = |id: &str| fence(&DiskSpec::without_socket(id, Backend::Null(512)));
        assert!(without("a").is_some());
        assert_ne!(without("a"), without("b"));
        assert_ne!(without("a"), of("a", "/s"));
    }
}
