//! Counts of a write layer in memory.

/// Counts of an overlay: what guests wrote is in memory and in an overflow file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverlayCounts {
    /// Memory for written blocks, in bytes.
    pub ram_bytes: u64,
    /// Bytes of it that have written blocks, or will have them soon.
    pub ram_used_bytes: u64,
    /// True if there is an overflow file.
    pub has_overflow: bool,
    /// Most bytes that the overflow file can have, with the room that its storage had at the last
    /// look. `None` without an overflow file, or before the first look.
    pub overflow_limit_bytes: Option<u64>,
    /// Most bytes of the overflow file that the disk allows. `None` if it does not limit them.
    pub overflow_size_bytes: Option<u64>,
    /// Most bytes of a file that the kernel lets this process write (RLIMIT_FSIZE). `None` if it does not
    /// limit them, or the overflow is no file.
    pub file_limit_bytes: Option<u64>,
    /// Bytes of written blocks in the overflow file.
    pub overflow_used_bytes: u64,
    /// Bytes of written blocks that were moved to the overflow file, since the disk was opened.
    pub moved_bytes: u64,
    /// Bytes of blocks that were written for the first time, since the disk was opened: they took
    /// space. Blocks that were given back count negative.
    pub grown_bytes: i64,
    /// Bytes by which it grew in each of the last seconds: in ten of them, or since the last question.
    /// `None` in the first ten seconds.
    pub bytes_per_second: Option<u64>,
    /// Reads that memory alone has answered, since the disk was opened.
    pub memory_reads: u64,
    /// Reads of the overflow file. A request may need several.
    pub overflow_reads: u64,
    /// Reads of the base.
    pub base_reads: u64,
    /// Bytes of the writes that wait for memory now.
    pub waiting_bytes: u64,
    /// Writes that waited for memory, since the disk was opened.
    pub waits: u64,
    /// Writes to the overflow file that failed, since the disk was opened. Nothing is lost: the blocks
    /// stay in memory.
    pub overflow_errors: u64,
    /// True if writes wait for space: memory and overflow are full.
    pub is_full: bool,
}
