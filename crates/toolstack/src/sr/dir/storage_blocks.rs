//! List of the volumes that guests know with the block size of their storage.
//!
//! Before an SR had this list, guests were told the block size that direct I/O on the storage needs.
//! Their partition tables depend on it, so the volumes of that time keep it. The first attach that
//! finds no list writes one with all volumes. All others have blocks of 512 bytes, whether this
//! program creates them or somebody copies them to the directory.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};

use model::id::VdiId;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::directory::{SrDirectory, location};
use crate::sr::SrError;

/// Name of the file with the list.
pub(super) const STORAGE_BLOCKS: &str = ".ringway-storage-blocks";
/// Format version of the list.
const FORMAT: u32 = 1;
/// Longest list that is read, in bytes: enough for the most volumes.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct StorageBlocks {
    format: u32,
    volumes: BTreeSet<String>,
}

impl SrDirectory<'_> {
    /// Writes a list of `volumes`. There is none yet.
    pub(super) fn put_storage_blocks(&self, volumes: &[VdiId]) -> Result<(), SrError> {
        let volumes = volumes.iter().map(ToString::to_string).collect();
        // Serialization of plain fields cannot fail.
        let list = serde_json::to_vec(&StorageBlocks { format: FORMAT, volumes });
        let list = list.unwrap_or_default();
        let bytes = list.len().try_into().unwrap_or_default();
        self.put(STORAGE_BLOCKS, bytes, |mut file| file.write_all(&list))
    }

    /// Lists all volumes, if there is no list yet.
    ///
    /// # Errors
    /// A system call failed. Until the list can be written, all volumes count as listed.
    pub(crate) fn list_storage_blocks(&self) -> Result<(), SrError> {
        if self.storage_blocks()?.is_some() {
            return Ok(());
        }
        let volumes: Vec<_> = self.volumes()?.iter().map(|volume| volume.vdi).collect();
        self.put_storage_blocks(&volumes)
    }

    /// Returns whether guests know the volume with the block size of its storage.
    ///
    /// # Errors
    /// The list is invalid, or a system call failed.
    pub(crate) fn has_storage_blocks(&self, vdi: VdiId) -> Result<bool, SrError> {
        let list = self.storage_blocks()?;
        Ok(list.is_none_or(|list| list.volumes.contains(&vdi.to_string())))
    }

    /// Lists a volume if another one is listed, whose content it has. The caller has locked the
    /// records.
    ///
    /// # Errors
    /// The list is invalid, or a system call failed.
    pub(crate) fn copy_storage_blocks(&self, vdi: VdiId, of: VdiId) -> Result<(), SrError> {
        match self.storage_blocks()? {
            Some(list) if list.volumes.contains(&of.to_string()) => self.add_storage_blocks(vdi),
            _ => Ok(()),
        }
    }

    /// Checks that a copy of this size in bytes can be begun. Lists it if guests know it with the block
    /// size of its storage.
    ///
    /// # Errors
    /// The space does not suffice, the list is invalid, or a system call failed.
    pub(crate) fn prepare_copy(
        &self,
        vdi: VdiId,
        bytes: u64,
        storage_blocks: bool,
    ) -> Result<(), SrError> {
        let _lock = self.lock_records();
        self.check_room(bytes)?;
        if storage_blocks { self.add_storage_blocks(vdi) } else { Ok(()) }
    }

    fn add_storage_blocks(&self, vdi: VdiId) -> Result<(), SrError> {
        let Some(mut list) = self.storage_blocks()? else { return Ok(()) };
        if list.volumes.insert(vdi.to_string()) {
            // Serialization of plain fields cannot fail.
            let list = serde_json::to_vec(&list).unwrap_or_default();
            let bytes = list.len().try_into().unwrap_or_default();
            self.replace(STORAGE_BLOCKS, bytes, |mut file| file.write_all(&list))?;
        }
        Ok(())
    }

    fn storage_blocks(&self) -> Result<Option<StorageBlocks>, SrError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, STORAGE_BLOCKS, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.os("open", STORAGE_BLOCKS, error)),
        };
        let mut text = Vec::new();
        let read = file.take(MAX_BYTES).read_to_end(&mut text);
        read.map_err(|error| self.failed("read", STORAGE_BLOCKS, 0, error))?;
        let place = self.place.join(STORAGE_BLOCKS);
        let invalid = |why: String| location(format!("{}: {why}", place.display()));
        let list: StorageBlocks = serde_json::from_slice(&text)
            .map_err(|error| invalid(format!("cannot be parsed: {error}")))?;
        match list.format {
            FORMAT => Ok(Some(list)),
            other => Err(invalid(format!("has format {other}, this version knows {FORMAT}"))),
        }
    }
}
