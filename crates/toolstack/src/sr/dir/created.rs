//! New volumes whose image is not raw: the caller creates it, because only it knows the format.
//!
//! The record names the image before it exists, and is incomplete until the image does. So the next
//! attach removes both after a crash.

use model::id::VdiId;
use model::image::ImageFormat;

use super::directory::{SIZE, SrDirectory, whole_units};
use super::record::{ImageName, Record};
use super::tree::record_name;
use crate::sr::{SrError, Volume};

/// Configuration key that errors about formats name.
const FORMAT: &str = "format";

impl SrDirectory<'_> {
    /// Names the image of a new volume of this size in bytes.
    ///
    /// # Errors
    /// The volume exists, the size is invalid, the space does not suffice, or a system call failed.
    pub(crate) fn prepare_image(
        &self,
        vdi: VdiId,
        bytes: u64,
        format: ImageFormat,
    ) -> Result<(), SrError> {
        let _lock = self.lock_records();
        if whole_units(bytes)? != bytes {
            let why = format!("{bytes} bytes are not a whole number of units");
            return Err(SrError::Config { key: SIZE.into(), why });
        }
        if format == ImageFormat::Raw {
            let why = "a raw image is created with its volume".to_owned();
            return Err(SrError::Config { key: FORMAT.into(), why });
        }
        let image = ImageName::new(vdi.0, format);
        for name in [record_name(vdi), ImageName::raw(vdi.0).to_string(), image.to_string()] {
            if self.has(&name)? {
                let why = format!("{name} exists");
                return Err(SrError::Config { key: FORMAT.into(), why });
            }
        }
        self.check_room(bytes)?;
        self.put_record(vdi, &Record { incomplete: true, ..Record::new(vec![image], bytes) })
    }

    /// Makes a volume of its image, which exists. Does nothing if it is one.
    ///
    /// # Errors
    /// The volume was not prepared, its image does not exist, or a system call failed.
    pub(crate) fn settle_image(&self, vdi: VdiId) -> Result<Volume, SrError> {
        let _lock = self.lock_records();
        let record = self.record(vdi)?.ok_or(SrError::NoVolume(vdi))?;
        match record.images.as_slice() {
            [image] if self.has(&image.to_string())? => {}
            _ => return Err(SrError::NoVolume(vdi)),
        }
        if record.incomplete {
            self.put_record(vdi, &Record { incomplete: false, ..record })?;
        }
        self.volume(vdi)
    }
}
