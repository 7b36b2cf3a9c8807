//! Errors of opening.

use std::path::Path;

use disk::DiskError;
use model::spec::FileRef;
use rustix::io::Errno;

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
        "{name} is not among the {count} descriptors that were handed in; send it with the \
         disk.attach request (SCM_RIGHTS), and check the limit of open files"
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
    /// A raw image whose size is not that of a disk begins like another image.
    #[error("{name} is no raw image: it {advice}")]
    NoRawImage {
        /// The file.
        name: FileRef,
        /// Format that the first bytes of the file show, with the remedy.
        advice: String,
    },
    /// A file that is to be served as a raw image for the first time begins like another image.
    #[error(
        "{name} {advice}; if it is a raw disk whose guest has written that, state it: format=raw \
         (ringway-blk: --format raw)"
    )]
    FormatNotStated {
        /// The file.
        name: FileRef,
        /// Format that the first bytes of the file show, with the remedy.
        advice: String,
    },
    /// Two names of a tree are those of one file.
    #[error("{first} and {second} are the same file; name each file of a tree once")]
    SameFile {
        /// The upper one.
        first: FileRef,
        /// The lower one.
        second: FileRef,
    },
    /// A model of a storage device cannot be made, or is another one.
    #[error("the model {name}: {problem}")]
    Model {
        /// Name of the model.
        name: String,
        /// Problem with its remedy.
        problem: String,
    },
    /// The host has too little memory for an overlay.
    #[error(
        "the overlay wants {ram} bytes of memory, and the host has {room} left beside {promised} that \
         other overlays may still take; give less ram and an overflow file"
    )]
    OverlayMemory {
        /// Memory of the overlay in bytes.
        ram: u64,
        /// Bytes that it may have.
        room: u64,
        /// Bytes that other overlays of the process may still take.
        promised: u64,
    },
    /// A golden image cannot be opened.
    #[error(transparent)]
    Golden(#[from] golden::GoldenError),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn error_text(source: Errno) -> String {
        let path = "/img/a.raw".into();
        OpenError::from(DiskError::Os { action: "open", path, source }).to_string()
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
