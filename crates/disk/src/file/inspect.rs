//! Type and geometry of an image, and the alignment that its storage needs for direct I/O.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags, fcntl_getfl, fstat, fstatfs,
    ioctl_blksszget, seek, statx,
};
use rustix::io::Errno;

use super::{FileOptions, OnFull};
use crate::DiskError;

/// Block size if the kernel does not report what direct I/O needs: enough for all current devices.
const CAUTIOUS_BLOCK: u32 = 4096;
/// Smallest block size through the page cache: virtio's sector.
const SECTOR: u32 = 512;
/// Largest block size: Linux guests accept no logical block larger than a page.
const LARGEST_BLOCK: u32 = 4096;

/// Largest block of a file system that guests are told as the unit of discards. Network file systems
/// report their transfer size instead.
const LARGEST_GRANULARITY: u32 = 64 << 10;

/// Types of tmpfs and ramfs, whose files are pages in memory and nothing else.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Properties of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageInfo {
    /// Size in bytes.
    pub(crate) size: u64,
    /// Logical block size in bytes.
    pub(crate) block_size: u32,
    /// Bytes in which a discard frees storage.
    pub(crate) discard_granularity: u32,
    /// Alignment of buffers in bytes; 1 through the page cache.
    pub(crate) memory_align: usize,
    /// Alignment of the length of every buffer in bytes; 1 through the page cache.
    pub(crate) length_align: usize,
    /// True for a block device.
    pub(crate) is_block_device: bool,
    /// True for a file on tmpfs or ramfs.
    pub(crate) is_in_memory: bool,
}

/// Identity of a file or device, independent of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Number of the block device, or of the file system that contains the file.
    pub device: u64,
    /// Inode number of the file; 0 for a block device.
    pub inode: u64,
    /// Creation time in nanoseconds since 1970, if the file system reports it. It is needed because
    /// the inode number of a removed file is reused.
    pub born_ns: Option<u64>,
}

/// Returns the identity of the file behind `fd`.
pub(crate) fn identity(fd: BorrowedFd<'_>) -> Result<FileIdentity, Errno> {
    let stat = fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        return Ok(FileIdentity { device: stat.st_rdev, inode: 0, born_ns: None });
    }
    let found = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
    let reported = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let born_ns =
        u64::try_from(found.stx_btime.tv_sec).ok().filter(|_| reported).and_then(|seconds| {
            seconds.checked_mul(1_000_000_000)?.checked_add(found.stx_btime.tv_nsec.into())
        });
    Ok(FileIdentity { device: stat.st_dev, inode: stat.st_ino, born_ns })
}

/// Finds the file at the path in `options`, without opening it for I/O.
pub(super) fn find(options: &FileOptions) -> Result<OwnedFd, DiskError> {
    let path = &options.path;
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|source| DiskError::Os { action: "open", path: path.clone(), source })
}

/// Checks that a descriptor that was handed in is open for what `options` need.
pub(super) fn check_access(options: &FileOptions, fd: BorrowedFd<'_>) -> Result<(), DiskError> {
    let path = options.path.clone();
    let flags = fcntl_getfl(fd).map_err(|source| DiskError::Os {
        action: "inspect",
        path: path.clone(),
        source,
    })?;
    let access = flags & OFlags::ACCMODE;
    let (needed, remedy) = if flags.contains(OFlags::PATH) || access == OFlags::WRONLY {
        ("reading", "give its path")
    } else if !options.read_only && access != OFlags::RDWR {
        ("writing", "attach the disk read-only")
    } else {
        return Ok(());
    };
    Err(DiskError::Access { path, needed, remedy })
}

/// Opens an image through the page cache, whatever its size and format.
///
/// # Errors
/// The path is neither a file nor a block device, or a system call failed.
pub fn open_image(path: &Path, read_only: bool) -> Result<OwnedFd, DiskError> {
    let on_full = OnFull::Error;
    let options =
        FileOptions { path: path.into(), read_only, direct: false, block_size: None, on_full };
    let found = find(&options)?;
    open_checked(&options, found.as_fd()).map(|(fd, _)| fd)
}

/// Opens the found file if it is a file or a block device. Returns true for a device.
fn open_checked(
    options: &FileOptions,
    found: BorrowedFd<'_>,
) -> Result<(OwnedFd, bool), DiskError> {
    let path = &options.path;
    let os = |action| {
        let path = path.clone();
        move |source| DiskError::Os { action, path, source }
    };
    // Check the type before the real open: opening a FIFO would wait, and a device may act on it.
    let kind = FileType::from_raw_mode(fstat(found).map_err(os("inspect"))?.st_mode);
    let is_block_device = match kind {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        other => return Err(DiskError::WrongType { path: path.clone(), what: name_of(other) }),
    };
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let direct = if options.direct { OFlags::DIRECT } else { OFlags::empty() };
    let reopen_path = format!("/proc/self/fd/{}", found.as_raw_fd());
    match rustix::fs::open(
        Path::new(&reopen_path),
        access | direct | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        Ok(fd) => Ok((fd, is_block_device)),
        Err(Errno::INVAL) if options.direct => Err(DiskError::NoDirectIo { path: path.clone() }),
        Err(source) => Err(os(if options.read_only { "read" } else { "write" })(source)),
    }
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "no file",
    }
}

/// Opens a found image and reads its geometry. Of a larger image, only the first `at_most` bytes
/// count.
pub(crate) fn open(
    options: &FileOptions,
    found: BorrowedFd<'_>,
    at_most: u64,
) -> Result<(OwnedFd, ImageInfo), DiskError> {
    let path = &options.path;
    let (fd, is_block_device) = open_checked(options, found)?;
    let found = size(fd.as_fd()).map_err(|source| DiskError::Os {
        action: "measure",
        path: path.clone(),
        source,
    })?;
    let size = found.min(at_most);
    if size == 0 {
        return Err(DiskError::Empty { path: path.clone() });
    }
    let image_info = examine(options, fd.as_fd(), is_block_device, size)?;
    Ok((fd, image_info))
}

/// Inspects an image that another process has opened with these options. The guest's disk is the
/// first `size` bytes.
pub(super) fn inspect_fd(
    options: &FileOptions,
    fd: BorrowedFd<'_>,
    size: u64,
) -> Result<ImageInfo, DiskError> {
    let path = &options.path;
    let os = |action| {
        let path = path.clone();
        move |source| DiskError::Os { action, path, source }
    };
    let kind = FileType::from_raw_mode(fstat(fd).map_err(os("inspect"))?.st_mode);
    let is_block_device = match kind {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        other => return Err(DiskError::WrongType { path: path.clone(), what: name_of(other) }),
    };
    let found = self::size(fd).map_err(os("measure"))?;
    if found < size || size == 0 {
        return Err(DiskError::Shrunk { path: path.clone(), found, size });
    }
    examine(options, fd, is_block_device, size)
}

fn examine(
    options: &FileOptions,
    fd: BorrowedFd<'_>,
    is_block_device: bool,
    size: u64,
) -> Result<ImageInfo, DiskError> {
    let path = &options.path;
    let (needed, memory_align) =
        if options.direct { direct_io_needs(fd, is_block_device) } else { (SECTOR, 1) };
    if needed > LARGEST_BLOCK {
        return Err(DiskError::NoDirectIo { path: path.clone() });
    }
    let block_size = options.block_size.map_or(needed, |wanted| wanted.max(needed));
    let odd = size % u64::from(block_size);
    if odd != 0 {
        let next = size - odd + u64::from(block_size);
        return Err(DiskError::OddSize { path: path.clone(), size, block_size, next });
    }
    // Kernels before 6.18 require whole blocks in every piece, not only in the sum.
    let length_align = if options.direct { needed as usize } else { 1 };
    let found = if is_block_device { None } else { fstatfs(fd).ok() };
    // The field has other widths on other hosts. The number fits in 32 bits on all of them.
    let is_in_memory = found.is_some_and(|found| IN_MEMORY.contains(&(found.f_type as u32)));
    let fs_block = found.and_then(|found| u32::try_from(found.f_bsize).ok());
    let discard_granularity = fs_block
        .filter(|bytes| bytes.is_power_of_two() && *bytes <= LARGEST_GRANULARITY)
        .map_or(CAUTIOUS_BLOCK, |bytes| bytes.max(CAUTIOUS_BLOCK));
    Ok(ImageInfo {
        size,
        block_size,
        discard_granularity,
        memory_align,
        length_align,
        is_block_device,
        is_in_memory,
    })
}

/// Returns the size of a file up to its last whole block of 4,096 bytes, which is enough for every
/// storage. Fails for a smaller file.
pub(super) fn whole_blocks(options: &FileOptions, fd: BorrowedFd<'_>) -> Result<u64, DiskError> {
    let os = |source| DiskError::Os { action: "inspect", path: options.path.clone(), source };
    let found = fstat(fd).map_err(os)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    let size = u64::try_from(found.st_size).unwrap_or(0);
    if is_file && size < u64::from(LARGEST_BLOCK) {
        let problem = match size {
            0 => "it is empty".to_owned(),
            _ => format!(
                "it has {size} bytes, fewer than a block of {LARGEST_BLOCK}; if it is a whole image, \
                 grow it with `truncate -s {LARGEST_BLOCK} {}`",
                options.path.display()
            ),
        };
        return Err(DiskError::Image { path: options.path.clone(), problem });
    }
    Ok(if is_file { size - size % u64::from(LARGEST_BLOCK) } else { u64::MAX })
}

/// Returns the size of a file or block device in bytes.
pub(crate) fn size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    seek(fd, SeekFrom::End(0))
}

/// Returns the alignment of offsets and of memory, in bytes.
fn direct_io_needs(fd: BorrowedFd<'_>, is_block_device: bool) -> (u32, usize) {
    // An empty path with EMPTY_PATH queries the descriptor itself.
    if let Ok(found) = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        let reported = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN);
        if reported && found.stx_dio_offset_align.is_power_of_two() {
            let block = found.stx_dio_offset_align.max(SECTOR);
            return (block, found.stx_dio_mem_align.max(1) as usize);
        }
    }
    if is_block_device && let Ok(sector) = ioctl_blksszget(fd) {
        return (sector.max(SECTOR), sector.max(SECTOR) as usize);
    }
    (CAUTIOUS_BLOCK, CAUTIOUS_BLOCK as usize)
}
