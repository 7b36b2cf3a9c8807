//! Writer of a new image.

use crate::format::{Backing, Format};
use crate::map::{Base, Layout, Word};
use crate::qcow2::{self, Qcow2Format};
use crate::vhd::{self, VhdFormat};
use crate::{ImageError, ImageFile};

/// References that are stored together: those of 512 MiB.
const BATCH: usize = 8192;
/// Bytes by which the file grows: what is left behind the last cluster stays allocated.
const GROWTH_BYTES: u64 = 1 << 20;

/// Writer of a new image, which nothing else uses before it is finished.
#[derive(Debug)]
pub struct ImageWriter<F> {
    format: F,
    layout: Layout,
    /// Whether the image lies over another one, which zeroes must hide.
    has_below: bool,
    references: Vec<(u64, Word)>,
}

impl<F: ImageFile + Clone> ImageWriter<Qcow2Format<F>> {
    /// Creates a qcow2 image in an empty file. What is not written is zero, or as in the backing
    /// image if there is one.
    ///
    /// # Errors
    /// As [`qcow2::create`].
    pub async fn create_qcow2(
        file: F,
        size: u64,
        backing: Option<Backing>,
    ) -> Result<Self, ImageError> {
        let has_below = backing.is_some();
        let options = qcow2::CreateOptions { backing, ..qcow2::CreateOptions::new(size) };
        qcow2::create(&file, &options).await?;
        let mut format = Qcow2Format::open(file, has_below).await?;
        format.set_growth(GROWTH_BYTES);
        Ok(Self { has_below, ..Self::new(format) })
    }
}

impl<F: ImageFile + Clone> ImageWriter<VhdFormat<F>> {
    /// Creates a dynamic VHD in an empty file.
    ///
    /// # Errors
    /// As [`vhd::create`].
    pub async fn create_vhd(file: F, size: u64) -> Result<Self, ImageError> {
        vhd::create(&file, &vhd::CreateOptions::dynamic(size)).await?;
        let mut format = VhdFormat::open(file, vhd::OpenOptions::new(size)).await?;
        format.set_growth(GROWTH_BYTES);
        format.take_over(&[]).await?;
        Ok(Self::new(format))
    }
}

impl<F: Format> ImageWriter<F> {
    fn new(format: F) -> Self {
        let layout = format.layout();
        Self { format, layout, has_below: false, references: Vec::new() }
    }

    /// Returns the size of a cluster in bytes.
    pub fn cluster_bytes(&self) -> u64 {
        1 << self.layout.granule_bits
    }

    /// Stores data at an offset that is a multiple of a cluster. No cluster may be written twice.
    /// Blocks of zeroes take no space.
    ///
    /// # Errors
    /// Storage fails or is full.
    pub async fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), ImageError> {
        let bytes = 1 << self.layout.granule_bits;
        for (granule, cluster) in (offset >> self.layout.granule_bits..).zip(data.chunks(bytes)) {
            self.write_cluster(granule, cluster).await?;
        }
        Ok(())
    }

    async fn write_cluster(&mut self, granule: u64, data: &[u8]) -> Result<(), ImageError> {
        let block = 1 << self.layout.block_bits;
        let has_data = |block: &[u8]| block.iter().any(|byte| *byte != 0);
        // A cluster has at most 16 blocks.
        let mask = data.chunks(block).map(has_data).zip(0..16);
        let mask = mask.fold(0, |mask, (stored, bit)| mask | u16::from(stored) << bit);
        if mask == 0 {
            return if self.has_below { self.write_zero(granule).await } else { Ok(()) };
        }
        // Without extended entries, a cluster is stored as a whole: new ones are zero.
        let mask = if self.format.has_blocks() { mask } else { self.layout.full_mask() };
        self.format.reserve(granule).await?;
        let place = self.format.allocate(granule).await?;
        let start = place.units() << self.layout.unit_bits;
        let stored: Vec<_> = (0..).step_by(block).zip(data.chunks(block)).collect();
        for run in stored.chunk_by(|(_, one), (_, next)| has_data(one) == has_data(next)) {
            let Some((at, _)) = run.first().filter(|(_, first)| has_data(first)) else { continue };
            let len = run.iter().map(|(_, block)| block.len()).sum::<usize>();
            let data = data.get(*at..*at + len).unwrap_or_default();
            let offset = start + *at as u64;
            let written = self.format.file().write_at(offset, data).await;
            written.map_err(ImageError::io("write", offset))?;
        }
        self.add_reference(granule, Word::data(place, mask, Base::Zero)).await
    }

    /// Hides what the image below has in a cluster.
    async fn write_zero(&mut self, granule: u64) -> Result<(), ImageError> {
        self.format.reserve(granule).await?;
        self.add_reference(granule, Word::ZERO).await
    }

    async fn add_reference(&mut self, granule: u64, word: Word) -> Result<(), ImageError> {
        self.references.push((granule, word));
        if self.references.len() >= BATCH { self.store_references().await } else { Ok(()) }
    }

    /// Stores the references so far. Without syncs: the image has no user who could see a crash.
    async fn store_references(&mut self) -> Result<(), ImageError> {
        let mut references = std::mem::take(&mut self.references);
        references.sort_unstable_by_key(|(granule, _)| *granule);
        self.format.prepare(&references).await?;
        self.format.write(&references).await
    }

    /// Completes the image and makes it durable.
    ///
    /// # Errors
    /// Storage fails or is full.
    pub async fn finish(mut self) -> Result<(), ImageError> {
        self.store_references().await?;
        self.format.file().sync().await.map_err(ImageError::io("flush", 0))
    }
}
