//! Scan of the directory of an SR.
//!
//! A record that cannot be read hides its images. So what may be one of them becomes no volume, and
//! no image is merged or removed meanwhile. All other volumes are reported.

use std::collections::{BTreeMap, BTreeSet};

use error_causes::error_chain;
use model::id::VdiId;

use super::directory::{SrDirectory, location};
use super::merge_journal::MERGE;
use super::record::{self, ImageName, Record};
use super::tree::record_name;
use crate::sr::worker::MAX_VOLUMES;
use crate::sr::{NoRawVolume, SrError, SrScan, UnreadableFile, Volume};

/// Records and merges of an SR, as far as their files can be read.
pub(super) struct ReadRecords {
    pub(super) records: BTreeMap<VdiId, Record>,
    /// Images that records or merges name.
    pub(super) known: BTreeSet<ImageName>,
    pub(super) unreadable: Vec<UnreadableFile>,
}

impl ReadRecords {
    fn unreadable(&mut self, name: &str, vdi: Option<VdiId>, error: &SrError) {
        let (name, why) = (name.to_owned(), error_chain(error));
        self.unreadable.push(UnreadableFile { name, vdi, why });
    }
}

impl SrDirectory<'_> {
    /// Reads the records among these names of files as far as they can be read.
    pub(super) fn read_records(&self, names: &[String]) -> ReadRecords {
        let (records, known) = (BTreeMap::new(), BTreeSet::new());
        let mut read = ReadRecords { records, known, unreadable: Vec::new() };
        for suffix in [record::SUFFIX, record::REMOVED] {
            for (vdi, name) in Self::of_volumes(names, suffix) {
                let is_present = suffix == record::SUFFIX;
                match self.read_record(name) {
                    Ok(Some(record)) => {
                        read.known.extend(record.files());
                        if is_present {
                            read.records.insert(vdi, record);
                        }
                    }
                    // It was removed after its name was read.
                    Ok(None) => {}
                    Err(error) => read.unreadable(name, is_present.then_some(vdi), &error),
                }
            }
        }
        match self.merge_journal() {
            Ok(journal) => read.known.extend(journal.images()),
            Err(error) => read.unreadable(MERGE, None, &error),
        }
        read
    }

    /// Returns space and volumes.
    ///
    /// # Errors
    /// A system call failed, or there are more than [`MAX_VOLUMES`].
    pub(crate) fn scan(&self) -> Result<SrScan, SrError> {
        let names = self.names()?;
        let mut read = self.read_records(&names);
        let (mut volumes, mut raw, mut no_raw) = (Vec::new(), Vec::new(), Vec::new());
        for image in names.iter().filter_map(|name| ImageName::parse(name)) {
            let Some(vdi) = image.unrecorded() else { continue };
            let has_record = read.records.contains_key(&vdi)
                || read.unreadable.iter().any(|one| one.vdi == Some(vdi));
            if has_record || read.known.contains(&image) {
                continue;
            }
            match self.unrecorded(vdi) {
                Ok(volume) => {
                    let name = image.to_string();
                    let why = self.no_raw_image(&name);
                    no_raw.extend(why.map(|why| NoRawVolume { name, vdi, why }));
                    raw.push(volume);
                }
                // The file was removed after its name was read, or is not a regular one.
                Err(SrError::NoVolume(_)) => {}
                Err(error) => read.unreadable(&image.to_string(), Some(vdi), &error),
            }
        }
        for (vdi, record) in std::mem::take(&mut read.records) {
            match self.present_volume(vdi, record) {
                Ok(volume) => volumes.extend(volume),
                Err(error) => {
                    read.unreadable(&record_name(vdi), Some(vdi), &error);
                }
            }
        }
        if volumes.len().saturating_add(raw.len()) > MAX_VOLUMES {
            let why = format!("more than {MAX_VOLUMES} volumes are in {}", self.place.display());
            return Err(location(why));
        }
        let mut doubtful = Vec::new();
        if read.unreadable.is_empty() { &mut volumes } else { &mut doubtful }.extend(raw);
        for found in [&mut volumes, &mut doubtful] {
            found.sort_by_key(|volume| volume.vdi);
        }
        let (space, unreadable) = (self.space()?, read.unreadable);
        Ok(SrScan { space, volumes, doubtful, unreadable, no_raw })
    }

    /// Returns all volumes.
    ///
    /// # Errors
    /// Those of [`Self::scan`], or a record cannot be read.
    pub(crate) fn volumes(&self) -> Result<Vec<Volume>, SrError> {
        let scan = self.scan()?;
        scan.unreadable_error().map_or(Ok(scan.volumes), Err)
    }

    /// Returns the volume of a record that was read before. A merge may have removed its images since,
    /// and its record names others then.
    fn present_volume(&self, vdi: VdiId, mut record: Record) -> Result<Option<Volume>, SrError> {
        loop {
            let found = self.recorded(vdi, record.clone())?;
            if found.is_some() {
                return Ok(found);
            }
            match self.record(vdi)? {
                Some(now) if now != record => record = now,
                _ => return Ok(None),
            }
        }
    }
}
