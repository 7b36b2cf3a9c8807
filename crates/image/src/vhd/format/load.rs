//! Words and pieces of granules from BAT and bitmaps.

use super::VhdFormat;
use super::granule::{BITS_BYTES, Bits, GRANULE_BITS, GRANULE_BYTES};
use crate::format::{Piece, PieceSource, Pieces};
use crate::map::Word;
use crate::vhd::SECTOR;
use crate::vhd::batmap::has_bit;
use crate::vhd::fields::array;
use crate::{ImageError, ImageFile};

impl<F: ImageFile + Clone> VhdFormat<F> {
    /// Returns the begin of a granule's block in the file and its bits, if the BAT has the block.
    pub(super) async fn disk_bits(
        &mut self,
        granule: u64,
    ) -> Result<Option<(u64, Bits)>, ImageError> {
        let per_block = self.block_sizes()?.0 >> GRANULE_BITS;
        let (block, _) = self.split(granule)?;
        let Some(start) = self.image.block(block).await? else { return Ok(None) };
        let bitmap = self.image.bitmap(start).await?;
        // A block has at most 4,096 granules.
        let at = (granule % per_block) as usize * BITS_BYTES;
        Ok(Some((start, array(bitmap, at))))
    }

    /// Returns the word of a granule that the disk stands for.
    pub(super) async fn disk_word(&mut self, granule: u64) -> Result<Word, ImageError> {
        let Some((start, bits)) = self.disk_bits(granule).await? else {
            return Ok(self.granules.absent());
        };
        Ok(self.granules.word(granule, self.place_in(start, granule)?, bits))
    }

    /// Returns the parts of a granule.
    pub(super) async fn pieces(&mut self, granule: u64) -> Result<Pieces, ImageError> {
        let absent = if self.granules.has_below { PieceSource::Below } else { PieceSource::Zero };
        let Some((start, bits)) = self.disk_bits(granule).await? else {
            return Ok([Piece { len: GRANULE_BYTES as usize, source: absent }].into());
        };
        if self.alignment > SECTOR {
            let feature = format!("parts of 4 KiB, on storage with blocks of {}", self.alignment);
            let next = "serve it with cache=writeback, or copy it to a new image";
            return Err(ImageError::Unsupported { feature, next });
        }
        let first = start + self.split(granule)?.1;
        let (mut pieces, mut at) = (Vec::new(), 0);
        let sectors = GRANULE_BYTES / SECTOR;
        while at < sectors {
            let is_stored = has_bit(&bits, at);
            let end = (at..sectors).find(|next| has_bit(&bits, *next) != is_stored);
            let end = end.unwrap_or(sectors);
            let source = match is_stored {
                true => PieceSource::File(first + at * SECTOR),
                false => absent.clone(),
            };
            pieces.push(Piece { len: ((end - at) * SECTOR) as usize, source });
            at = end;
        }
        Ok(pieces.into())
    }
}
