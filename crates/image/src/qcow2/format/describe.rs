//! Parts of clusters that one word cannot describe.

use super::Qcow2Format;
use crate::format::{Piece, PieceSource, Pieces};
use crate::qcow2::l2::{L2Entry, Mapping, SUBCLUSTERS};
use crate::{ImageError, ImageFile};

impl<F: ImageFile + Clone> Qcow2Format<F> {
    /// Returns the entry of a granule on disk, with the marks of its table.
    pub(super) async fn entry(&mut self, granule: u64) -> Result<Option<L2Entry>, ImageError> {
        let offset = granule.saturating_mul(self.image.header.cluster_bytes());
        let entry = self.image.entry(offset).await?;
        let index = granule / self.entries_per_table();
        let is_shared = self.l1_entry(index).await?.is_some_and(|entry| !entry.copied);
        Ok(entry.map(|entry| match entry {
            L2Entry::Cluster(mut cluster) => {
                cluster.copied &= !is_shared;
                L2Entry::Cluster(cluster)
            }
            compressed @ L2Entry::Compressed(_) => compressed,
        }))
    }

    /// Returns the parts of a granule.
    pub(super) async fn pieces(&mut self, granule: u64) -> Result<Pieces, ImageError> {
        // A cluster has at most 2 MiB.
        let bytes = self.image.header.cluster_bytes() as usize;
        let cluster = match self.entry(granule).await? {
            Some(L2Entry::Compressed(compressed)) => {
                let mut out = vec![0; bytes];
                self.image.read_compressed(compressed, &mut out).await?;
                return Ok([Piece { len: bytes, source: PieceSource::Bytes(out) }].into());
            }
            Some(L2Entry::Cluster(cluster)) => cluster,
            None => Default::default(),
        };
        let unit = bytes / SUBCLUSTERS as usize;
        let (mut pieces, mut index) = (Vec::new(), 0);
        while index < SUBCLUSTERS {
            let (mapping, count) = cluster.mapping(index, u64::from(index) * unit as u64);
            let source = match mapping {
                Mapping::Data { host_offset, .. } => PieceSource::File(host_offset),
                Mapping::Unallocated if self.words.has_below() => PieceSource::Below,
                _ => PieceSource::Zero,
            };
            pieces.push(Piece { len: count as usize * unit, source });
            index += count;
        }
        Ok(pieces.into())
    }
}
