//! File with blocks of one image.
//!
//! ```text
//! | header, 4 KiB | index: 8 bytes a block, to a multiple of 64 KiB | blocks, each at its place |
//! ```
//! The header is magic, version, size of the image and identity. An index entry is the checksum of a
//! block, 0 for a block that is not stored. A file has its header before it has its name.
//!
//! Nothing is mapped: a file that is truncated or on storage that fails is an error of a thread that
//! loads, and no fault of a reactor.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::checksum::{hash, of_block};
use crate::{BLOCK_BYTES, files};

const HEADER_BYTES: u64 = 4096;
const MAGIC: [u8; 8] = *b"RWGOLDEN";
const VERSION: u32 = 1;
/// Free space that blocks leave to others: this share of the file system, and at most these bytes.
const RESERVE_SHARE: u64 = 20;
const RESERVE_MAX: u64 = 1 << 30;
/// Most bytes that an index entry adds to a sparse file.
const PAGE_BYTES: u64 = 4096;
/// New blocks after which a file with a limit is counted again, because other processes write to it.
const RECOUNT_EVERY: u64 = 1024;

/// Cache file of an image, which several processes may share.
#[derive(Debug)]
pub(crate) struct CacheFile {
    file: File,
    first_block: u64,
    blocks: u32,
    /// Most blocks in the file.
    limit: u64,
    identity_hash: u64,
    /// One bit for each block that the index had when it was read.
    present: Vec<AtomicU64>,
    /// Blocks in the file, and places that are taken for blocks.
    stored: AtomicU64,
    /// Blocks that threads write at this moment. The file system may not have counted them yet.
    in_flight: AtomicU64,
}

/// Returns the number of blocks of an image.
pub(crate) fn blocks_of(size: u64) -> u32 {
    u32::try_from(size.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX)
}

fn header(identity: &str, size: u64) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend(u32::try_from(identity.len()).unwrap_or(0).to_le_bytes());
    header.extend(size.to_le_bytes());
    header.extend(identity.as_bytes());
    header.resize(HEADER_BYTES as usize, 0);
    header
}

/// Returns the size of the image in a cache file. `None` if there is no file of this identity.
pub(crate) fn known_size(path: &Path, identity: &str) -> Option<u64> {
    let file = files::open(path, false).ok()?;
    let mut found = vec![0; HEADER_BYTES as usize];
    file.read_exact_at(&mut found, 0).ok()?;
    let size = found.get(16..24)?.try_into().map(u64::from_le_bytes).ok()?;
    (found == header(identity, size)).then_some(size)
}

/// Returns the identity of the image in a cache file, the bytes that the file takes, and its last use.
/// `None` if the file is none of ours.
pub(crate) fn inspect(path: &Path) -> Option<(String, u64, SystemTime)> {
    let file = files::open(path, false).ok()?;
    let mut found = vec![0; HEADER_BYTES as usize];
    file.read_exact_at(&mut found, 0).ok()?;
    let number = |at: usize, len: usize| found.get(at..at + len);
    let len = number(12, 4)?.try_into().map(u32::from_le_bytes).ok()? as usize;
    let size = number(16, 8)?.try_into().map(u64::from_le_bytes).ok()?;
    let identity = String::from_utf8(number(24, len.min(found.len()))?.to_vec()).ok()?;
    let bytes = file.metadata().ok()?;
    let is_ours = found == header(&identity, size);
    is_ours.then_some((identity, bytes.blocks() * 512, bytes.modified().ok()?))
}

/// Creates the file of an image. Another process may do so in the same moment.
fn create(path: &Path, header: &[u8]) -> io::Result<File> {
    let mut new = files::create_beside(path)?;
    new.write_all(header)?;
    // A crash of the host leaves no name without a header.
    new.as_file().sync_all()?;
    match new.persist_noclobber(path) {
        Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
        _ => files::open_used(path),
    }
}

impl CacheFile {
    /// Opens the file of at most `limit` blocks, or creates it. Reads its index.
    ///
    /// # Errors
    /// The file has another image or is none of ours, the storage is full, or fails. The file is left
    /// as it was.
    pub(crate) fn open(path: &Path, identity: &str, size: u64, limit: u64) -> io::Result<Self> {
        let expected = header(identity, size);
        let file = match files::open_used(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(path, &expected)?,
            found => found?,
        };
        let mut present = vec![0; expected.len()];
        if file.read_exact_at(&mut present, 0).is_err() || present != expected {
            let problem = "it is not the cache file of this image; move it away";
            return Err(io::Error::other(problem));
        }
        let blocks = blocks_of(size);
        let index_end = HEADER_BYTES + u64::from(blocks) * 8;
        let bits = std::iter::repeat_with(AtomicU64::default).take(blocks.div_ceil(64) as usize);
        let cache = Self {
            file,
            first_block: index_end.next_multiple_of(BLOCK_BYTES),
            blocks,
            limit,
            identity_hash: hash(3, identity.as_bytes()),
            present: bits.collect(),
            stored: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
        };
        cache.read_index();
        Ok(cache)
    }

    /// Notes and counts the blocks of the index, which other processes write to, too.
    fn read_index(&self) {
        let mut part = vec![0; BLOCK_BYTES as usize];
        let (mut block, mut count) = (0u32, 0);
        while block < self.blocks {
            let len = part.len().min((self.blocks - block) as usize * 8);
            let Some(part) = part.get_mut(..len) else { return };
            let at = HEADER_BYTES + u64::from(block) * 8;
            // A file that ends early has no further blocks.
            if self.file.read_exact_at(part, at).is_err() {
                part.fill(0);
                let mut entry = [0; 8];
                for (place, out) in (at..).step_by(8).zip(part.chunks_exact_mut(8)) {
                    if self.file.read_exact_at(&mut entry, place).is_err() {
                        break;
                    }
                    out.copy_from_slice(&entry);
                }
            }
            for entry in part.chunks_exact(8) {
                if entry != [0; 8] {
                    self.set_present(block);
                    count += 1;
                }
                block += 1;
            }
        }
        self.stored.fetch_max(count, Ordering::Relaxed);
    }

    fn set_present(&self, block: u32) {
        if let Some(bits) = self.present.get(block as usize / 64) {
            bits.fetch_or(1 << (block % 64), Ordering::Relaxed);
        }
    }

    /// Returns whether this process knows that the file has a block, which may be damaged. Never waits.
    pub(crate) fn may_have(&self, block: u32) -> bool {
        let bits = self.present.get(block as usize / 64);
        bits.is_some_and(|bits| bits.load(Ordering::Relaxed) >> (block % 64) & 1 == 1)
    }

    /// Returns the number of blocks in the file, as far as this process knows. Never waits.
    pub(crate) fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    fn entry_place(block: u32) -> u64 {
        HEADER_BYTES + u64::from(block) * 8
    }

    fn place(&self, block: u32) -> u64 {
        self.first_block + u64::from(block) * BLOCK_BYTES
    }

    /// Reads a block, which another process may have written. Returns false if the file does not have
    /// it whole.
    pub(crate) fn read(&self, block: u32, out: &mut [u8]) -> bool {
        let mut entry = [0; 8];
        let is_whole = self.file.read_exact_at(&mut entry, Self::entry_place(block)).is_ok()
            && entry != [0; 8]
            && self.file.read_exact_at(out, self.place(block)).is_ok()
            && of_block(self.identity_hash, block, out) == u64::from_le_bytes(entry);
        if is_whole && !self.may_have(block) {
            self.stored.fetch_add(1, Ordering::Relaxed);
            self.set_present(block);
        }
        is_whole
    }

    /// Writes a block, unless the file has as many as it may have.
    ///
    /// # Errors
    /// The storage fails, or would have less free space than the reserve.
    pub(crate) fn write(&self, block: u32, data: &[u8]) -> io::Result<()> {
        let is_new = !self.may_have(block);
        if is_new && !self.take_place() {
            return Ok(());
        }
        let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        let written = self.check_room(in_flight).and_then(|()| self.write_block(block, data));
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        match written {
            Ok(()) => self.set_present(block),
            Err(_) if is_new => _ = self.stored.fetch_sub(1, Ordering::Relaxed),
            Err(_) => {}
        }
        written
    }

    /// Takes the place of a new block. Returns false if none is left.
    fn take_place(&self) -> bool {
        let next = |stored| (stored < self.limit).then_some(stored + 1);
        let taken = self.stored.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        if self.limit < self.blocks.into() && taken.is_ok_and(|count| count % RECOUNT_EVERY == 0) {
            self.read_index();
        }
        taken.is_ok()
    }

    fn write_block(&self, block: u32, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.place(block))?;
        let checksum = of_block(self.identity_hash, block, data);
        self.file.write_all_at(&checksum.to_le_bytes(), Self::entry_place(block))
    }

    /// Checks that `count` blocks and their entries leave the reserve to others.
    fn check_room(&self, count: u64) -> io::Result<()> {
        let found = rustix::fs::fstatvfs(&self.file)?;
        let reserve =
            (found.f_blocks.saturating_mul(found.f_frsize) / RESERVE_SHARE).min(RESERVE_MAX);
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if free >= reserve.saturating_add(count * (BLOCK_BYTES + PAGE_BYTES)) {
            return Ok(());
        }
        let problem = format!(
            "{free} bytes are free, of which {reserve} are for others; free some, or move the cache"
        );
        Err(io::Error::new(io::ErrorKind::StorageFull, problem))
    }
}

#[cfg(test)]
mod tests;
