//! Repair of what is safe to repair: leaks, and marks that contradict the refcounts.

use super::{MAX_PAGES, OnLeak};
use crate::qcow2::image::Image;
use crate::qcow2::l2::{COPIED, Cluster, L2Entry};
use crate::report::CheckReport;
use crate::{ImageError, ImageFile};

impl<F: ImageFile> Image<F> {
    /// Sets too large refcounts to the number of references, which releases leaked clusters. Then
    /// marks exactly the clusters with one reference as copied. The image must be open for writing
    /// and locked. Returns the report of a check after that.
    ///
    /// # Errors
    /// As [`Self::check`], or the image has other errors, which make a repair unsafe.
    pub async fn repair_leaks(&mut self) -> Result<CheckReport, ImageError> {
        let before = self.check().await?;
        if before.errors > before.wrong_marks {
            let problem = format!(
                "it has {} errors, so what looks leaked may be in use; save its data with \
                 `qemu-img convert`, or repair a copy with `qemu-img check -r all`",
                before.errors
            );
            return Err(ImageError::Repair { problem });
        }
        if before.is_clean() {
            return Ok(before);
        }
        let repaired_leaks = self.run_check(MAX_PAGES, OnLeak::Repair).await?.repaired_leaks;
        // A mark says that a cluster may be written in place: refcounts are durable before it.
        self.sync().await?;
        let repaired_marks = self.correct_marks().await?;
        self.sync().await?;
        Ok(CheckReport { repaired_leaks, repaired_marks, ..self.check().await? })
    }

    async fn sync(&mut self) -> Result<(), ImageError> {
        self.tables.file.sync().await.map_err(ImageError::io("flush", 0))
    }

    /// Corrects the marks of the disk's tables and clusters. Returns the number of corrections.
    async fn correct_marks(&mut self) -> Result<u64, ImageError> {
        let (l1, format) = (self.header.l1, self.header.entry_format());
        let entries = self.header.cluster_bytes() / format.bytes();
        let mut corrected = 0;
        for index in 0..l1.words() {
            let Some(entry) = self.l1_entry(l1, index).await? else { continue };
            if let Some(mark) = self.right_mark(entry.table, entry.copied).await? {
                self.write_word(l1.offset + index * 8, entry.table | mark).await?;
                corrected += 1;
            }
            for index in 0..entries {
                let L2Entry::Cluster(cluster) = self.l2_entry(entry.table, index).await? else {
                    continue;
                };
                let Some(host) = cluster.host else { continue };
                if let Some(mark) = self.right_mark(host, cluster.copied).await? {
                    let copied = mark != 0;
                    let (word, _) = format.to_words(&Cluster { copied, ..cluster });
                    self.write_word(entry.table + index * format.bytes(), word).await?;
                    corrected += 1;
                }
            }
        }
        Ok(corrected)
    }

    /// Returns the mark that the entry of a cluster must have, if it has the other one.
    async fn right_mark(&mut self, offset: u64, copied: bool) -> Result<Option<u64>, ImageError> {
        let right = self.refcount(offset >> self.header.cluster_bits).await? == 1;
        Ok((right != copied).then_some(if right { COPIED } else { 0 }))
    }

    async fn write_word(&mut self, offset: u64, word: u64) -> Result<(), ImageError> {
        self.tables.write(offset, &word.to_be_bytes()).await
    }
}
