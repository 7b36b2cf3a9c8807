//! Files of images with metadata, and the parts of replies that their formats share.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use disk::{DiskError, ImageLock, open_image};
use image::format::Access;
use image::{CheckReport, Extent, ExtentKind, ImageError, PlainFile, run_now};
use model::image::{ImageCheckReport, ImageExtent, ImageExtentKind, ImageFault, ImageMapReply};

use super::ImageCallError;

/// Lock that a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Locking {
    None,
    Read,
    Write,
}

impl Locking {
    pub(super) fn access(self) -> Access {
        if self == Self::Write { Access::Write } else { Access::Read }
    }
}

/// Open image with the file that its locks belong to.
pub(super) struct OpenFile<I> {
    pub(super) image: I,
    pub(super) file: Arc<OwnedFd>,
    _lock: Option<ImageLock>,
}

impl<I> OpenFile<I> {
    /// Opens and locks a file, then reads the image in it.
    pub(super) fn open<O: Future<Output = Result<I, ImageError>>>(
        path: &Path,
        locking: Locking,
        open: impl FnOnce(PlainFile) -> O,
    ) -> Result<Self, ImageCallError> {
        let writes = locking == Locking::Write;
        let file = Arc::new(open_image(path, !writes)?);
        // Locked before the first byte is read: a writer could change it meanwhile.
        let lock = match locking {
            Locking::None => None,
            _ => Some(ImageLock::take(path, Arc::clone(&file), writes)?),
        };
        let own = file.try_clone().map_err(DiskError::os("open", path))?;
        let image = run_now(open(PlainFile::new(own))).map_err(ImageCallError::image(path))?;
        Ok(Self { image, file, _lock: lock })
    }

    /// Runs work on the image.
    pub(super) fn run<T>(
        &mut self,
        path: &Path,
        work: impl AsyncFnOnce(&mut I) -> Result<T, ImageError>,
    ) -> Result<T, ImageCallError> {
        run_now(work(&mut self.image)).map_err(ImageCallError::image(path))
    }
}

pub(super) fn check_report(report: CheckReport) -> ImageCheckReport {
    let fault = |fault: image::Fault| ImageFault {
        offset: fault.offset,
        leak: fault.is_leak,
        problem: fault.problem,
    };
    ImageCheckReport {
        errors: report.errors,
        leaks: report.leaks,
        repaired_leaks: report.repaired_leaks,
        repaired_marks: report.repaired_marks,
        faults: report.faults.into_iter().map(fault).collect(),
        clusters: report.clusters,
        allocated_clusters: report.allocated_clusters,
        compressed_clusters: report.compressed_clusters,
    }
}

pub(super) fn map_reply(size_bytes: u64, extents: Vec<Extent>) -> ImageMapReply {
    let end = extents.last().map_or(size_bytes, |last| last.start + last.bytes);
    let extent = |extent: Extent| {
        let (kind, file_offset) = match extent.kind {
            ExtentKind::Unallocated => (ImageExtentKind::Unallocated, None),
            ExtentKind::Zero => (ImageExtentKind::Zero, None),
            ExtentKind::Data { host_offset } => (ImageExtentKind::Data, Some(host_offset)),
            ExtentKind::Compressed => (ImageExtentKind::Compressed, None),
        };
        ImageExtent { start: extent.start, bytes: extent.bytes, kind, file_offset }
    };
    ImageMapReply {
        size_bytes,
        extents: extents.into_iter().map(extent).collect(),
        next: (end < size_bytes).then_some(end),
    }
}
