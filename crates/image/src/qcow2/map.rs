//! Map: all ranges of the disk with their places.

use super::image::Image;
use super::l2::Mapping;
use crate::extent::{Extent, ExtentKind, push};
use crate::{ImageError, ImageFile};

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
            if !push(&mut extents, next, limit) {
                break;
            }
            at += run.bytes;
        }
        Ok(extents)
    }
}
