//! Map: all ranges of the disk with their places.

use super::image::Image;
use super::l2::Mapping;
use crate::{ImageError, ImageFile};

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

impl<F: ImageFile> Image<F> {
    /// Returns at most `limit` extents from `start` on, in order and without gaps. To go on, call
    /// again with the end of the last one. The result is empty if `start` is the end of the disk.
    ///
    /// # Errors
    /// A table is damaged, the file fails, or the caller has requested an end.
    pub async fn map(&mut self, start: u64, limit: usize) -> Result<Vec<Extent>, ImageError> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = start;
        while at < self.header.size {
            let run = self.lookup(at).await?;
            let kind = match run.mapping {
                Mapping::Unallocated => ExtentKind::Unallocated,
                Mapping::Zero => ExtentKind::Zero,
                Mapping::Data { host_offset, .. } => ExtentKind::Data { host_offset },
                Mapping::Compressed(_) => ExtentKind::Compressed,
            };
            let next = Extent { start: at, bytes: run.bytes, kind };
            let count = extents.len();
            match extents.last_mut() {
                Some(last) if last.continues(&next) => last.bytes += next.bytes,
                _ if count >= limit => break,
                _ => extents.push(next),
            }
            at += run.bytes;
        }
        Ok(extents)
    }
}
