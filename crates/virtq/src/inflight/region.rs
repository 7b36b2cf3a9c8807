//! The region as a whole: creation, adoption, checks and access.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use memory::{Mapping, MemoryError};

use super::InflightError;
use crate::MAX_QUEUE_SIZE;

/// Most queues of one region: a kick message has eight bits for the index.
pub const MAX_INFLIGHT_QUEUES: u16 = 256;
/// Largest end of a region in its file, in bytes. Regions that Ringway creates are smaller, and all
/// sessions share the address space.
const MAX_END: u64 = 1 << 30;
/// Alignment of parts in bytes, so that no two queues write the same cache line.
const LINE: u64 = 64;

const MAGIC: u64 = u64::from_ne_bytes(*b"RINGWAY1");
/// Layout version. Workers hand regions over, so a new layout needs a new format of session states.
const VERSION: u32 = 1;

/// Start of a region.
#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    queues: AtomicU16,
    size: AtomicU16,
    /// 1 if the front-end does not have the region. Earlier programs ignore it.
    unshared: AtomicU16,
}

/// Start of a queue's part.
#[repr(C, align(64))]
pub(super) struct Part {
    pub(super) used_idx: AtomicU16,
    pub(super) last_batch_head: AtomicU16,
}

/// Record of one head.
#[repr(C, align(16))]
pub(super) struct Entry {
    pub(super) counter: AtomicU64,
    pub(super) inflight: AtomicU16,
    pub(super) next: AtomicU16,
    pub(super) trial: AtomicU32,
}

const HEADER_BYTES: u64 = size_of::<Header>() as u64;
const PART_BYTES: u64 = size_of::<Part>() as u64;
const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

/// Returns the bytes of a queue's part.
fn stride(size: u16) -> u64 {
    (PART_BYTES + ENTRY_BYTES * u64::from(size)).next_multiple_of(LINE)
}

fn bytes(queues: u16, size: u16) -> Result<u64, InflightError> {
    let possible =
        (1..=MAX_INFLIGHT_QUEUES).contains(&queues) && (1..=MAX_QUEUE_SIZE).contains(&size);
    if !possible {
        return Err(InflightError::Bounds { queues, size });
    }
    Ok(HEADER_BYTES + stride(size) * u64::from(queues))
}

#[derive(Debug)]
struct Shared {
    mapping: Mapping,
    offset: u64,
    bytes: u64,
    queues: u16,
    size: u16,
}

impl Shared {
    fn array<T>(&self, at: u64, count: usize) -> Result<NonNull<T>, MemoryError> {
        // Both are below MAX_END.
        self.mapping.array((self.offset + at) as usize, count)
    }

    /// Calls `with` with the region's header.
    fn header<R>(&self, with: impl FnOnce(&Header) -> R) -> Result<R, InflightError> {
        let header = self.array::<Header>(0, 1)?;
        // SAFETY: inside the mapping, which `self` keeps alive, and aligned (Mapping::array); all
        // fields are atomics, so other processes may write them meanwhile.
        Ok(with(unsafe { header.as_ref() }))
    }

    /// Returns whether all bytes after the header are zero.
    fn fresh(&self, need: u64) -> Result<bool, InflightError> {
        let count = ((need - HEADER_BYTES) / 8) as usize;
        let words = self.array::<AtomicU64>(HEADER_BYTES, count)?;
        // SAFETY: `count` aligned words inside the mapping, which `self` keeps alive; atomics.
        let zero = |at| unsafe { words.add(at).as_ref() }.load(Ordering::Relaxed) == 0;
        Ok((0..count).all(zero))
    }

    /// Writes the header. The magic number comes last, so that a header is complete or absent.
    fn format(&self) -> Result<(), InflightError> {
        self.header(|header| {
            header.version.store(VERSION, Ordering::Relaxed);
            header.queues.store(self.queues, Ordering::Relaxed);
            header.size.store(self.size, Ordering::Relaxed);
            header.magic.store(MAGIC, Ordering::Release);
        })
    }

    fn check(&self, need: u64) -> Result<(), InflightError> {
        let (magic, version, queues, size) = self.header(|header| {
            let magic = header.magic.load(Ordering::Acquire);
            let (queues, size) = (&header.queues, &header.size);
            let shape = (queues.load(Ordering::Relaxed), size.load(Ordering::Relaxed));
            (magic, header.version.load(Ordering::Relaxed), shape.0, shape.1)
        })?;
        match magic {
            0 if self.fresh(need)? => self.format(),
            MAGIC if version != VERSION => {
                Err(InflightError::Version { found: version, known: VERSION })
            }
            MAGIC if (queues, size) != (self.queues, self.size) => {
                let (asked_queues, asked) = (self.queues, self.size);
                Err(InflightError::Shape { queues, size, asked_queues, asked })
            }
            MAGIC => Ok(()),
            _ => Err(InflightError::Foreign),
        }
    }
}

/// In-flight region of one session: a memfd shared with the front-end, which preserves it if this
/// process dies. Clones refer to the same region.
#[derive(Clone, Debug)]
pub struct InflightRegion {
    shared: Arc<Shared>,
}

impl InflightRegion {
    /// Creates an empty region, sealed against resizing.
    ///
    /// # Errors
    /// [`InflightError::Bounds`], or the kernel provides no memory.
    pub fn create(queues: u16, size: u16) -> Result<Self, InflightError> {
        let bytes = bytes(queues, size)?;
        let mapping = Mapping::sealed("ringway-inflight", bytes)?;
        let shared = Shared { mapping, offset: 0, bytes, queues, size };
        shared.format()?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Creates a region that the front-end does not get. It records requests from one process to
    /// the next during a handover, and nobody preserves it in a crash.
    ///
    /// # Errors
    /// As [`InflightRegion::create`].
    pub fn create_unshared(queues: u16, size: u16) -> Result<Self, InflightError> {
        let region = Self::create(queues, size)?;
        region.shared.header(|header| header.unshared.store(1, Ordering::Relaxed))?;
        Ok(region)
    }

    /// Adopts a region that a front-end has preserved: one of Ringway's, or one that is all zero.
    ///
    /// # Errors
    /// [`InflightError`]: the region is too short, not Ringway's, or of another shape. The records
    /// of its queues are checked when the queues start.
    pub fn adopt(
        fd: BorrowedFd<'_>,
        mmap_size: u64,
        mmap_offset: u64,
        queues: u16,
        size: u16,
    ) -> Result<Self, InflightError> {
        let need = bytes(queues, size)?;
        let end = mmap_offset.checked_add(mmap_size);
        let end = end
            .filter(|end| mmap_size >= need && *end <= MAX_END && mmap_offset.is_multiple_of(LINE));
        let window = InflightError::Window { offset: mmap_offset, bytes: mmap_size, need };
        let mapping = Mapping::keeping(fd, end.ok_or(window)?)?;
        let (offset, bytes) = (mmap_offset, mmap_size);
        let shared = Shared { mapping, offset, bytes, queues, size };
        shared.check(need)?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Checks that another process could adopt the region now.
    ///
    /// # Errors
    /// As [`InflightRegion::adopt`]. The front-end may have truncated or overwritten it since this
    /// process adopted it ([`InflightError::is_owner_fault`]).
    pub fn check_adoptable(&self) -> Result<(), InflightError> {
        let Some(fd) = self.fd() else { return Ok(()) };
        let (bytes, offset) = (self.mmap_size(), self.mmap_offset());
        Self::adopt(fd, bytes, offset, self.queues(), self.size()).map(drop)
    }

    /// Returns whether a request of any queue is recorded.
    pub fn has_records(&self) -> bool {
        (0..self.queues()).filter_map(|index| self.queue(index)).any(|queue| queue.has_records())
    }

    /// Clears all records, because a device reset made the requests in flight void. No ring may be
    /// served meanwhile.
    pub fn forget(&self) {
        for queue in (0..self.queues()).filter_map(|index| self.queue(index)) {
            queue.forget();
        }
    }

    /// Returns the file, for another process.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.mapping.fd()
    }

    /// Returns the size of the region in bytes.
    pub fn mmap_size(&self) -> u64 {
        self.shared.bytes
    }

    /// Returns the offset of the region in its file, in bytes.
    pub fn mmap_offset(&self) -> u64 {
        self.shared.offset
    }

    /// Returns the number of queues in the region.
    pub fn queues(&self) -> u16 {
        self.shared.queues
    }

    /// Returns the number of entries for each queue, the size of the largest ring it can serve.
    pub fn size(&self) -> u16 {
        self.shared.size
    }

    /// Returns the part of one queue, or `None` if the region does not cover it.
    pub fn queue(&self, index: u16) -> Option<Inflight> {
        (index < self.queues()).then(|| Inflight { region: self.clone(), index })
    }
}

/// One queue's part of an [`InflightRegion`].
#[derive(Clone, Debug)]
pub struct Inflight {
    region: InflightRegion,
    index: u16,
}

impl Inflight {
    /// Returns the number of entries, the size of the largest ring that it can serve.
    pub fn size(&self) -> u16 {
        self.region.size()
    }

    /// Returns whether the front-end truncated the file. If so, nothing is recorded any more.
    pub fn faulted(&self) -> bool {
        self.region.shared.mapping.faulted()
    }

    /// Returns whether the front-end has the region and gives it to a successor.
    pub fn is_shared(&self) -> bool {
        let mark = self.region.shared.header(|header| header.unshared.load(Ordering::Relaxed));
        mark.is_ok_and(|mark| mark == 0)
    }

    /// Returns whether a request is recorded.
    pub fn has_records(&self) -> bool {
        self.entries().any(|entry| entry.inflight.load(Ordering::Acquire) != 0)
    }

    fn forget(&self) {
        self.entries().for_each(|entry| entry.inflight.store(0, Ordering::Release));
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.parts().ok().map(|(_, entries)| entries);
        let all = entries.into_iter().flat_map(|at| (0..self.size()).map(move |head| (at, head)));
        // SAFETY: `size` entries (Self::parts) in the mapping that `self` keeps alive; atomics.
        all.map(|(at, head)| unsafe { at.add(head.into()).as_ref() })
    }

    /// Returns pointers to the part and to its entries, valid as long as `self` lives.
    pub(super) fn parts(&self) -> Result<(NonNull<Part>, NonNull<Entry>), InflightError> {
        let shared = &*self.region.shared;
        let at = HEADER_BYTES + stride(shared.size) * u64::from(self.index);
        let entries = shared.array(at + PART_BYTES, shared.size.into())?;
        Ok((shared.array(at, 1)?, entries))
    }
}
