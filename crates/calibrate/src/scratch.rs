//! The file or block device that is measured.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::{Disk, FileDisk, FileOptions, OnFull};
use rustix::fs::{
    Dev, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, fstatvfs, open, unlink,
};
use rustix::io::Errno;

use crate::CalibrateError;
use crate::device::whole_device;
use crate::load::Random;

/// Bytes of the smallest scratch: places of large requests repeat on a smaller one.
const SMALLEST: u64 = 64 << 20;
/// Bytes of a scratch file unless the caller says otherwise.
pub(crate) const USUAL: u64 = 1 << 30;
/// Share of the free space that a scratch file takes at most.
const SHARE: u64 = 4;
/// Bytes that are written together.
const CHUNK: usize = 1 << 20;

/// File or block device that is measured.
#[derive(Debug)]
pub struct Scratch {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// Number of the folder's file system, or of the block device.
    device: Dev,
    size: u64,
    writable: bool,
    is_file: bool,
    /// Has the lock that keeps a second measurement away.
    _lock: OwnedFd,
}

impl Scratch {
    /// Makes a file without a name in the folder at `path` and fills it with random bytes, or opens
    /// the block device at `path`. A block device is written to only with `write`. `size` is the
    /// number of bytes of the file; by default 1 GiB, and a quarter of the free space at most.
    ///
    /// # Errors
    /// The path is a file, the storage is full, read-only, without direct I/O or used by another
    /// process, or `stop` was set.
    pub fn open(
        path: &Path,
        size: Option<u64>,
        write: bool,
        stop: &AtomicBool,
    ) -> Result<Self, CalibrateError> {
        let os = |action| CalibrateError::os(action, path);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let found = open(path, flags, Mode::empty()).map_err(os("open"))?;
        let stat = fstat(&found).map_err(os("inspect"))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let lock = lock_folder(path, &stat)?;
                Self::file(path, (&found, lock), whole_device(stat.st_dev), size, stop)
            }
            FileType::BlockDevice => {
                if flock(&found, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
                {
                    return Err(CalibrateError::Busy { path: path.into() });
                }
                Self::block_device(path, found, whole_device(stat.st_rdev), write)
            }
            _ => Err(CalibrateError::IsFile { path: path.into() }),
        }
    }

    fn file(
        path: &Path,
        (folder, lock): (&OwnedFd, OwnedFd),
        device: Dev,
        size: Option<u64>,
        stop: &AtomicBool,
    ) -> Result<Self, CalibrateError> {
        let space = fstatvfs(folder).map_err(CalibrateError::os("measure the space of", path))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let size = size.unwrap_or(USUAL.min(free / SHARE)) / SMALLEST * SMALLEST;
        if size < SMALLEST || size > free / SHARE {
            return Err(CalibrateError::NoSpace {
                path: path.into(),
                free,
                needed: size.max(SMALLEST),
            });
        }
        let file = unnamed(path).map_err(CalibrateError::os("create a file in", path))?;
        let disk = open_disk(path, file, size, stop)?;
        Ok(Self {
            disk,
            path: path.into(),
            device,
            size,
            writable: true,
            is_file: true,
            _lock: lock,
        })
    }

    fn block_device(
        path: &Path,
        found: OwnedFd,
        device: Dev,
        write: bool,
    ) -> Result<Self, CalibrateError> {
        if write {
            // The kernel refuses a device that is mounted or part of another.
            let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
            open(path, flags, Mode::empty()).map_err(CalibrateError::os("write to", path))?;
        }
        let disk = FileDisk::open(options(path, !write))?;
        let size = disk.geometry().size;
        if size < SMALLEST {
            return Err(CalibrateError::Small { path: path.into(), size, needed: SMALLEST });
        }
        if write {
            disk.wait_fence()?;
            disk.activate()?;
        }
        let disk = Arc::new(disk);
        Ok(Self {
            disk,
            path: path.into(),
            device,
            size,
            writable: write,
            is_file: false,
            _lock: found,
        })
    }

    /// Returns the disk that is measured.
    pub(crate) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Returns the path that the caller gave.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of the whole device below.
    pub(crate) fn device(&self) -> Dev {
        self.device
    }

    /// Returns the number of bytes that are measured.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the number of bytes of the scratch file; 0 for a block device.
    pub fn file_bytes(&self) -> u64 {
        if self.is_file { self.size } else { 0 }
    }

    /// Returns whether writes are measured, too.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}

/// Locks a folder against a second measurement by a process of this host. An advisory lock of the
/// folder would delay its other users, such as the driver of a storage repository. The name of a socket
/// goes with its process, and leaves no file.
fn lock_folder(path: &Path, stat: &Stat) -> Result<OwnedFd, CalibrateError> {
    let name = format!("ringway-calibrate-{}-{}", stat.st_dev, stat.st_ino);
    let socket =
        SocketAddr::from_abstract_name(name).and_then(|address| UnixDatagram::bind_addr(&address));
    match socket {
        Ok(socket) => Ok(socket.into()),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Err(CalibrateError::Busy { path: path.into() })
        }
        Err(error) => Err(CalibrateError::Start(error)),
    }
}

fn options(path: &Path, read_only: bool) -> FileOptions {
    let path = path.to_path_buf();
    FileOptions { path, read_only, direct: true, block_size: None, on_full: OnFull::Error }
}

/// Creates a file without a name.
fn unnamed(folder: &Path) -> Result<OwnedFd, Errno> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    match open(folder, flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let path = folder.join(format!(".ringway-calibrate-{}", std::process::id()));
            let file = open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            unlink(&path)?;
            Ok(file)
        }
        file => file,
    }
}

/// Fills a file with random bytes and opens it for direct I/O.
fn open_disk(
    path: &Path,
    file: OwnedFd,
    size: u64,
    stop: &AtomicBool,
) -> Result<Arc<dyn Disk>, CalibrateError> {
    let file = File::from(file);
    let (mut random, mut chunk) = (Random(size), vec![0; CHUNK]);
    let mut at = 0;
    while at < size {
        if stop.load(Ordering::Relaxed) {
            return Err(CalibrateError::Stopped);
        }
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_ne_bytes());
        }
        let mut part = chunk.as_slice();
        while !part.is_empty() {
            let written = rustix::io::pwrite(&file, part, at);
            let written =
                written.map_err(CalibrateError::os("write a file of random bytes in", path))?;
            at += written as u64;
            part = part.get(written..).unwrap_or_default();
        }
    }
    rustix::fs::fsync(&file)
        .map_err(CalibrateError::os("write a file of random bytes in", path))?;
    // What the page cache has of it would be read from memory.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    let disk = FileDisk::reopen_fd(options(path, false), file.as_fd(), u64::MAX);
    let disk = disk.map_err(|error| match has_direct(&file) {
        true => error.into(),
        false => CalibrateError::NoDirect { path: path.into() },
    })?;
    disk.wait_fence()?;
    disk.activate()?;
    Ok(Arc::new(disk))
}

/// Returns whether the file can be opened for direct I/O.
fn has_direct(file: &File) -> bool {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(path, OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).is_ok()
}
