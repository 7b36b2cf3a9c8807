//! Footer: the checked last 512 bytes, of which dynamic images have a copy at byte 0.

use super::fields::{array, checksum, put, u16_at, u32_at, u64_at};
use super::{MAX_DISK_BYTES, SECTOR};
use crate::ImageError;

/// Bytes of a footer.
pub const FOOTER_BYTES: usize = 512;
const COOKIE: &[u8; 8] = b"conectix";
const VERSION: u32 = 0x0001_0000;
/// Offsets of fields.
const DATA_OFFSET: usize = 16;
const TIMESTAMP: usize = 24;
const CREATOR: usize = 28;
const CURRENT_SIZE: usize = 48;
const GEOMETRY: usize = 56;
const TYPE: usize = 60;
const CHECKSUM: usize = 64;
const UNIQUE_ID: usize = 68;
const SAVED_STATE: usize = 84;
/// Largest geometry: 65,535 cylinders, 16 heads, 255 sectors. It stands for "see the size".
const MAX_GEOMETRY: [u8; 4] = [0xff, 0xff, 16, 255];
/// Programs that cut their disks to the geometry. QEMU decides by the same table.
const BY_GEOMETRY: [&[u8; 4]; 3] = [b"vpc ", b"vs  ", b"qemu"];
/// Name and version of this program as the creator. With [`MAX_GEOMETRY`], every version of QEMU
/// takes the size from its field.
const OUR_CREATOR: &[u8; 12] = b"rgwy\x00\x01\x00\x00Wi2k";
/// Seconds from 1970 to 2000.
pub(super) const EPOCH_2000: u64 = 946_684_800;

/// Type of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskType {
    /// The disk as it is, then a footer.
    Fixed,
    /// Blocks that were written.
    Dynamic,
    /// Sectors that were written, over a parent.
    Differencing,
}

impl DiskType {
    /// Returns the name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Dynamic => "dynamic",
            Self::Differencing => "differencing",
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Fixed => 2,
            Self::Dynamic => 3,
            Self::Differencing => 4,
        }
    }
}

/// Checked footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Type of the image.
    pub disk_type: DiskType,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Identity of the content. Each snapshot and copy gets a new one.
    pub unique_id: [u8; 16],
    /// Name of the program that made the image.
    pub creator: [u8; 4],
    /// Time of its creation, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// Whether a machine was suspended that uses the disk.
    pub in_saved_state: bool,
    /// Offset of the dynamic header in bytes.
    pub(super) data_offset: u64,
    /// As in the file. Fields that are not known stay as they are.
    pub(super) bytes: [u8; FOOTER_BYTES],
}

/// Returns whether bytes begin like a footer.
pub(super) fn has_cookie(bytes: &[u8]) -> bool {
    bytes.starts_with(COOKIE)
}

impl Footer {
    /// Creates the footer of a new image.
    pub(super) fn new(
        disk_type: DiskType,
        size: u64,
        unique_id: [u8; 16],
        unix_seconds: u64,
    ) -> Self {
        let mut bytes = [0; FOOTER_BYTES];
        put(&mut bytes, 0, COOKIE);
        put(&mut bytes, 8, &2_u32.to_be_bytes()); // a reserved bit that is always set
        put(&mut bytes, 12, &VERSION.to_be_bytes());
        let data_offset = if disk_type == DiskType::Fixed { u64::MAX } else { SECTOR };
        put(&mut bytes, DATA_OFFSET, &data_offset.to_be_bytes());
        // Until 2136.
        let created = unix_seconds.saturating_sub(EPOCH_2000) as u32;
        put(&mut bytes, TIMESTAMP, &created.to_be_bytes());
        put(&mut bytes, CREATOR, OUR_CREATOR);
        put(&mut bytes, 40, &size.to_be_bytes());
        put(&mut bytes, TYPE, &disk_type.number().to_be_bytes());
        put(&mut bytes, UNIQUE_ID, &unique_id);
        let mut footer = Self {
            disk_type,
            size,
            unique_id,
            creator: array(OUR_CREATOR, 0),
            created_unix_seconds: EPOCH_2000 + u64::from(created),
            in_saved_state: false,
            data_offset,
            bytes,
        };
        footer.set_size(size);
        footer
    }

    /// Parses a footer.
    ///
    /// # Errors
    /// [`ImageError::WrongFormat`], [`ImageError::Header`], [`ImageError::Unsupported`].
    pub fn parse(bytes: &[u8; FOOTER_BYTES]) -> Result<Self, ImageError> {
        if !has_cookie(bytes) {
            let problem = "its footer does not begin with \"conectix\"".into();
            return Err(ImageError::WrongFormat { format: "vhd", problem });
        }
        let (stored, sum) = (u32_at(bytes, CHECKSUM), checksum(bytes, CHECKSUM));
        if stored != sum {
            let problem = format!("the footer has the checksum {stored:#x}, its bytes {sum:#x}");
            return Err(ImageError::header(problem));
        }
        let version = u32_at(bytes, 12);
        if version >> 16 != VERSION >> 16 {
            let feature = format!("version {}.{}", version >> 16, version & 0xffff);
            return Err(ImageError::Unsupported { feature, next: "convert it to version 1" });
        }
        let disk_type = match u32_at(bytes, TYPE) {
            2 => DiskType::Fixed,
            3 => DiskType::Dynamic,
            4 => DiskType::Differencing,
            other => {
                let feature = format!("the disk type {other}");
                let next = "convert it to a fixed or dynamic disk";
                return Err(ImageError::Unsupported { feature, next });
            }
        };
        let size = disk_bytes(bytes);
        if size == 0 || !size.is_multiple_of(SECTOR) || size > MAX_DISK_BYTES {
            let rule = format!("at most {MAX_DISK_BYTES}, in multiples of {SECTOR}");
            return Err(ImageError::header(format!("a disk of {size} bytes; the rule is {rule}")));
        }
        Ok(Self {
            disk_type,
            size,
            unique_id: array(bytes, UNIQUE_ID),
            creator: array(bytes, CREATOR),
            created_unix_seconds: EPOCH_2000 + u64::from(u32_at(bytes, TIMESTAMP)),
            in_saved_state: bytes.get(SAVED_STATE).is_some_and(|state| *state != 0),
            data_offset: u64_at(bytes, DATA_OFFSET),
            bytes: *bytes,
        })
    }

    /// Changes the size of the disk. The geometry becomes the largest one, so that every program
    /// reads the size.
    pub(super) fn set_size(&mut self, size: u64) {
        self.size = size;
        put(&mut self.bytes, CURRENT_SIZE, &size.to_be_bytes());
        put(&mut self.bytes, GEOMETRY, &MAX_GEOMETRY);
        let sum = checksum(&self.bytes, CHECKSUM);
        put(&mut self.bytes, CHECKSUM, &sum.to_be_bytes());
    }
}

/// Returns the size of the disk: that of the geometry if the creator uses it, else that of the size
/// field.
fn disk_bytes(bytes: &[u8]) -> u64 {
    let [heads, sectors] = array(bytes, GEOMETRY + 2);
    let cylinders = u64::from(u16_at(bytes, GEOMETRY));
    let is_max = array(bytes, GEOMETRY) == MAX_GEOMETRY;
    if BY_GEOMETRY.contains(&&array(bytes, CREATOR)) && !is_max {
        return cylinders * u64::from(heads) * u64::from(sectors) * SECTOR;
    }
    u64_at(bytes, CURRENT_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_creator(creator: &[u8; 4], geometry: [u8; 4]) -> [u8; FOOTER_BYTES] {
        let mut bytes = Footer::new(DiskType::Dynamic, 1 << 20, [7; 16], EPOCH_2000 + 5).bytes;
        put(&mut bytes, CREATOR, creator);
        put(&mut bytes, GEOMETRY, &geometry);
        let sum = checksum(&bytes, CHECKSUM);
        put(&mut bytes, CHECKSUM, &sum.to_be_bytes());
        bytes
    }

    #[test]
    fn the_creator_decides_which_size_holds() {
        let geometry = [0, 10, 4, 17];
        let by_geometry = 10 * 4 * 17 * 512;
        for creator in [b"vpc ", b"vs  ", b"qemu"] {
            let footer = Footer::parse(&with_creator(creator, geometry)).unwrap();
            assert_eq!(footer.size, by_geometry, "{creator:?}");
            let footer = Footer::parse(&with_creator(creator, MAX_GEOMETRY)).unwrap();
            assert_eq!(footer.size, 1 << 20, "{creator:?}");
        }
        for creator in [b"qem2", b"win ", b"tap\0", b"d2v ", b"CTXS", b"wa\0\0", b"rgwy"] {
            let footer = Footer::parse(&with_creator(creator, geometry)).unwrap();
            assert_eq!(footer.size, 1 << 20, "{creator:?}");
        }
    }

    #[test]
    fn a_footer_comes_back() {
        let mut footer = Footer::new(DiskType::Fixed, 1 << 30, [9; 16], EPOCH_2000 + 77);
        assert_eq!(Footer::parse(&footer.bytes).unwrap(), footer);
        footer.set_size(3 << 30);
        assert_eq!(Footer::parse(&footer.bytes).unwrap().size, 3 << 30);
        assert_eq!(footer.created_unix_seconds, EPOCH_2000 + 77);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = Footer::new(DiskType::Dynamic, 1 << 20, [7; 16], 0).bytes;
        let mut changed = good;
        changed[100] = 1;
        let error = Footer::parse(&changed).unwrap_err().to_string();
        assert!(error.contains("checksum"), "{error}");
        assert!(Footer::parse(&[0; 512]).unwrap_err().to_string().contains("not a vhd image"));
        for (at, value, text) in [
            (TYPE, 5_u32, "disk type 5"),
            (12, 0x0002_0000, "version 2.0"),
            (CURRENT_SIZE, 1 << 20, "a disk of"),
        ] {
            let mut changed = good;
            put(&mut changed, at, &value.to_be_bytes());
            let sum = checksum(&changed, CHECKSUM);
            put(&mut changed, CHECKSUM, &sum.to_be_bytes());
            let error = Footer::parse(&changed).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
