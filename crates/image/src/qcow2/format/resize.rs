//! Growth of the disk.
//!
//! Each step leaves a consistent image of the former size: the end of the last cluster is cleared,
//! a larger L1 table is named, new parts over a longer layer below become zero, and last the header
//! gets the size.

use super::Qcow2Format;
use crate::format::{Format, PieceSource};
use crate::map::{Base, Kind, Word};
use crate::qcow2::create::{MAX_DISK_BYTES, SECTOR};
use crate::qcow2::header::MAX_L1_BYTES;
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};

/// Offset of the size of the disk in the header.
const SIZE_OFFSET: u64 = 24;
/// Offset of the size and place of the L1 table in the header.
const L1_OFFSET: u64 = 36;
/// Granules that become zero in a round.
const ROUND_GRANULES: u64 = 16_384;

impl<F: ImageFile + Clone> Qcow2Format<F> {
    /// Makes the disk larger, and that durable. What is new reads as zero. `below_len`: bytes of the
    /// layer below, 0 if there is none. The image has no map, and its journal is empty.
    ///
    /// # Errors
    /// [`ImageError::Resize`] if the size is not possible, or storage fails or is full. Then the
    /// size is as before.
    pub async fn resize(&mut self, size: u64, below_len: u64) -> Result<(), ImageError> {
        let old = self.image.header.size;
        self.check_size(size)?;
        if size == old {
            return Ok(());
        }
        self.clear_autoclear().await?;
        self.clear_tail(below_len).await?;
        self.grow_l1(size).await?;
        self.image.header.size = size;
        let grown = self.store_size(old, size, below_len).await;
        if grown.is_err() {
            self.image.header.size = old;
        }
        grown
    }

    fn check_size(&self, size: u64) -> Result<(), ImageError> {
        let header = &self.image.header;
        let refuse = |problem: String| Err(ImageError::Resize { problem });
        if size < header.size {
            return refuse(format!("it has {} bytes and cannot shrink to {size}", header.size));
        }
        if !size.is_multiple_of(SECTOR) || size > MAX_DISK_BYTES {
            let rule = format!("at most 64 TiB, in multiples of {SECTOR} bytes");
            return refuse(format!("a disk has {rule}, not {size} bytes"));
        }
        if size.div_ceil(header.l2_table_covers()) * 8 > MAX_L1_BYTES {
            let next = "copy the disk to an image with larger clusters";
            return refuse(format!("its L1 table would have more than 32 MiB; {next}"));
        }
        if header.version < 3 && header.snapshot_count > 0 {
            return refuse("snapshots of version 2 do not know their size; delete them".into());
        }
        Ok(())
    }

    /// Clears the rest of the last cluster behind the end of the disk.
    async fn clear_tail(&mut self, below_len: u64) -> Result<(), ImageError> {
        let (size, cluster_bytes) = (self.image.header.size, self.image.header.cluster_bytes());
        let (granule, within) = (size / cluster_bytes, size % cluster_bytes);
        if within == 0 {
            return Ok(());
        }
        let word = self.load_word(granule).await?;
        let is_longer = self.words.has_below() && below_len > size;
        let uncovers = |has_end: bool| match is_longer && !has_end {
            true => Err(ImageError::Resize {
                problem: "it ends within a cluster of the backing image, which is longer; resize \
                          it with `qemu-img resize`"
                    .into(),
            }),
            false => Ok(()),
        };
        match word.kind() {
            Kind::Zero => Ok(()),
            Kind::OverBelow | Kind::OverZero => {
                let blocks = self.words.full() & (u16::MAX << (within >> self.words.block_bits()));
                uncovers(word.base() == Base::Zero || word.mask() & blocks == blocks)?;
                let offset = self.offset(self.cluster_at(word.place())) + within;
                // A cluster has at most 2 MiB.
                let zeroes = vec![0; (cluster_bytes - within) as usize];
                let written = self.image.tables.file.write_at(offset, &zeroes).await;
                written.map_err(ImageError::io("write", offset))
            }
            Kind::Shared | Kind::Mixed => self.rewrite_tail(granule, within as usize).await,
            _ => uncovers(false),
        }
    }

    /// Gives a shared or mixed last granule a cluster of its own, which is zero from `within` on.
    async fn rewrite_tail(&mut self, granule: u64, within: usize) -> Result<(), ImageError> {
        let mut bytes = Vec::new();
        for piece in self.pieces(granule).await?.iter() {
            let at = bytes.len();
            bytes.resize(at + piece.len, 0);
            let part = bytes.get_mut(at..).unwrap_or_default();
            match &piece.source {
                PieceSource::Zero => {}
                PieceSource::Bytes(piece) => part.copy_from_slice(piece),
                PieceSource::File(offset) => {
                    self.image.tables.read("data", *offset, part).await?;
                }
                PieceSource::Below => {
                    let problem = "its last cluster is in part that of the backing image; resize \
                                   it with `qemu-img resize`";
                    return Err(ImageError::Resize { problem: problem.into() });
                }
            }
        }
        bytes.truncate(within);
        bytes.resize(self.image.header.cluster_bytes() as usize, 0);
        self.reserve(granule).await?;
        let place = self.allocate(granule).await?;
        self.image.tables.write(self.offset(self.cluster_at(place)), &bytes).await?;
        let word = Word::data(place, self.words.full(), Base::Zero);
        self.write_round(&[(granule, word)]).await
    }

    /// Writes references in a round of its own, and frees what they replace.
    async fn write_round(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError> {
        self.prepare_round(references).await?;
        self.sync().await?;
        self.write_references(references).await?;
        self.sync().await?;
        for place in self.take_replaced() {
            self.reclaim(u64::MAX, place).await?;
        }
        Ok(())
    }

    /// Gives the image an L1 table for a disk of `size` bytes.
    async fn grow_l1(&mut self, size: u64) -> Result<(), ImageError> {
        let (former, bits) = (self.image.header.l1, self.image.header.cluster_bits);
        let words = size.div_ceil(self.image.header.l2_table_covers());
        if words <= former.words() {
            return Ok(());
        }
        let clusters = (words * 8).div_ceil(self.image.header.cluster_bytes());
        let first = self.choose_run(clusters).await?;
        let new = TableRange { offset: self.offset(first), bytes: words * 8 };
        // An L1 table has at most 32 MiB, and its clusters at most 2 MiB more.
        let mut bytes = vec![0; (clusters << bits) as usize];
        let kept = bytes.get_mut(..former.bytes as usize).unwrap_or_default();
        if former.bytes > 0 {
            self.image.tables.read("L1 table", former.offset, kept).await?;
        }
        self.image.tables.write(new.offset, &bytes).await?;
        self.replacing.clear();
        let counts = (first..first + clusters).map(|cluster| (cluster, 1)).collect();
        self.write_new_blocks(counts).await?;
        self.sync().await?;
        // At most 4 Mi words.
        let mut fields = (words as u32).to_be_bytes().to_vec();
        fields.extend(new.offset.to_be_bytes());
        self.image.tables.write(L1_OFFSET, &fields).await?;
        self.sync().await?;
        self.image.header.l1 = new;
        self.space.taken.retain(|cluster| !(first..first + clusters).contains(cluster));
        let last = former.offset + former.bytes;
        self.replacing.extend(former.offset >> bits..last.div_ceil(1 << bits));
        for cluster in std::mem::take(&mut self.replacing) {
            self.release(cluster).await?;
        }
        Ok(())
    }

    /// Makes new granules zero that the layer below has, then stores the size of the disk.
    async fn store_size(&mut self, old: u64, size: u64, below_len: u64) -> Result<(), ImageError> {
        let cluster_bytes = self.image.header.cluster_bytes();
        let end = if self.words.has_below() { below_len.min(size) } else { 0 };
        let (mut granule, end) = (old.div_ceil(cluster_bytes), end.div_ceil(cluster_bytes));
        while granule < end {
            let next = (granule + ROUND_GRANULES).min(end);
            let zeroes: Vec<_> = (granule..next).map(|granule| (granule, Word::ZERO)).collect();
            self.write_round(&zeroes).await?;
            granule = next;
        }
        self.sync().await?;
        self.image.tables.write(SIZE_OFFSET, &size.to_be_bytes()).await?;
        self.sync().await
    }
}
