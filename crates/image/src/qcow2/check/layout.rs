//! All tables of an image, each named once with the number of its references.

use crate::qcow2::image::Image;
use crate::qcow2::snapshots::SnapshotTable;
use crate::report::CheckReport;
use crate::tables::TableRange;
use crate::{ImageError, ImageFile};

/// Most L2 tables of all snapshots, for 64 MiB of memory: 1 PiB of disk with our clusters.
const MAX_L2_TABLES: usize = 4 << 20;
/// Largest L1 table of a snapshot in bytes.
const MAX_L1_BYTES: u64 = 32 << 20;

/// Table with its references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableUse {
    pub(super) range: TableRange,
    /// Number of snapshots that use it, plus one if the disk itself does.
    pub(super) times: u32,
    /// Whether the disk itself uses it.
    pub(super) is_active: bool,
}

/// Tables of the disk and of all snapshots, in the order of their offsets.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) snapshot_table: TableRange,
    pub(super) l1_tables: Vec<TableUse>,
    pub(super) l2_tables: Vec<TableUse>,
}

impl Layout {
    pub(super) async fn read<F: ImageFile>(
        image: &mut Image<F>,
        report: &mut CheckReport,
    ) -> Result<Self, ImageError> {
        let mut l1_tables = vec![TableUse { range: image.header.l1, times: 1, is_active: true }];
        let mut table = SnapshotTable::new(image);
        loop {
            let next = table.next(image).await;
            let Some(Some(snapshot)) = report.note(next)? else { break };
            if let Some(problem) = bad_l1(image, snapshot.l1) {
                report.error(snapshot.l1.offset, || format!("L1 table of a snapshot: {problem}"));
                continue;
            }
            l1_tables.push(TableUse { range: snapshot.l1, times: 1, is_active: false });
        }
        merge(&mut l1_tables);
        l1_tables.retain(|table| table.range.bytes > 0);
        let snapshot_table = table.range();
        let mut layout = Self { snapshot_table, l1_tables, l2_tables: Vec::new() };
        let all: u64 = layout.l1_tables.iter().map(|table| table.range.bytes).sum();
        if all > image.tables.len() {
            // A table in a file as small as that shares clusters with others: reading all of them
            // could take for ever.
            report.error(image.header.l1.offset, || "L1 tables overlap each other".into());
            layout.l1_tables.retain(|table| table.is_active);
        }
        layout.read_l2_tables(image, report).await?;
        Ok(layout)
    }

    async fn read_l2_tables<F: ImageFile>(
        &mut self,
        image: &mut Image<F>,
        report: &mut CheckReport,
    ) -> Result<(), ImageError> {
        let bytes = image.header.cluster_bytes();
        for l1 in &self.l1_tables {
            for index in 0..l1.range.words() {
                let entry = image.l1_entry(l1.range, index).await;
                let Some(Some(entry)) = report.note(entry)? else { continue };
                if l1.is_active {
                    image.check_copied(entry.table, entry.copied, "L2 table", report).await?;
                }
                let range = TableRange { offset: entry.table, bytes };
                self.l2_tables.push(TableUse { range, ..*l1 });
                if self.l2_tables.len() > MAX_L2_TABLES {
                    merge(&mut self.l2_tables);
                    // Merging again and again must not take most of the time.
                    if self.l2_tables.len() > MAX_L2_TABLES / 2 {
                        let feature = format!("more than {} L2 tables", MAX_L2_TABLES / 2);
                        let next = "check it with `qemu-img check`";
                        return Err(ImageError::Unsupported { feature, next });
                    }
                }
            }
        }
        merge(&mut self.l2_tables);
        Ok(())
    }
}

/// Sorts tables and makes one of those at the same place.
fn merge(tables: &mut Vec<TableUse>) {
    tables.sort_unstable_by_key(|table| (table.range.offset, table.range.bytes));
    tables.dedup_by(|next, kept| {
        let is_same = next.range == kept.range;
        if is_same {
            kept.times = kept.times.saturating_add(next.times);
            kept.is_active |= next.is_active;
        }
        is_same
    });
}

fn bad_l1<F: ImageFile>(image: &Image<F>, l1: TableRange) -> Option<String> {
    let TableRange { offset, bytes } = l1;
    if bytes == 0 {
        return None;
    }
    if bytes > MAX_L1_BYTES || !offset.is_multiple_of(image.header.cluster_bytes()) {
        return Some(format!("{bytes} bytes at {offset}"));
    }
    let end = offset.checked_add(bytes)?;
    (end > image.tables.len().saturating_add(image.header.cluster_bytes()))
        .then(|| format!("{bytes} bytes at {offset}, behind the end of the file"))
}
