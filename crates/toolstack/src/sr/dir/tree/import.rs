//! New content of volumes.
//!
//! The new image is a file of its own until it is complete. Then it replaces the top image of its
//! volume, which no other volume has, under the same name. So a crash leaves the former or the new
//! content. Where the new image goes over the present ones, the record names it first, as that of a
//! snapshot.

use model::id::{Uuid, VdiId};
use rustix::fs::{AtFlags, Mode, chmodat, statat};

use super::LAYER_BYTES;
use crate::sr::dir::directory::SrDirectory;
use crate::sr::dir::files::NEW;
use crate::sr::dir::record::{MAX_IMAGES, Record};
use crate::sr::{SrError, Volume};

/// Configuration key that errors about imports name.
const IMPORT: &str = "import";

/// Returns the name of the file with new content of a volume, as long as it is not the volume's. The
/// next attach removes it.
pub(in crate::sr::dir) fn import_name(vdi: VdiId) -> String {
    format!("{NEW}import-{vdi}")
}

impl SrDirectory<'_> {
    /// Returns the images of a volume that gets new content, top first.
    ///
    /// # Errors
    /// The volume does not exist or is read-only, or the SR is full, or a system call failed.
    pub(crate) fn prepare_import(&self, vdi: VdiId) -> Result<Vec<String>, SrError> {
        let _lock = self.lock_records();
        let record = self.written(vdi)?;
        self.check_room(LAYER_BYTES)?;
        self.remove(&import_name(vdi))?;
        Ok(record.images.iter().map(ToString::to_string).collect())
    }

    /// Makes the new image the top of a volume: it replaces the top, or goes over it as `layer`.
    ///
    /// # Errors
    /// The volume or the new image does not exist, or a system call failed.
    pub(crate) fn settle_import(&self, vdi: VdiId, layer: Option<Uuid>) -> Result<Volume, SrError> {
        let _lock = self.lock_records();
        let mut record = self.written(vdi)?;
        let image = record.top().ok_or(SrError::NoVolume(vdi))?;
        let top = image.to_string();
        let stat = statat(&self.fd, &top, AtFlags::SYMLINK_NOFOLLOW);
        let mode = stat.map_err(|error| self.os("look at", &top, error))?.st_mode;
        let Some(layer) = layer else {
            if record.new_top.take().is_some() {
                self.put_record(vdi, &record)?;
            }
            self.place_import(vdi, &top, mode)?;
            return self.volume(vdi);
        };
        if record.images.len() >= MAX_IMAGES {
            return Err(refused(format!(
                "volume {vdi} has {MAX_IMAGES} images, the most possible"
            )));
        }
        let layer = image.layer(layer);
        record.next = Some(layer);
        self.put_record(vdi, &record)?;
        self.place_import(vdi, &layer.to_string(), mode)?;
        record.push_next();
        self.put_record(vdi, &record)?;
        self.volume(vdi)
    }

    /// Removes new content that is not in use.
    ///
    /// # Errors
    /// A system call failed.
    pub(crate) fn abandon_import(&self, vdi: VdiId) -> Result<(), SrError> {
        self.remove(&import_name(vdi))
    }

    /// Returns the record of a volume that may be written, made up for one that has none.
    fn written(&self, vdi: VdiId) -> Result<Record, SrError> {
        let record = self.resolved(self.known(vdi)?)?;
        if record.incomplete {
            return Err(SrError::NoVolume(vdi));
        }
        if record.read_only {
            return Err(refused(format!("volume {vdi} is never written")));
        }
        if record.reset_to.is_some() {
            let why = format!(
                "volume {vdi} goes back to its content at each boot: set on-boot to persist first"
            );
            return Err(refused(why));
        }
        Ok(record)
    }

    /// Renames the new image, which gets the permissions of the former one.
    fn place_import(&self, vdi: VdiId, name: &str, mode: u32) -> Result<(), SrError> {
        let new = import_name(vdi);
        let mode = Mode::from_raw_mode(mode);
        let set = chmodat(&self.fd, &new, mode, AtFlags::empty());
        set.map_err(|error| self.os("set the permissions of", &new, error))?;
        self.rename(&new, name)?;
        self.settle()
    }
}

fn refused(why: String) -> SrError {
    SrError::Config { key: IMPORT.into(), why }
}
