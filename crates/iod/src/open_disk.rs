//! Opening of the disk that a spec describes.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use disk::{Disk, DiskError, FileDisk, FileOptions, MemoryDisk, NullDisk, OnFull, SmallBlocks};
use model::spec::{Backend, BlockSize, CacheMode, DiskSpec};
use rustix::io::Errno;

/// Prefix of the name of a socket without a path: `fd:3`.
pub(crate) const CONNECTED: &str = "fd:";

/// Error: a disk cannot be opened. The text includes the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{source}{}{next}", if next.is_empty() { "" } else { "; " })]
pub struct OpenError {
    source: DiskError,
    /// Remedy, if the cause does not name it.
    next: String,
}

impl OpenError {
    /// Returns the kernel's error number, if the kernel refused.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match &self.source {
            DiskError::Os { source, .. } => Some(*source),
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
        Self { source, next }
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
    /// The disk, if it is a file or a block device.
    pub image: Option<Arc<FileDisk>>,
    /// Identity of the image file or device.
    pub identity: Option<disk::FileIdentity>,
}

/// Opens the disk that a spec describes. A memory disk with preserved bytes continues with them.
/// Takes no lock and changes nothing.
///
/// # Errors
/// [`OpenError`] names the image, the cause and the remedy.
pub fn open(spec: &DiskSpec, memory: Option<OwnedFd>) -> Result<Opened, OpenError> {
    open_again(spec, memory, None)
}

/// Opens a disk whose guest was told a `size` in bytes. If the image has grown since, the guest
/// sees the growth only after a resize.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_again(
    spec: &DiskSpec,
    memory: Option<OwnedFd>,
    size: Option<u64>,
) -> Result<Opened, OpenError> {
    let block_size = spec.block_bytes().unwrap_or(BlockSize::DEFAULT_BYTES);
    let plain = |disk| Opened { disk, memory: None, image: None, identity: None };
    Ok(match &spec.backend {
        Backend::File(path) => {
            let disk = FileDisk::reopen(options(spec, path), size.unwrap_or(u64::MAX))?;
            let disk = Arc::new(fenced(disk, spec));
            let identity = Some(disk.identity()?);
            let presented = in_blocks(&disk, spec.block_bytes());
            Opened { identity, image: Some(disk), ..plain(presented) }
        }
        Backend::Null(first) => {
            let size = size.unwrap_or(*first);
            plain(Arc::new(NullDisk::new(size, block_size, spec.read_only)))
        }
        Backend::Memory(size) => {
            let disk = match memory {
                Some(held) => MemoryDisk::adopt(held, block_size, spec.read_only)?,
                None => MemoryDisk::new(*size, block_size, spec.read_only)?,
            };
            let memory = Some(Arc::clone(disk.file()));
            Opened { memory, ..plain(Arc::new(disk)) }
        }
    })
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

/// Takes over an image that another process opened by the same spec. Its guest sees `size` bytes in
/// blocks of `block_size` bytes. `lost` is true if a flush of it failed.
///
/// # Errors
/// The image is not what the guest was told.
pub(crate) fn adopt(
    spec: &DiskSpec,
    image: OwnedFd,
    (size, block_size): (u64, u32),
    lost: bool,
) -> Result<Opened, OpenError> {
    let path = match &spec.backend {
        Backend::File(path) => path.as_path(),
        // These disks have no file.
        Backend::Null(_) | Backend::Memory(_) => Path::new(""),
    };
    let block_size = Some(block_size);
    let options = FileOptions { block_size, ..options(spec, path) };
    let disk = Arc::new(fenced(FileDisk::adopt(options, image, size, lost)?, spec));
    let identity = Some(disk.identity()?);
    Ok(Opened { disk: in_blocks(&disk, block_size), memory: None, image: Some(disk), identity })
}

/// Presents an image in blocks of `block_size` bytes, if its own are larger. `None` keeps its own.
fn in_blocks(image: &Arc<FileDisk>, block_size: Option<u32>) -> Arc<dyn Disk> {
    let (own, image) = (image.geometry().block_size, Arc::clone(image));
    match block_size {
        Some(block_size) if block_size < own => Arc::new(SmallBlocks::new(image, block_size)),
        _ => image,
    }
}

fn fenced(disk: FileDisk, spec: &DiskSpec) -> FileDisk {
    match fence(spec) {
        Some(byte) => disk.fenced(byte),
        None => disk,
    }
}

fn options(spec: &DiskSpec, path: &Path) -> FileOptions {
    FileOptions {
        path: path.into(),
        read_only: spec.read_only,
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
