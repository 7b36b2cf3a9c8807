//! Internal snapshots of other programs.

use super::image::Image;
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};

/// Bytes of an entry before its variable fields.
const FIXED_BYTES: usize = 40;
/// Most bytes of an entry's extra data, as in QEMU.
const MAX_EXTRA_BYTES: u32 = 1024;
/// Most bytes of an id or name that are kept; others may have 65,535.
const MAX_NAME_BYTES: usize = 255;
/// Largest snapshot table in bytes, as in QEMU.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// Internal snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Id, up to 255 bytes. Bytes that are no text are replaced.
    pub id: String,
    /// Name, up to 255 bytes. Bytes that are no text are replaced.
    pub name: String,
    /// Time of its creation, in seconds since 1970.
    pub created_unix_seconds: u32,
    /// Size of the disk in bytes, if the entry has it.
    pub disk_bytes: Option<u64>,
    /// Size of the machine's saved state in bytes.
    pub vm_state_bytes: u64,
    /// L1 table.
    pub(super) l1: TableRange,
}

/// Snapshot table, read one entry at a time.
#[derive(Debug)]
pub(super) struct SnapshotTable {
    next: u64,
    left: u32,
    start: u64,
}

impl SnapshotTable {
    pub(super) fn new<F: ImageFile>(image: &Image<F>) -> Self {
        let start = image.header.snapshots_offset;
        Self { next: start, left: image.header.snapshot_count, start }
    }

    /// Returns the bytes of the table that have been read so far.
    pub(super) fn range(&self) -> TableRange {
        TableRange { offset: self.start, bytes: self.next - self.start }
    }

    /// Returns the next snapshot, or `None` at the end.
    pub(super) async fn next<F: ImageFile>(
        &mut self,
        image: &mut Image<F>,
    ) -> Result<Option<Snapshot>, ImageError> {
        if self.left == 0 {
            return Ok(None);
        }
        image.tables.check_stop()?;
        let (structure, offset) = ("snapshot table", self.next);
        let corrupt = |problem| ImageError::Corrupt { structure, offset, problem };
        let mut fixed = [0; FIXED_BYTES];
        image.tables.read(structure, offset, &mut fixed).await?;
        let number = |at: usize, bytes: usize| {
            fixed[at..at + bytes].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let (id_bytes, name_bytes) = (number(12, 2) as usize, number(14, 2) as usize);
        let extra_bytes = number(36, 4) as u32;
        if extra_bytes > MAX_EXTRA_BYTES {
            return Err(corrupt(format!("{extra_bytes} bytes of extra data")));
        }
        let extra_bytes = extra_bytes as usize;
        let mut rest = vec![0; extra_bytes + id_bytes + name_bytes];
        image.tables.read(structure, offset + FIXED_BYTES as u64, &mut rest).await?;
        let bytes = (FIXED_BYTES + rest.len()).next_multiple_of(8) as u64;
        self.next = offset.saturating_add(bytes);
        self.left -= 1;
        if self.next - self.start > MAX_TABLE_BYTES {
            return Err(corrupt(format!("the table has more than {MAX_TABLE_BYTES} bytes")));
        }
        let (extra, names) = rest.split_at(extra_bytes);
        let (id, name) = names.split_at(id_bytes);
        let text = |bytes: &[u8]| {
            let kept = bytes.len().min(MAX_NAME_BYTES);
            String::from_utf8_lossy(&bytes[..kept]).into_owned()
        };
        let extra = |at: usize| {
            let word = extra.get(at..)?.first_chunk()?;
            Some(u64::from_be_bytes(*word))
        };
        Ok(Some(Snapshot {
            id: text(id),
            name: text(name),
            created_unix_seconds: number(16, 4) as u32,
            disk_bytes: extra(8),
            // Entries without the field have the size in 32 bits.
            vm_state_bytes: extra(0).unwrap_or(number(32, 4)),
            l1: TableRange { offset: number(0, 8), bytes: number(8, 4) * 8 },
        }))
    }
}

impl<F: ImageFile> Image<F> {
    /// Returns the first `limit` internal snapshots.
    ///
    /// # Errors
    /// The snapshot table is damaged, or the file fails.
    pub async fn snapshots(&mut self, limit: usize) -> Result<Vec<Snapshot>, ImageError> {
        let (mut table, mut found) = (SnapshotTable::new(self), Vec::new());
        while found.len() < limit
            && let Some(snapshot) = table.next(self).await?
        {
            found.push(snapshot);
        }
        Ok(found)
    }

    /// Shows a snapshot instead of the disk.
    #[cfg(test)]
    pub(crate) fn show(&mut self, snapshot: &Snapshot) {
        self.header.l1 = snapshot.l1;
    }
}
