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

/// Statement of an image about a unit of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Nothing: the layer below has it.
    Below,
    /// It is zero, whatever the layer below has.
    Zero,
    /// The image stores it.
    Data,
}

/// Writer of a new image, which nothing else uses before it is finished.
#[derive(Debug)]
pub struct ImageWriter<F> {
    format: F,
    layout: Layout,
    /// Whether the image lies over another one, which zeroes must hide.
    has_below: bool,
    /// Whether such zeroes are stored, because the format cannot say that a part is zero.
    stores_zeroes: bool,
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
        Self::create_qcow2_layer(file, size, backing, has_below).await
    }

    /// As [`Self::create_qcow2`], of an image that lies over another disk even if it has no reference to
    /// it.
    ///
    /// # Errors
    /// As [`qcow2::create`].
    pub async fn create_qcow2_over(
        file: F,
        size: u64,
        backing: Option<Backing>,
    ) -> Result<Self, ImageError> {
        Self::create_qcow2_layer(file, size, backing, true).await
    }

    async fn create_qcow2_layer(
        file: F,
        size: u64,
        backing: Option<Backing>,
        has_below: bool,
    ) -> Result<Self, ImageError> {
        let options = qcow2::CreateOptions { backing, ..qcow2::CreateOptions::new(size) };
        qcow2::create(&file, &options).await?;
        let mut format = Qcow2Format::open(file, has_below).await?;
        format.set_growth(GROWTH_BYTES);
        Ok(Self { has_below, ..Self::new(format) })
    }
}

impl<F: ImageFile + Clone> ImageWriter<VhdFormat<F>> {
    /// Creates a dynamic or differencing VHD in an empty file. What is not written is zero, or as in
    /// the parent if there is one.
    ///
    /// # Errors
    /// As [`vhd::create`].
    pub async fn create_vhd(file: F, options: &vhd::CreateOptions) -> Result<Self, ImageError> {
        vhd::create(&file, options).await?;
        let has_below = options.parent.is_some();
        let open = vhd::OpenOptions { has_below, ..vhd::OpenOptions::new(options.size) };
        let mut format = VhdFormat::open(file, open).await?;
        format.set_growth(GROWTH_BYTES);
        format.take_over(&[]).await?;
        Ok(Self { has_below, stores_zeroes: true, ..Self::new(format) })
    }
}

impl<F: Format> ImageWriter<F> {
    fn new(format: F) -> Self {
        let layout = format.layout();
        Self { format, layout, has_below: false, stores_zeroes: false, references: Vec::new() }
    }

    /// Returns the size of a cluster in bytes.
    pub fn cluster_bytes(&self) -> u64 {
        1 << self.layout.granule_bits
    }

    /// Returns the size of a unit in bytes: the image says for each whether it is present. A cluster is
    /// a multiple of a unit.
    pub fn unit_bytes(&self) -> usize {
        let bits = self.layout.granule_bits;
        1 << if self.format.has_blocks() { self.layout.block_bits } else { bits }
    }

    /// Stores data at an offset that is a multiple of a cluster. No cluster may be written twice.
    /// Units of zeroes take no space.
    ///
    /// # Errors
    /// Storage fails or is full.
    pub async fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), ImageError> {
        let presence = |unit: &[u8]| match unit.iter().any(|byte| *byte != 0) {
            true => Presence::Data,
            false => Presence::Zero,
        };
        let presence: Vec<_> = data.chunks(self.unit_bytes()).map(presence).collect();
        self.write_units(offset, data, &presence).await
    }

    /// As [`Self::write`], with the presence of each unit of `data`. What is not [`Presence::Data`]
    /// must be zeroes. A cluster of a layer that has all three kinds of units stores its zeroes,
    /// because the formats cannot say more about one cluster.
    ///
    /// # Errors
    /// Storage fails or is full.
    pub async fn write_units(
        &mut self,
        offset: u64,
        data: &[u8],
        presence: &[Presence],
    ) -> Result<(), ImageError> {
        let bytes = 1 << self.layout.granule_bits;
        let units = bytes / self.unit_bytes();
        let clusters = data.chunks(bytes).zip(presence.chunks(units));
        for (granule, (cluster, units)) in (offset >> self.layout.granule_bits..).zip(clusters) {
            self.write_cluster(granule, cluster, units).await?;
        }
        Ok(())
    }

    async fn write_cluster(
        &mut self,
        granule: u64,
        data: &[u8],
        units: &[Presence],
    ) -> Result<(), ImageError> {
        let has = |one: Presence| units.contains(&one);
        let hides = self.has_below && has(Presence::Zero);
        let is_mixed = hides && (self.stores_zeroes || has(Presence::Below));
        let is_stored = |unit: &Presence| match unit {
            Presence::Data => true,
            Presence::Zero => is_mixed,
            Presence::Below => false,
        };
        // A cluster has at most 16 units.
        let mask = units.iter().map(is_stored).zip(0..16);
        let mask = mask.fold(0, |mask, (stored, bit)| mask | u16::from(stored) << bit);
        if mask == 0 {
            if self.has_below && has(Presence::Zero) {
                self.format.reserve(granule).await?;
                self.note(granule, Word::ZERO).await?;
            }
            return Ok(());
        }
        // Without extended entries, a cluster is stored as a whole: new ones are zero.
        let mask = if self.format.has_blocks() { mask } else { self.layout.full_mask() };
        let is_over = self.has_below && (self.stores_zeroes || has(Presence::Below));
        let base = if is_over { Base::Below } else { Base::Zero };
        self.format.reserve(granule).await?;
        let place = self.format.allocate(granule).await?;
        let start = place.units() << self.layout.unit_bits;
        let unit = self.unit_bytes();
        let stored: Vec<_> = (0..).step_by(unit).zip(data.chunks(unit).zip(units)).collect();
        let same = |(_, (_, one)): &(usize, (&[u8], &Presence)),
                    (_, (_, next)): &(usize, (&[u8], &Presence))| {
            is_stored(one) == is_stored(next)
        };
        for run in stored.chunk_by(same) {
            let Some((at, _)) = run.first().filter(|(_, (_, one))| is_stored(one)) else {
                continue;
            };
            let len = run.iter().map(|(_, (unit, _))| unit.len()).sum::<usize>();
            let data = data.get(*at..*at + len).unwrap_or_default();
            let offset = start + *at as u64;
            let written = self.format.file().write_at(offset, data).await;
            written.map_err(ImageError::io("write", offset))?;
        }
        self.note(granule, Word::data(place, mask, base)).await
    }

    async fn note(&mut self, granule: u64, word: Word) -> Result<(), ImageError> {
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
