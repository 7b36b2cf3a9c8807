//! File with blocks of one image.
//!
//! ```text
//! | header, 4 KiB | index: 8 bytes a block, to a multiple of 64 KiB | blocks, each at its place |
//! ```
//! The header is magic, version, size of the image and identity. An index entry is the checksum of a
//! block, 0 for a block that is not stored.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;

use memory::Mapping;
use rustix::fs::FallocateFlags;

use crate::BLOCK_BYTES;
use crate::checksum::of_block;

const HEADER_BYTES: u64 = 4096;
const MAGIC: [u8; 8] = *b"RWGOLDEN";
const VERSION: u32 = 1;

/// Cache file of an image, which several processes may share.
#[derive(Debug)]
pub(crate) struct CacheFile {
    file: File,
    /// Header and index.
    index: Mapping,
    first_block: u64,
    blocks: u32,
    identity_hash: u64,
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
    let file = File::open(path).ok()?;
    let mut found = vec![0; HEADER_BYTES as usize];
    file.read_exact_at(&mut found, 0).ok()?;
    let size = found.get(16..24)?.try_into().map(u64::from_le_bytes).ok()?;
    (found == header(identity, size)).then_some(size)
}

impl CacheFile {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// The file has another image or is none of ours, the storage is full, or fails. The file is left
    /// as it was.
    pub(crate) fn open(path: &Path, identity: &str, hash: u64, size: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        let blocks = blocks_of(size);
        let index_end = HEADER_BYTES + u64::from(blocks) * 8;
        let first_block = index_end.next_multiple_of(BLOCK_BYTES);
        let (expected, found) = (header(identity, size), file.metadata()?.len());
        if found == 0 {
            // A store to a page without space would fail in a way that is hard to survive.
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, index_end)?;
            file.write_all_at(&expected, 0)?;
        } else {
            let mut present = vec![0; expected.len()];
            let read = file.read_exact_at(&mut present, 0);
            if read.is_err() || present != expected {
                let problem = "it is not the cache file of this image; move it away";
                return Err(io::Error::other(problem));
            }
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, index_end)?;
        }
        let index = Mapping::file(file.as_fd(), index_end).map_err(io::Error::other)?;
        Ok(Self { file, index, first_block, blocks, identity_hash: hash })
    }

    fn entry(&self, block: u32) -> Option<&std::sync::atomic::AtomicU64> {
        let at = HEADER_BYTES as usize / 8 + block as usize;
        self.index.cells().get(at).filter(|_| block < self.blocks)
    }

    /// Returns whether the file may have a block. Never waits.
    pub(crate) fn may_have(&self, block: u32) -> bool {
        self.entry(block).is_some_and(|entry| entry.load(Ordering::Relaxed) != 0)
    }

    /// Returns the number of blocks that the file may have. Loads the index into memory.
    pub(crate) fn stored(&self) -> u64 {
        (0..self.blocks).filter(|block| self.may_have(*block)).count() as u64
    }

    fn place(&self, block: u32) -> u64 {
        self.first_block + u64::from(block) * BLOCK_BYTES
    }

    /// Reads a block. Returns false if the file does not have it whole.
    pub(crate) fn read(&self, block: u32, out: &mut [u8]) -> bool {
        let checksum = self.entry(block).map_or(0, |entry| entry.load(Ordering::Acquire));
        checksum != 0
            && self.file.read_exact_at(out, self.place(block)).is_ok()
            && of_block(self.identity_hash, block, out) == checksum
    }

    /// Writes a block.
    ///
    /// # Errors
    /// The storage is full or fails.
    pub(crate) fn write(&self, block: u32, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.place(block))?;
        if let Some(entry) = self.entry(block) {
            entry.store(of_block(self.identity_hash, block, data), Ordering::Release);
        }
        Ok(())
    }
}
