//! Check: footers, BAT entries, overlaps, the batmap, and space that nothing uses.

use super::SECTOR;
use super::batmap::has_bit;
use super::image::{FooterState, Image, UNUSED};
use crate::report::CheckReport;
use crate::{ImageError, ImageFile};

impl<F: ImageFile> Image<F> {
    /// Checks footers and tables. Writes nothing. Clusters of the report are blocks.
    ///
    /// # Errors
    /// The file fails, or the caller has requested an end. Damage is part of the report.
    pub async fn check(&mut self) -> Result<CheckReport, ImageError> {
        let mut report = CheckReport::default();
        self.check_footers(&mut report).await?;
        let Some(header) = &self.header else { return Ok(report) };
        let (entries, block_bytes) = (header.entries, header.block_bytes);
        let total = block_bytes + header.bitmap_bytes();
        let table_offset = header.table_offset;
        report.clusters = self.footer.size.div_ceil(block_bytes);
        let mut starts: Vec<(u64, u64)> = Vec::new();
        for block in 0..entries {
            let found = self.block(block).await;
            if let Some(Some(start)) = report.note(found)? {
                starts.push((start, block));
            }
        }
        // All blocks, 64 MiB of them at most.
        report.allocated_clusters = starts.len() as u64;
        starts.sort_unstable();
        let metadata = self.metadata()?;
        for pair in starts.windows(2) {
            let &[(start, block), (next, other)] = pair else { continue };
            if next < start + total {
                report.error(table_offset + other * 4, || {
                    format!("the blocks {block} and {other} overlap at byte {next}")
                });
            }
            // As many as fit: each may have a gap before it, for its alignment.
            for at in 0..next.saturating_sub(start + total) / (total + 4096) {
                let offset = start + total * (at + 1);
                report.leak(offset, || "space of a block that nothing uses".into());
            }
        }
        for range in metadata {
            let at = starts.partition_point(|(start, _)| start + total <= range.start);
            if let Some((start, block)) = starts.get(at).filter(|(start, _)| *start < range.end) {
                report.error(*start, || format!("block {block} is over tables or locators"));
            }
        }
        self.check_batmap(&starts, &mut report).await?;
        Ok(report)
    }

    async fn check_footers(&mut self, report: &mut CheckReport) -> Result<(), ImageError> {
        let next = "serve the image for writing once, which stores it again";
        let end = self.tables.len() - SECTOR;
        let [at_end, copy] = self.footers().await?;
        match at_end {
            FooterState::Same => {}
            // A power cut leaves that while the file grows, and the copy holds.
            FooterState::Outdated => {
                report.leak(end, || format!("the footer at the end is missing or old; {next}"));
            }
            FooterState::Different => report.error(end, || {
                format!("the footer at the end is not the copy at byte 0, which holds; {next}")
            }),
        }
        if copy != FooterState::Same {
            report.error(0, || format!("the copy of the footer is damaged; {next}"));
        }
        Ok(())
    }

    /// Checks that each block in the batmap has all of its bits.
    async fn check_batmap(
        &mut self,
        starts: &[(u64, u64)],
        report: &mut CheckReport,
    ) -> Result<(), ImageError> {
        let Some(bits) = self.batmap_bits().await? else { return Ok(()) };
        let sectors = self.blocks()?.block_bytes / SECTOR;
        for &(start, block) in starts.iter().filter(|(_, block)| has_bit(&bits, *block)) {
            let bitmap = self.bitmap(start).await?;
            if !(0..sectors).all(|sector| has_bit(bitmap, sector)) {
                report.error(start, || format!("the batmap says that block {block} is full"));
            }
        }
        for block in 0..self.blocks()?.entries {
            if has_bit(&bits, block) && self.entry(block).await? == UNUSED {
                report.error(0, || format!("the batmap has block {block}, which is absent"));
            }
        }
        Ok(())
    }
}
