//! Reads of tables, through a cache of slices with a budget.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{ImageError, ImageFile};

/// Bytes of a slice: an L2 table of an image with clusters of 64 KiB. Storage reads one about as fast
/// as one block.
pub(crate) const SLICE_BYTES: u64 = 64 << 10;
/// Bytes of a block: only blocks that have changed are written.
const BLOCK_BYTES: usize = 4096;
/// Most bytes of cached slices of an image, unless its owner sets another budget: L2 tables for
/// 16 GiB with clusters of 64 KiB and extended entries, for 32 GiB with plain ones.
const DEFAULT_BUDGET: usize = 4 << 20;
/// The cache keeps this many slices in any case.
const MIN_SLICES: usize = 8;

/// Place of a table in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRange {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl TableRange {
    /// Returns the number of entries of 8 bytes.
    pub fn words(&self) -> u64 {
        self.bytes / 8
    }
}

/// File of an image with a cache of its tables.
#[derive(Debug)]
pub(crate) struct Tables<F> {
    pub(crate) file: F,
    /// Size of the file in bytes when it was last measured.
    len: u64,
    slices: HashMap<u64, Slice>,
    max_slices: usize,
    /// Number of accesses so far.
    clock: u64,
    stop: Option<Arc<AtomicBool>>,
}

#[derive(Debug)]
struct Slice {
    bytes: Box<[u8]>,
    used: u64,
}

impl<F: ImageFile> Tables<F> {
    pub(crate) async fn new(file: F) -> Result<Self, ImageError> {
        let len = file.len().await.map_err(ImageError::io("measure", 0))?;
        let mut tables =
            Self { file, len, slices: HashMap::new(), max_slices: 0, clock: 0, stop: None };
        tables.set_budget(DEFAULT_BUDGET);
        Ok(tables)
    }

    pub(crate) fn set_budget(&mut self, bytes: usize) {
        self.max_slices = (bytes / SLICE_BYTES as usize).max(MIN_SLICES);
        self.slices.clear();
    }

    /// Ends long work when `stop` becomes true.
    pub(crate) fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// Fails if the caller has requested an end.
    pub(crate) fn check_stop(&self) -> Result<(), ImageError> {
        match &self.stop {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(ImageError::Stopped),
            _ => Ok(()),
        }
    }

    /// Returns the size of the file in bytes when it was last measured.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether `offset` is in the file. Measures the file again if it is not.
    pub(crate) async fn contains(&mut self, offset: u64) -> Result<bool, ImageError> {
        if offset >= self.len {
            self.len = self.file.len().await.map_err(ImageError::io("measure", 0))?;
        }
        Ok(offset < self.len)
    }

    /// Fills `out` with bytes of the file. Bytes behind its end are zero, because the last cluster
    /// may be shorter in the file. The first byte must be in the file.
    pub(crate) async fn read(
        &mut self,
        structure: &'static str,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), ImageError> {
        let last = offset.saturating_add(out.len() as u64);
        if !self.contains(last.saturating_sub(1)).await? && offset >= self.len {
            let problem =
                format!("it lies behind the end of the file, which has {} bytes", self.len);
            return Err(ImageError::Corrupt { structure, offset, problem });
        }
        let there = usize::try_from(self.len - offset).unwrap_or(usize::MAX).min(out.len());
        let (found, rest) = out.split_at_mut(there);
        self.file.read_at(offset, found).await.map_err(ImageError::io("read", offset))?;
        rest.fill(0);
        Ok(())
    }

    /// Returns the slice of a table that contains byte `at`, and the position of that byte.
    pub(crate) async fn slice(
        &mut self,
        structure: &'static str,
        table: TableRange,
        at: u64,
    ) -> Result<(&[u8], usize), ImageError> {
        self.check_stop()?;
        let start = at - at % SLICE_BYTES;
        let offset = table.offset.saturating_add(start);
        let bytes = table.bytes.saturating_sub(start).min(SLICE_BYTES) as usize;
        self.clock += 1;
        // A hostile image may have two tables at one place, with different ends.
        if self.slices.get(&offset).is_none_or(|slice| slice.bytes.len() != bytes) {
            let mut slice = vec![0; bytes].into_boxed_slice();
            self.read(structure, offset, &mut slice).await?;
            self.evict();
            self.slices.insert(offset, Slice { bytes: slice, used: 0 });
        }
        let clock = self.clock;
        let slice = self.slices.get_mut(&offset).map(|slice| {
            slice.used = clock;
            &*slice.bytes
        });
        Ok((slice.unwrap_or_default(), (at - start) as usize))
    }

    /// Returns entry `index` of a table of words of 8 bytes.
    pub(crate) async fn word(
        &mut self,
        structure: &'static str,
        table: TableRange,
        index: u64,
    ) -> Result<u64, ImageError> {
        let at = index.saturating_mul(8);
        let (slice, at) = self.slice(structure, table, at).await?;
        let word = slice.get(at..).and_then(|rest| rest.first_chunk());
        word.map(|word| u64::from_be_bytes(*word)).ok_or_else(|| ImageError::Corrupt {
            structure,
            offset: table.offset,
            problem: format!("it has no entry {index}"),
        })
    }

    /// Forgets all cached slices.
    pub(crate) fn forget(&mut self) {
        self.slices = HashMap::new();
    }

    /// Writes a part of a table, from the first block that has changed to the last one. The caller
    /// syncs.
    pub(crate) async fn write_changes(
        &mut self,
        offset: u64,
        old: &[u8],
        new: &[u8],
    ) -> Result<(), ImageError> {
        let blocks = || new.chunks(BLOCK_BYTES).zip(old.chunks(BLOCK_BYTES));
        let changed = |(new, old): (&[u8], &[u8])| new != old;
        let Some(first) = blocks().position(changed) else { return Ok(()) };
        let last = blocks().rposition(changed).unwrap_or(first);
        let (start, end) = (first * BLOCK_BYTES, (last + 1) * BLOCK_BYTES);
        let part = new.get(start..end.min(new.len())).unwrap_or_default();
        self.write(offset + start as u64, part).await
    }

    /// Writes bytes of a table. The caller syncs.
    pub(crate) async fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), ImageError> {
        let written = self.file.write_at(offset, data).await;
        let end = offset.saturating_add(data.len() as u64);
        let is_written = written.is_ok();
        self.slices.retain(|&start, slice| {
            let slice_end = start.saturating_add(slice.bytes.len() as u64);
            if start >= end || slice_end <= offset {
                return true;
            }
            // After an error, the file may have any part of the data.
            let (from, to) = (start.max(offset), slice_end.min(end));
            // Both ranges lie within a slice or the data.
            let (at, len) = ((from - start) as usize, (to - from) as usize);
            let new = data.get((from - offset) as usize..).and_then(|data| data.get(..len));
            if let (Some(old), Some(new)) = (slice.bytes.get_mut(at..at + len), new) {
                old.copy_from_slice(new);
            }
            is_written
        });
        written.map_err(ImageError::io("write", offset))
    }

    fn evict(&mut self) {
        while self.slices.len() >= self.max_slices {
            let oldest = self.slices.iter().min_by_key(|(_, slice)| slice.used);
            let Some(offset) = oldest.map(|(offset, _)| *offset) else { return };
            self.slices.remove(&offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PlainFile, run_now};

    #[test]
    fn only_blocks_that_have_changed_are_written() {
        let on_disk = vec![1; 5 * BLOCK_BYTES];
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &on_disk).unwrap();
        let open = std::fs::File::options().read(true).write(true).open(file.path()).unwrap();
        let mut tables = run_now(Tables::new(PlainFile::new(open.into()))).unwrap();
        // What the caller takes for the content, and what is there, differ outside of the changes.
        let old = vec![2; 3 * BLOCK_BYTES + 100];
        let mut new = old.clone();
        run_now(tables.write_changes(BLOCK_BYTES as u64, &old, &new)).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), on_disk);
        (new[BLOCK_BYTES + 7], new[3 * BLOCK_BYTES + 99]) = (9, 9);
        run_now(tables.write_changes(BLOCK_BYTES as u64, &old, &new)).unwrap();
        let found = std::fs::read(file.path()).unwrap();
        assert_eq!(found[..2 * BLOCK_BYTES], on_disk[..2 * BLOCK_BYTES]);
        assert_eq!(found[2 * BLOCK_BYTES..4 * BLOCK_BYTES + 100], new[BLOCK_BYTES..]);
        assert_eq!(found[4 * BLOCK_BYTES + 100..], on_disk[4 * BLOCK_BYTES + 100..]);
    }
}
