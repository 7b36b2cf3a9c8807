//! Requests and their completions.

use std::path::PathBuf;

use memory::Buffers;

use crate::IoError;

/// Size and limits of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes.
    pub size: u64,
    /// Logical block size in bytes: ranges are multiples of it.
    pub block_size: u32,
    /// True if writes, discards and zeroing are refused.
    pub read_only: bool,
    /// True if a discard frees storage.
    pub discard: bool,
    /// Bytes in which storage is freed: a smaller or misaligned discard frees less than its range.
    pub discard_granularity: u32,
}

/// Part of a disk that is either stored or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// True for a hole: it reads as zeroes and takes no space.
    pub hole: bool,
}

impl Extent {
    /// Returns a range as one stored extent, for disks that do not track holes.
    pub(crate) fn stored(geometry: &Geometry, offset: u64, len: u64) -> Result<Vec<Self>, IoError> {
        geometry.check_inside(offset, len)?;
        Ok(vec![Self { len, hole: false }])
    }
}

/// Counts of the layers of a disk that have a map: each is an image that says where the bytes are,
/// and has one owner that changes it. Sums over the layers, since the disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCounts {
    /// Number of layers.
    pub layers: u64,
    /// Questions that owners have taken.
    pub questions: u64,
    /// Answers that owners have given.
    pub answers: u64,
    /// Flush rounds.
    pub rounds: u64,
    /// Clusters allocated.
    pub allocations: u64,
    /// Clusters that requests have filled as a whole, because the format stores whole clusters.
    pub fills: u64,
    /// Fills that first read the rest of their cluster.
    pub read_modify_writes: u64,
    /// Time for which requests waited for an owner, in nanoseconds; without flushes.
    pub wait_ns: u64,
    /// Pages of the maps in memory.
    pub pages: u64,
    /// Bytes of clusters that are not used any more and not free yet.
    pub limbo_bytes: u64,
    /// Those of them that only requests in flight keep.
    pub held_bytes: u64,
    /// Time since which the same requests keep them, in nanoseconds.
    pub held_ns: u64,
}

impl LayerCounts {
    /// Returns the sums with another layer's counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            layers: self.layers + other.layers,
            questions: self.questions + other.questions,
            answers: self.answers + other.answers,
            rounds: self.rounds + other.rounds,
            allocations: self.allocations + other.allocations,
            fills: self.fills + other.fills,
            read_modify_writes: self.read_modify_writes + other.read_modify_writes,
            wait_ns: self.wait_ns + other.wait_ns,
            pages: self.pages + other.pages,
            limbo_bytes: self.limbo_bytes + other.limbo_bytes,
            held_bytes: self.held_bytes + other.held_bytes,
            held_ns: self.held_ns.max(other.held_ns),
        }
    }
}

/// State of the cache of a golden image below a disk. All disks of the process on the image share it.
/// Counts are since the process opened the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheState {
    /// Identity of the image.
    pub identity: String,
    /// Size of the image in bytes.
    pub size: u64,
    /// Path of the cache file.
    pub file: PathBuf,
    /// Blocks in the cache file.
    pub stored: u64,
    /// Reason why new blocks are not in the cache file, if they are not.
    pub file_problem: Option<String>,
    /// Blocks that requests found in memory.
    pub hits: u64,
    /// Blocks that requests had to wait for.
    pub misses: u64,
    /// Blocks that came from the cache file.
    pub loaded: u64,
    /// Blocks that came from the source.
    pub fetched: u64,
    /// Bytes that came from the source.
    pub fetched_bytes: u64,
    /// Blocks that left the memory.
    pub evicted: u64,
    /// Reason why requests wait for the source, if they do.
    pub problem: Option<String>,
    /// Fetching of the whole image. `None` if no operator asked for it.
    pub warm: Option<WarmState>,
    /// Digest of the bytes, if a warm image had another one than its identity.
    pub other_digest: Option<String>,
    /// Whether the digest of the bytes was once that of the identity.
    pub is_verified: bool,
}

/// Fetching of a whole golden image into its cache file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmState {
    /// Most bytes a second. `None` without a limit.
    pub rate: Option<u64>,
    /// Whether it goes on, and how it ended.
    pub phase: WarmPhase,
    /// Reason of a failure.
    pub problem: Option<String>,
}

/// Phase of the fetching of a whole golden image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmPhase {
    /// Blocks are being fetched, or wait for the source.
    Running,
    /// All blocks are in the cache file. Their digest is calculated.
    Checking,
    /// All blocks are in the cache file. If the identity is a digest, it is theirs.
    Done,
    /// An operator has ended it.
    Canceled,
    /// It cannot go on.
    Failed,
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Fill the buffers.
    Read,
    /// Store the buffers.
    Write {
        /// True if the data must be durable on completion: the driver will not flush.
        durable: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// Discard the range; later reads may return the old data or zeroes.
    Discard,
    /// Write zeroes to the range.
    WriteZeroes {
        /// True if the range may be unmapped.
        unmap: bool,
        /// True if the zeroes must be durable on completion.
        durable: bool,
    },
}

/// One request, whose range [`Geometry::check`] has checked.
#[derive(Debug)]
pub struct Request {
    /// Kind of the request.
    pub kind: RequestKind,
    /// First byte.
    pub offset: u64,
    /// Length in bytes; for reads and writes the length of the buffers.
    pub len: u64,
    /// Data; empty for other kinds.
    pub buffers: Buffers,
    /// Tag that the submitter chose.
    pub tag: u32,
}

/// One completed request.
#[derive(Debug)]
pub struct Completion {
    /// Tag that the submitter chose.
    pub tag: u32,
    /// Outcome of the request.
    pub outcome: Result<(), IoError>,
    /// Buffers of the request, whole or consumed.
    pub buffers: Buffers,
}

/// Result of [`crate::Channel::submit`].
#[derive(Debug)]
#[must_use = "a request that is not done must be kept"]
pub enum SubmitOutcome {
    /// The request has completed already.
    Done(Completion),
    /// The request completes through [`crate::Channel::reap`].
    Pending,
    /// The channel lacks a resource: submit again after the next completion.
    Full(Request),
}

impl Request {
    /// Completes the request.
    pub fn complete(self, outcome: Result<(), IoError>) -> Completion {
        Completion { tag: self.tag, outcome, buffers: self.buffers }
    }
}

impl Geometry {
    /// Checks that a request of `kind` over `len` bytes at `offset` may be submitted.
    ///
    /// # Errors
    /// [`IoError::ReadOnly`] if the request would change a read-only disk, [`IoError::Range`] if
    /// the range is outside of the disk or not aligned.
    pub fn check(&self, kind: RequestKind, offset: u64, len: u64) -> Result<(), IoError> {
        let changes = !matches!(kind, RequestKind::Read | RequestKind::Flush);
        if changes && self.read_only {
            return Err(IoError::ReadOnly);
        }
        if kind == RequestKind::Flush {
            return Ok(());
        }
        let mask = u64::from(self.block_size).wrapping_sub(1);
        if (offset | len) & mask != 0 {
            return Err(IoError::Range);
        }
        self.check_inside(offset, len)
    }

    /// Checks that the disk contains the `len` bytes at `offset`, and that `len` is at least 1.
    /// Ignores the block size.
    ///
    /// # Errors
    /// [`IoError::Range`] otherwise.
    pub fn check_inside(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let end = offset.checked_add(len).ok_or(IoError::Range)?;
        if len == 0 || end > self.size { Err(IoError::Range) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let disk = Geometry {
            size: 8192,
            block_size: 4096,
            read_only: true,
            discard: true,
            discard_granularity: 4096,
        };
        let write = RequestKind::Write { durable: false };
        let cases = [
            (RequestKind::Read, 0, 8192, Ok(())),
            (RequestKind::Read, 4096, 4096, Ok(())),
            (RequestKind::Read, 4096, 8192, Err(IoError::Range)),
            (RequestKind::Read, 512, 4096, Err(IoError::Range)),
            (RequestKind::Read, 0, 512, Err(IoError::Range)),
            (RequestKind::Read, 0, 0, Err(IoError::Range)),
            (RequestKind::Read, u64::MAX - 4095, 4096, Err(IoError::Range)),
            (RequestKind::Flush, 0, 0, Ok(())),
            (write, 0, 4096, Err(IoError::ReadOnly)),
            (RequestKind::Discard, 0, 4096, Err(IoError::ReadOnly)),
        ];
        for (kind, offset, len, expected) in cases {
            assert_eq!(disk.check(kind, offset, len), expected, "{kind:?} {offset} {len}");
        }
    }
}
