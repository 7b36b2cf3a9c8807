//! Merges of images of an SR, so that chains of images stay short.
//!
//! # Crash rules
//! - The journal names the new image before it exists. If it exists, it is complete.
//! - The new image has the same content as the images that it replaces, over what lies below them.
//!   So each record and each served disk changes on its own, in any order, and at any time.
//! - Images are removed when no record names them and no process serves them.
//! - A merge is given up only while its new image does not exist. Later it goes on from here, after a
//!   crash, too.

use std::collections::{BTreeMap, BTreeSet};

use model::coalesce::{self, Chain};
use model::id::{Uuid, VdiId};
use model::image::ImageFormat;
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;

use super::directory::SrDirectory;
use super::merge_journal::{MergeJournal, Merging};
use super::record::{ImageName, Record};
use crate::sr::SrError;
use crate::sr::worker::WireMerge;

/// Configuration key that errors about merges name.
const COALESCE: &str = "coalesce";
/// Bytes of a block in a file's status.
const STATUS_BLOCK: u64 = 512;

impl Record {
    /// Returns the place of all images of a merge among those of the volume.
    fn place_of(&self, merge: &Merging) -> Option<usize> {
        let at = self.images.windows(merge.images.len()).position(|part| part == merge.images);
        at.filter(|_| !self.images.contains(&merge.into))
    }
}

/// Returns the format of the image that replaces these, top first. Images over a VHD know it by its
/// identity, which only a VHD can have.
fn merged_format(images: &[ImageName]) -> ImageFormat {
    let [top, lowest] = [images.first(), images.last()].map(|one| one.map(|one| one.format()));
    match (top, lowest) {
        (Some(ImageFormat::Vhd), _) => ImageFormat::Vhd,
        (_, Some(ImageFormat::Raw)) => ImageFormat::Raw,
        _ => ImageFormat::Qcow2,
    }
}

impl SrDirectory<'_> {
    /// Returns the merge under way, or begins the next one with the new image `into`. `None` if there
    /// is nothing to merge. The images of the volumes `kept` stay as they are.
    ///
    /// # Errors
    /// A record or the journal is invalid, or a system call failed.
    pub(crate) fn begin_merge(
        &self,
        into: Uuid,
        kept: &BTreeSet<VdiId>,
    ) -> Result<Option<WireMerge>, SrError> {
        let _lock = self.lock_records();
        let mut journal = self.merge_journal()?;
        self.remove_abandoned(&journal)?;
        let records = self.records(&self.names()?)?;
        if let Some(merge) = &journal.merge {
            if let Some(present) = self.present(merge, &records)? {
                return Ok(Some(present));
            }
            // No volume is left that has these images.
            self.finish(&mut journal, &records)?;
        }
        let Some(images) = self.planned(&records, kept)? else { return Ok(None) };
        let into = ImageName::new(into, merged_format(&images));
        let merge = Merging { images, into };
        let present = self.present(&merge, &records)?;
        journal.merge = Some(merge);
        self.put_merge_journal(&journal)?;
        Ok(present)
    }

    fn present(
        &self,
        merge: &Merging,
        records: &BTreeMap<VdiId, Record>,
    ) -> Result<Option<WireMerge>, SrError> {
        let is_complete = self.has(&merge.into.to_string())?;
        let mut chains = records.values().filter_map(|record| {
            let at = record.place_of(merge)?;
            Some(record.images.get(at..)?.iter().map(ToString::to_string).collect::<Vec<_>>())
        });
        Ok(chains.next().map(|chain| WireMerge {
            chain,
            count: merge.images.len().try_into().unwrap_or(u32::MAX),
            into: merge.into.to_string(),
            is_complete,
        }))
    }

    /// Chooses the images of the next merge.
    fn planned(
        &self,
        records: &BTreeMap<VdiId, Record>,
        kept: &BTreeSet<VdiId>,
    ) -> Result<Option<Vec<ImageName>>, SrError> {
        let chain = |(vdi, record): (&VdiId, &Record)| Chain {
            images: record.images.clone(),
            is_written: !record.read_only,
            is_kept: record.incomplete || kept.contains(vdi),
        };
        let chains: Vec<_> = records.iter().map(chain).collect();
        let images: BTreeSet<_> = records.values().flat_map(|one| one.images.clone()).collect();
        let mut stored = BTreeMap::new();
        for image in images {
            if let Some(bytes) = self.stored_bytes(image)? {
                stored.insert(image, bytes);
            }
        }
        let space = self.space()?;
        let free = space.total.saturating_sub(space.used);
        Ok(coalesce::plan(&chains, &stored, free).map(|merge| merge.images))
    }

    /// Returns the bytes that an image stores. `None` if it does not exist.
    pub(super) fn stored_bytes(&self, image: ImageName) -> Result<Option<u64>, SrError> {
        let name = image.to_string();
        match statat(&self.fd, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
                Ok(Some(blocks.saturating_mul(STATUS_BLOCK)))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.os("look at", &name, error)),
        }
    }

    /// Returns the volumes whose records name images that are merged.
    ///
    /// # Errors
    /// A record or the journal is invalid, or a system call failed.
    pub(crate) fn merge_users(&self) -> Result<Vec<VdiId>, SrError> {
        let _lock = self.lock_records();
        let Some(merge) = self.merge_journal()?.merge else { return Ok(Vec::new()) };
        let records = self.records(&self.names()?)?;
        let users = records.iter().filter(|(_, record)| record.place_of(&merge).is_some());
        Ok(users.map(|(vdi, _)| *vdi).collect())
    }

    /// Records that a volume has the new image of the merge. Does nothing if it does not have the
    /// former ones, or does not exist. The caller has made sure that no process serves it with them.
    ///
    /// # Errors
    /// The new image does not exist, a record is invalid, or a system call failed.
    pub(crate) fn switch_merge(&self, vdi: VdiId) -> Result<(), SrError> {
        let _lock = self.lock_records();
        let Some(merge) = self.merge_journal()?.merge else { return Ok(()) };
        let Some(mut record) = self.record(vdi)? else { return Ok(()) };
        let Some(at) = record.place_of(&merge) else { return Ok(()) };
        if !self.has(&merge.into.to_string())? {
            let why = format!("the new image {} does not exist", merge.into);
            return Err(SrError::Config { key: COALESCE.into(), why });
        }
        record.images.splice(at..at.saturating_add(merge.images.len()), [merge.into]);
        if at == 0 {
            record.new_top = None;
        }
        self.put_record(vdi, &record)
    }

    /// Ends the merge: removes the former images, or the journal of a merge whose new image does not
    /// exist. Returns false if volumes still have the former images.
    ///
    /// # Errors
    /// A record or the journal is invalid, or a system call failed.
    pub(crate) fn end_merge(&self) -> Result<bool, SrError> {
        let _lock = self.lock_records();
        let mut journal = self.merge_journal()?;
        let Some(merge) = &journal.merge else { return Ok(true) };
        let records = self.records(&self.names()?)?;
        if !self.has(&merge.into.to_string())? {
            journal.abandon();
            self.put_merge_journal(&journal)?;
            return Ok(true);
        }
        if records.values().any(|record| record.place_of(merge).is_some()) {
            return Ok(false);
        }
        self.finish(&mut journal, &records)?;
        Ok(true)
    }

    /// Removes what no record names any more of a merge, and its journal.
    fn finish(
        &self,
        journal: &mut MergeJournal,
        records: &BTreeMap<VdiId, Record>,
    ) -> Result<(), SrError> {
        if let Some(merge) = journal.merge.clone() {
            let used: BTreeSet<_> = records.values().flat_map(Record::files).collect();
            for image in merge.images.iter().chain([&merge.into]).filter(|one| !used.contains(one))
            {
                self.remove(&image.to_string())?;
            }
            self.settle()?;
            if used.contains(&merge.into) {
                journal.merge = None;
            } else {
                // Its copy may not have ended yet.
                journal.abandon();
            }
        }
        self.put_merge_journal(journal)
    }
}
