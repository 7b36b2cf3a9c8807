//! Overflow file: places for granules that do not fit into memory.
//!
//! The first 4 KiB are a header: a magic and a number. Memory that knows the number uses the file; any
//! other memory finds nothing in it, and begins the file anew. A file without the magic is refused, so
//! that a wrong path costs no data.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::disk::{DiskError, FileDisk, MetadataOp};
use image::NewFile;
use rustix::fs::{FallocateFlags, FileType, fallocate, fstat, fstatvfs, ftruncate};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use crate::places::Run;
use crate::{BYTES, GRANULE};

/// Bytes of the header of an overflow file.
pub const HEADER_BYTES: usize = BYTES;
/// First bytes of the header.
const MAGIC: [u8; 16] = *b"ringway-overflow";

/// Creates an overflow file that nothing uses yet.
///
/// # Errors
/// The path exists, its folder does not, or the storage fails.
pub fn create_file(path: &Path) -> io::Result<()> {
    let file = NewFile::create(path)?;
    let header = header(0);
    let mut left = &header[..];
    while !left.is_empty() {
        let done = header.len() - left.len();
        let count = retry_on_intr(|| pwrite(file.fd(), left, done as u64))?;
        left = left.get(count..).unwrap_or_default();
    }
    file.publish()
}

fn header(id: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    for (to, from) in bytes.iter_mut().zip(MAGIC.into_iter().chain(id.to_le_bytes())) {
        *to = from;
    }
    bytes
}

/// Buffer of whole granules, aligned for direct I/O.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedBytes {
    pub(crate) fn new(granules: usize) -> Self {
        let bytes = vec![0; (granules + 1) * BYTES];
        let start = bytes.as_ptr().addr().wrapping_neg() % BYTES;
        Self { bytes, start }
    }

    /// Returns the granule at an index, or none.
    pub(crate) fn granule(&mut self, index: usize) -> &mut [u8] {
        let start = self.start + index * BYTES;
        self.bytes.get_mut(start..start + BYTES).unwrap_or_default()
    }

    fn get(&self, granules: usize) -> &[u8] {
        self.bytes.get(self.start..self.start + granules * BYTES).unwrap_or_default()
    }
}

/// Overflow file of a disk.
#[derive(Debug)]
pub(crate) struct Overflow {
    pub(crate) disk: Arc<FileDisk>,
    path: PathBuf,
    fd: Arc<OwnedFd>,
    is_device: bool,
    /// Most places, with the header, by the options of the disk.
    places_max: u64,
}

/// Reads the number in a header.
fn id_of(header: &[u8]) -> u64 {
    let bytes = header.get(MAGIC.len()..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Overflow {
    pub(crate) fn new(
        disk: Arc<FileDisk>,
        path: PathBuf,
        size_max: Option<u64>,
    ) -> Result<Self, DiskError> {
        let fd = Arc::clone(disk.handover().0);
        let found = fstat(&fd).map_err(DiskError::os("inspect", &path))?;
        let is_device = FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice;
        let places_max = size_max.map_or(u64::MAX, |size| size / GRANULE);
        Ok(Self { disk, path, fd, is_device, places_max })
    }

    /// Checks that the file is an overflow file, and the one of this memory if `id` is not 0. The disk
    /// is locked.
    pub(crate) fn check(&self, id: u64) -> Result<(), DiskError> {
        let mut bytes = AlignedBytes::new(1);
        let out = bytes.granule(0);
        let count = retry_on_intr(|| pread(&*self.fd, &mut *out, 0));
        let count = count.map_err(DiskError::os("read", &self.path))?;
        let found = out.get(..count).unwrap_or_default();
        let problem = if id != 0 && found != header(id) {
            "it is not the overflow file that this disk has written; detach the disk, which loses \
             what its guest has written, and attach it again"
        } else if found.starts_with(&MAGIC) || self.is_device && found.iter().all(|b| *b == 0) {
            if id == 0 && id_of(found) != 0 {
                let path = self.path.display();
                tracing::info!(
                    "{path} has writes of an overlay that has ended: they are discarded"
                );
            }
            return Ok(());
        } else {
            "it contains data and is no overflow file; give the path of a new file, or clear the \
             first 4096 bytes of the device"
        };
        Err(DiskError::Image { path: self.path.clone(), problem: problem.into() })
    }

    /// Begins the file anew under a number. Its former contents are given back.
    pub(crate) fn begin(&self, id: u64) -> io::Result<()> {
        if !self.is_device {
            ftruncate(&*self.fd, GRANULE)?;
        }
        let mut bytes = AlignedBytes::new(1);
        bytes.granule(0).copy_from_slice(&header(id));
        self.write(0, &bytes, 1).map(drop)
    }

    /// Writes granules to a run of places. Returns how many were written before the storage failed or
    /// was full, at least one. May wait for the storage.
    pub(crate) fn write(
        &self,
        place: u64,
        bytes: &AlignedBytes,
        granules: usize,
    ) -> io::Result<usize> {
        let (data, mut done) = (bytes.get(granules), 0);
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let at = place * GRANULE + done as u64;
            match retry_on_intr(|| pwrite(&*self.fd, rest, at)) {
                Ok(count) if count > 0 => done += count,
                _ if done >= BYTES => break,
                // The end of a device.
                Ok(_) => return Err(Errno::NOSPC.into()),
                Err(error) => return Err(error.into()),
            }
        }
        self.disk.charge_metadata(MetadataOp::Write(done as u64));
        Ok(done / BYTES)
    }

    /// Gives the space of a run of places back, as far as the file system can do that.
    pub(crate) fn punch(&self, run: Run) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&*self.fd, flags, run.first * GRANULE, run.len * GRANULE)?;
        Ok(())
    }

    /// Returns whether the file can give space back.
    pub(crate) fn can_punch(&self) -> bool {
        !self.is_device
    }

    /// Returns the number of places that the file has, with the header. 0 if that is unknown.
    pub(crate) fn places(&self) -> u64 {
        let size = fstat(&*self.fd).ok().and_then(|found| u64::try_from(found.st_size).ok());
        size.unwrap_or(0).min(self.limit() * GRANULE).div_ceil(GRANULE)
    }

    /// Returns the number of places that the file may have, with the header.
    pub(crate) fn limit(&self) -> u64 {
        if !self.is_device {
            return i64::MAX as u64 / GRANULE;
        }
        // A device may have grown.
        rustix::fs::seek(&*self.fd, rustix::fs::SeekFrom::End(0)).unwrap_or(0) / GRANULE
    }

    /// Returns the number of places that new granules may use, with the header. A former process may
    /// have used more of them.
    pub(crate) fn limit_of_new(&self) -> u64 {
        let of_process = self.file_limit_bytes().map_or(u64::MAX, |limit| limit / GRANULE);
        self.limit().min(self.places_max).min(of_process)
    }

    /// Returns the most bytes of a file that the kernel lets this process write, if it limits them. It
    /// may change at any time.
    pub(crate) fn file_limit_bytes(&self) -> Option<u64> {
        if self.is_device { None } else { getrlimit(Resource::Fsize).current }
    }

    /// Returns the most bytes for granules: those of a device, or those that the file has and for which
    /// its file system has room now, and that disk and process allow. May wait for the storage.
    pub(crate) fn limit_bytes(&self) -> u64 {
        let most = self.limit_of_new().saturating_sub(1).saturating_mul(GRANULE);
        if self.is_device {
            return most;
        }
        let has = fstat(&*self.fd).map_or(0, |found| found.st_blocks.unsigned_abs() * 512);
        let room = fstatvfs(&*self.fd).map_or(0, |found| found.f_bavail * found.f_frsize);
        has.saturating_add(room).saturating_sub(GRANULE).min(most)
    }
}
