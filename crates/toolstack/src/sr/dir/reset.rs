//! Volumes that go back to a content when their machine boots.
//!
//! The content is a hidden volume, the reset point, whose record names its owner. Its images are
//! shared as those of a snapshot, so they are never written.

use std::collections::BTreeSet;

use model::id::{Uuid, VdiId};

use super::directory::SrDirectory;
use super::record::Record;
use super::tree::refused;
use crate::sr::SrError;

impl SrDirectory<'_> {
    /// Makes what lies below the top of a volume the content to which it goes back, as a hidden
    /// volume with this id. `None` makes the volume keep its content. A former point is removed.
    ///
    /// # Errors
    /// The volume does not exist, is read-only or has nothing below its top, or a system call failed.
    pub(crate) fn set_reset_point(&self, vdi: VdiId, point: Option<VdiId>) -> Result<(), SrError> {
        let _lock = self.lock_records();
        let record = self.resolved(self.known(vdi)?)?;
        let former = record.reset_to;
        if former == point {
            return Ok(());
        }
        if let Some(point) = point {
            let images = record.images.get(1..).unwrap_or_default().to_vec();
            if record.read_only || images.is_empty() {
                return Err(refused(format!("volume {vdi} has no content to go back to")));
            }
            let hidden = Record {
                read_only: true,
                reset_of: Some(vdi),
                ..Record::new(images, record.bytes)
            };
            self.put_record(point, &hidden)?;
        }
        self.put_record(vdi, &Record { reset_to: point, ..record })?;
        former.map_or(Ok(()), |former| self.remove_point(former))
    }

    /// Names a new image over the content to which a volume goes back. Returns it with the images of
    /// this content, top first. Returns nothing if nothing was written since, or there is no such
    /// content.
    ///
    /// # Errors
    /// The volume does not exist, or a system call failed.
    pub(crate) fn prepare_reset(&self, vdi: VdiId) -> Result<Vec<String>, SrError> {
        let _lock = self.lock_records();
        let record = self.resolved(self.known(vdi)?)?;
        let (Some(point), Some(top)) = (record.reset_to, record.top()) else {
            return Ok(Vec::new());
        };
        let below = self.point(point)?.images;
        let is_over = record.images.get(1..).is_some_and(|images| images == below);
        if is_over && record.new_top == Some(self.state(top)?) {
            return Ok(Vec::new());
        }
        // Each reset begins with another top, so the name is new.
        let base = below.first().copied().unwrap_or(top);
        let layer = base.layer(Uuid::from_name(&vdi.0, &top.to_string()));
        self.put_record(vdi, &Record { next: Some(layer), resets: true, ..record })?;
        Ok([layer].iter().chain(&below).map(ToString::to_string).collect())
    }

    /// Returns the record after its reset: `next` lies over the reset point alone.
    pub(super) fn after_reset(&self, record: Record) -> Result<Record, SrError> {
        let (Some(next), Some(point)) = (record.next, record.reset_to) else {
            return Ok(Record { resets: false, ..record });
        };
        let point = self.point(point)?;
        let images: Vec<_> = [next].into_iter().chain(point.images).collect();
        let mut replaced: BTreeSet<_> =
            record.images.iter().chain(&record.replaced).copied().collect();
        replaced.retain(|image| !images.contains(image));
        let replaced = replaced.into_iter().collect();
        let bytes = point.bytes;
        Ok(Record { images, replaced, bytes, next: None, resets: false, new_top: None, ..record })
    }

    /// Removes the images that a reset has replaced and no other volume has.
    ///
    /// # Errors
    /// A record is invalid, or a system call failed.
    pub(super) fn remove_replaced(&self, vdi: VdiId, record: Record) -> Result<(), SrError> {
        if record.replaced.is_empty() {
            return Ok(());
        }
        self.remove_unused(&record.replaced.iter().copied().collect())?;
        self.put_record(vdi, &Record { replaced: Vec::new(), ..record })
    }

    /// Removes a reset point that its volume does not name any more.
    pub(super) fn remove_point(&self, point: VdiId) -> Result<(), SrError> {
        self.record(point)?.map_or(Ok(()), |record| self.destroy_recorded(point, record))
    }

    fn point(&self, point: VdiId) -> Result<Record, SrError> {
        let missing =
            || refused(format!("the record {point} of the content to go back to is gone"));
        self.record(point)?.ok_or_else(missing)
    }
}
