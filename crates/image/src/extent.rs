//! Ranges of a disk with their places.

/// Range of the disk whose bytes are in one kind of place, as long as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte on the disk.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Place of the bytes.
    pub kind: ExtentKind,
}

/// Place of the bytes of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// The image has nothing; its backing may.
    Unallocated,
    /// The image says that they are zero.
    Zero,
    /// They are in the file, one after the other.
    Data {
        /// Offset of the first byte in the file.
        host_offset: u64,
    },
    /// They are compressed.
    Compressed,
}

impl Extent {
    /// Returns whether `next` continues this extent.
    fn continues(&self, next: &Self) -> bool {
        match (self.kind, next.kind) {
            (ExtentKind::Data { host_offset: first }, ExtentKind::Data { host_offset }) => {
                first.checked_add(self.bytes) == Some(host_offset)
            }
            (first, second) => first == second,
        }
    }
}

/// Appends an extent, or makes the last one longer. Returns false if `limit` extents are there.
pub(crate) fn push(extents: &mut Vec<Extent>, next: Extent, limit: usize) -> bool {
    let count = extents.len();
    match extents.last_mut() {
        Some(last) if last.continues(&next) => last.bytes += next.bytes,
        _ if count >= limit => return false,
        _ => extents.push(next),
    }
    true
}
