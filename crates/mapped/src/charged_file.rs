//! File of an image's metadata, which the disk pays for on its storage.

use std::io;
use std::sync::Arc;

use disk::{Disk as _, FileDisk, MetadataOp};
use image::{ImageError, ImageFile, PlainFile};

/// File of an image's metadata. Its owner is a thread that nothing schedules, so the disk's share of
/// the storage is charged after each operation.
#[derive(Clone)]
pub(crate) struct ChargedFile {
    plain: Arc<PlainFile>,
    /// Disk that pays.
    disk: Arc<FileDisk>,
    /// False for I/O through the page cache, which may need no device.
    direct: bool,
}

impl ChargedFile {
    /// Opens the file for metadata of an image. It shares the open file with the data, and so locks and
    /// fence.
    pub(crate) fn open(disk: &Arc<FileDisk>, direct: bool) -> Result<Self, ImageError> {
        let fd = Arc::clone(disk.handover().0);
        let alignment = disk.geometry().block_size as usize;
        let plain =
            if direct { PlainFile::direct(fd, alignment) } else { Ok(PlainFile::shared(fd)) };
        let plain = Arc::new(plain.map_err(ImageError::io("open", 0))?);
        Ok(Self { plain, disk: Arc::clone(disk), direct })
    }

    /// Charges for an operation if it has succeeded.
    fn charge(&self, done: io::Result<()>, op: MetadataOp) -> io::Result<()> {
        if done.is_ok() && (self.direct || op == MetadataOp::Flush) {
            self.disk.charge_metadata(op);
        }
        done
    }
}

impl ImageFile for ChargedFile {
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let done = self.plain.read_at(offset, out).await;
        self.charge(done, MetadataOp::Read(out.len() as u64))
    }

    async fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let done = self.plain.write_at(offset, data).await;
        self.charge(done, MetadataOp::Write(data.len() as u64))
    }

    async fn sync(&self) -> io::Result<()> {
        let mark = self.disk.dirty_mark();
        let done = self.plain.sync().await;
        if done.is_ok() {
            self.disk.set_synced(mark);
        }
        self.charge(done, MetadataOp::Flush)
    }

    async fn len(&self) -> io::Result<u64> {
        self.plain.len().await
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        self.plain.set_len(len).await
    }

    async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.plain.allocate(offset, len).await
    }

    async fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.plain.punch(offset, len).await
    }
}
