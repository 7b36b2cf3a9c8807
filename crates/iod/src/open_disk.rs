//! Opening of the disk that a spec describes.

mod image_journal;
mod reference;
mod tree;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, DiskError, FileDisk, FileOptions, OnFull, SmallBlocks};
use model::spec::{CacheMode, DiskSpec, FileRef};
use rustix::io::Errno;

use tree::TreeOpener;
pub(crate) use tree::{FileState, label};
pub use tree::{LowerImage, Sources, TreeFile};

/// Prefix of the name of a socket without a path: `fd:3`.
pub(crate) const CONNECTED: &str = "fd:";

/// Error: a disk cannot be opened. The text includes the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Error of one of its nodes.
    #[error("{source}{}{next}", if next.is_empty() { "" } else { "; " })]
    Disk {
        /// Cause.
        source: DiskError,
        /// Remedy, if the cause does not name it.
        next: String,
    },
    /// A descriptor of the spec was not handed in.
    #[error(
        "{name} is not among the {count} descriptors that were handed in; send it with the          disk.attach request (SCM_RIGHTS), and check the limit of open files"
    )]
    NotHandedIn {
        /// Descriptor in the spec.
        name: FileRef,
        /// Number of descriptors that were handed in.
        count: usize,
    },
    /// The top of a new tree is a file that the present tree has below its top.
    #[error(
        "{name} is below the top of the present tree, so it is open for reading only; detach the \
         disk and attach it with the new tree"
    )]
    ReadOnlyFile {
        /// The file.
        name: FileRef,
    },
    /// Another process handed over other files than the spec has.
    #[error("the former process handed {count} files over, and the tree has {expected}")]
    HandedOver {
        /// Number of files that were handed over.
        count: usize,
        /// Number of files of the spec.
        expected: usize,
    },
    /// Two names of a tree are those of one file.
    #[error("{first} and {second} are the same file; name each file of a tree once")]
    SameFile {
        /// The upper one.
        first: FileRef,
        /// The lower one.
        second: FileRef,
    },
    /// An image cannot be opened.
    #[error("cannot open the image {name}: {source}")]
    Image {
        /// File of the image.
        name: FileRef,
        /// Cause.
        source: image::ImageError,
    },
    /// An image refers to another one, and the tree does not have it.
    #[error(
        "the image {name} has only a part of its disk: it refers to {reference}; give the image \
         below, too, for example as the backend {tree}"
    )]
    NoBacking {
        /// File of the image.
        name: FileRef,
        /// Name in the reference.
        reference: String,
        /// Tree to give, as JSON.
        tree: String,
    },
    /// There is no memory for the journal of an image.
    #[error("cannot make the journal of the image {name}")]
    Journal {
        /// File of the image.
        name: FileRef,
        /// Cause.
        source: memory::MemoryError,
    },
}

impl OpenError {
    /// Returns the kernel's error number, if the kernel refused.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Disk { source: DiskError::Os { source, .. }, .. } => Some(*source),
            _ => None,
        }
    }
}

impl From<DiskError> for OpenError {
    fn from(source: DiskError) -> Self {
        let next = match &source {
            DiskError::Os { path, source, .. } => next_step(*source, path),
            _ => String::new(),
        };
        Self::Disk { source, next }
    }
}

fn next_step(cause: Errno, path: &Path) -> String {
    match cause {
        Errno::NOENT => {
            format!("check the path, or make the image with `truncate -s 8G {}`", path.display())
        }
        Errno::ACCESS | Errno::PERM => {
            "let this user read and write it, or open it read-only if it may be read".into()
        }
        _ => String::new(),
    }
}

/// Opened disk, with the data that a successor needs.
#[derive(Debug)]
pub struct Opened {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Descriptor of a memory disk's bytes.
    pub memory: Option<Arc<OwnedFd>>,
    /// Descriptor of the journal of the image at the top, if it is written.
    pub journal: Option<Arc<OwnedFd>>,
    /// Files of the tree, top first.
    pub files: Vec<TreeFile>,
    /// Images below the top.
    pub images: Vec<LowerImage>,
    /// Descriptors that were handed in, by their numbers in the spec. A successor opens its files
    /// from them.
    pub handed_in: BTreeMap<u32, OwnedFd>,
    /// Notes for the caller of an attach, with remedies.
    pub notes: Vec<String>,
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

/// Returns the byte of the image that serves as the fence between this process and its successor.
/// Returns `None` if no successor is possible, because the front-end cannot reconnect. Then the
/// writer locks alone must suffice.
pub fn fence(spec: &DiskSpec) -> Option<u64> {
    let socket = &spec.socket;
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

    fn error_text(source: Errno) -> String {
        let path = "/img/a.raw".into();
        OpenError::from(DiskError::Os { action: "open", path, source }).to_string()
    }

    #[test]
    fn disks_meet_their_successors_only() {
        let spec = |id: &str, socket: &str| DiskSpec::new(id, socket, Backend::Null(512));
        let of = |id, socket| fence(&spec(id, socket));
        assert_eq!(of("a", "/s"), of("a", "/s"));
        assert_eq!(of("a", "s"), fence(&spec("a", "s")));
        assert_ne!(of("a", "/s"), of("b", "/s"));
        assert_ne!(of("disk", "/s"), of("disk", "/t"));
        assert_eq!(of("disk", "fd:3"), None);
    }

    #[test]
    fn the_next_step_follows_the_cause() {
        let missing = error_text(Errno::NOENT);
        assert!(missing.starts_with("cannot open /img/a.raw: No such file"), "{missing}");
        let step = "; check the path, or make the image with `truncate -s 8G /img/a.raw`";
        assert!(missing.ends_with(step), "{missing}");
        let forbidden = error_text(Errno::ACCESS);
        assert!(forbidden.contains("denied") && forbidden.contains("read-only"), "{forbidden}");
        // No remedy is appended if there is none.
        let broken = error_text(Errno::IO);
        assert!(broken.ends_with(&Errno::IO.to_string()), "{broken}");
    }
}
