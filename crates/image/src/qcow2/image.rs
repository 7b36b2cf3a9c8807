//! An open image.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::header::Header;
use super::l2::Compressed;
use crate::format::Access;
use crate::tables::Tables;
use crate::{ImageError, ImageFile};

/// Open image. One owner uses it at a time. Nothing is locked: the caller has taken the lock.
#[derive(Debug)]
pub struct Image<F> {
    pub(super) header: Header,
    pub(super) tables: Tables<F>,
}

impl<F: ImageFile> Image<F> {
    /// Reads the header of a file. Changes nothing.
    ///
    /// # Errors
    /// As [`Header::read`] and [`Header::check_access`].
    pub async fn open(file: F, access: Access) -> Result<Self, ImageError> {
        let header = Header::read(&file).await?;
        header.check_access(access)?;
        Ok(Self { header, tables: Tables::new(file).await? })
    }

    /// Returns the header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the file.
    pub fn file(&self) -> &F {
        &self.tables.file
    }

    /// Sets the most bytes of tables that the image caches, at least 32 KiB. The default is 1 MiB.
    pub fn set_cache_budget(&mut self, bytes: usize) {
        self.tables.set_budget(bytes);
    }

    /// Ends long work with [`ImageError::Stopped`] when `stop` becomes true.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.tables.stop_when(stop);
    }

    /// Decompresses a cluster into `out`, which has the size of a cluster.
    ///
    /// # Errors
    /// The file fails, or the data is damaged.
    pub async fn read_compressed(
        &mut self,
        compressed: Compressed,
        out: &mut [u8],
    ) -> Result<(), ImageError> {
        let structure = "compressed data";
        let Compressed { offset, bytes } = compressed;
        // The entry's field allows up to two clusters and a sector.
        let mut data = vec![0; usize::try_from(bytes).unwrap_or_default()];
        self.tables.read(structure, offset, &mut data).await?;
        let decompressed = self.header.compression.decompress(&data, out);
        decompressed.map_err(|problem| ImageError::Corrupt { structure, offset, problem })
    }
}
