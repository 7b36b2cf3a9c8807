//! Words from L2 tables.

use super::Qcow2Format;
use crate::map::Word;
use crate::qcow2::l2::{EntryFormat, L1Entry, L2Entry};
use crate::{ImageError, ImageFile};

impl<F: ImageFile + Clone> Qcow2Format<F> {
    /// Loads words of granules from `first` on. Each slice is read once.
    pub(super) async fn load_words(
        &mut self,
        first: u64,
        words: &mut [Word],
    ) -> Result<(), ImageError> {
        let per_table = self.entries_per_table();
        let (mut granule, mut rest) = (first, words);
        while !rest.is_empty() {
            let index = granule % per_table;
            let in_table = usize::try_from(per_table - index).unwrap_or(usize::MAX);
            let count = rest.len().min(in_table);
            let loaded = match self.l1_entry(granule / per_table).await? {
                Some(l1_entry) => self.load_slice(l1_entry, index, &mut rest[..count]).await?,
                None => {
                    rest[..count].fill(self.words.absent());
                    count
                }
            };
            granule += loaded as u64;
            rest = &mut rest[loaded..];
        }
        Ok(())
    }

    /// Loads words from entry `index` of an L2 table on, as far as one slice has them. Returns their
    /// number, at least 1.
    async fn load_slice(
        &mut self,
        l1_entry: L1Entry,
        index: u64,
        words: &mut [Word],
    ) -> Result<usize, ImageError> {
        let format = self.image.header.entry_format();
        let (table, entry_bytes) = (l1_entry.table, format.bytes());
        let corrupt = |index: u64, problem| {
            let offset = table.saturating_add(index * entry_bytes);
            ImageError::Corrupt { structure: "L2 entry", offset, problem }
        };
        let range = self.l2_range(table);
        let (slice, at) = self.image.tables.slice("L2 table", range, index * entry_bytes).await?;
        let entries = slice.get(at..).unwrap_or_default().chunks_exact(entry_bytes as usize);
        let (mut loaded, mut last_offset, mut places) = (0, 0, Vec::new());
        for ((entry, word), index) in entries.zip(words).zip(index..) {
            let parsed =
                parse(format, entry, l1_entry).map_err(|problem| corrupt(index, problem))?;
            let too_far = || corrupt(index, "no map can name a place that far".into());
            *word = self.words.word(&parsed).ok_or_else(too_far)?;
            last_offset = last_offset.max(match parsed {
                L2Entry::Cluster(cluster) => {
                    places.extend(cluster.host.filter(|_| cluster.copied));
                    cluster.host.unwrap_or(0)
                }
                L2Entry::Compressed(compressed) => compressed.offset,
            });
            loaded += 1;
        }
        if loaded == 0 || !self.image.tables.contains(last_offset).await? {
            let problem = format!("entries refer to {last_offset:#x}, behind the end of the file");
            return Err(corrupt(index, problem));
        }
        // Guests write there.
        for place in places {
            self.refuse_table(place >> self.image.header.cluster_bits)?;
        }
        Ok(loaded)
    }
}

/// Parses an entry of the L2 table that an L1 entry names.
fn parse(format: EntryFormat, entry: &[u8], l1_entry: L1Entry) -> Result<L2Entry, String> {
    let word = |at: usize| {
        let bytes = entry.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
    };
    let mut parsed = format.parse(word(0), if format.is_extended { word(8) } else { 0 })?;
    if let L2Entry::Cluster(cluster) = &mut parsed {
        // A table that a snapshot uses, too, shares all its clusters.
        cluster.copied &= l1_entry.copied;
    }
    Ok(parsed)
}
