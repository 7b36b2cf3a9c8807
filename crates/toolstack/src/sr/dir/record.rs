//! Records of volumes whose content lies in several images.
//!
//! A volume without a record is one raw file, `<uuid>.raw`. A snapshot or a clone gives a volume a
//! record, `<uuid>.vdi`, with the names of its images. Only the first one is written; volumes share
//! the others.

use std::fmt;

use model::id::{Uuid, VdiId};
use model::image::ImageFormat;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::sr::Names;

/// Suffix of the file with a record, after the UUID of the volume.
pub(super) const SUFFIX: &str = ".vdi";
/// Suffix of the record of a volume that is being removed. A record is renamed for that, because a
/// full storage has no room for another one.
pub(super) const REMOVED: &str = ".removed";
/// Format version of records.
const FORMAT: u32 = 1;
/// Longest record that is read, in bytes: more than the most images need.
pub(super) const MAX_BYTES: u64 = 16 << 10;
/// Most images of a volume. Each costs memory and descriptors of each disk over it.
pub(super) const MAX_IMAGES: usize = 30;

/// Image of a volume. Its file name is the UUID and the format, in the directory of the SR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ImageName {
    id: Uuid,
    format: ImageFormat,
}

impl ImageName {
    /// Returns the name of an image of this format.
    pub(super) fn new(id: Uuid, format: ImageFormat) -> Self {
        Self { id, format }
    }

    /// Returns the name of a raw image.
    pub(super) fn raw(id: Uuid) -> Self {
        Self::new(id, ImageFormat::Raw)
    }

    /// Returns the name of a qcow2 image.
    #[cfg(test)]
    pub(super) fn qcow2(id: Uuid) -> Self {
        Self::new(id, ImageFormat::Qcow2)
    }

    /// Returns the name of a new layer over this image.
    pub(super) fn layer(self, id: Uuid) -> Self {
        Self::new(id, self.format.of_layer())
    }

    /// Parses a file name. `None` for all other names, also for other spellings of a UUID.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (id, extension) = name.split_once('.')?;
        let id = id.parse().ok()?;
        let image = Self { id, format: extension.parse().ok()? };
        (image.to_string() == name).then_some(image)
    }

    /// Returns the format.
    pub(super) fn format(self) -> ImageFormat {
        self.format
    }

    /// Returns the volume that has this raw image without a record.
    pub(super) fn unrecorded(self) -> Option<VdiId> {
        (self.format == ImageFormat::Raw).then_some(VdiId(self.id))
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.id, self.format().name())
    }
}

impl Serialize for ImageName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ImageName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        Self::parse(&name).ok_or_else(|| {
            serde::de::Error::custom(format!("{name:?} is not UUID.raw, UUID.qcow2 or UUID.vhd"))
        })
    }
}

/// Instant of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOf {
    /// Volume whose content it has.
    #[serde(with = "vdi_text")]
    pub vdi: VdiId,
    /// Time, in seconds since 1970.
    pub unix_seconds: i64,
}

/// Record of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) format: u32,
    /// Images, top first.
    pub(super) images: Vec<ImageName>,
    /// Image that is about to be put over the others. If its file exists, it is the top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<ImageName>,
    /// Size that a guest sees, in bytes.
    pub(super) bytes: u64,
    /// Whether the volume is never written.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) read_only: bool,
    /// Whether the volume is not complete yet. The next attach removes it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) incomplete: bool,
    /// Volume of which this one is a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot_of: Option<SnapshotOf>,
    /// Names that users gave.
    #[serde(flatten)]
    pub(super) names: Names,
    /// Hidden volume with the content to which this one goes back when its machine boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reset_to: Option<VdiId>,
    /// Whether `next` goes over the content of `reset_to`, in place of all images over it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) resets: bool,
    /// Volume that goes back to the content of this one, which is hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reset_of: Option<VdiId>,
    /// Images that a reset has replaced, until they are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) replaced: Vec<ImageName>,
    /// State of the top when it was new. While the top has this state, nothing was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) new_top: Option<FileState>,
}

/// State of a file that changes with each write of new content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    /// Size in bytes.
    pub(super) size: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub(super) modified_ns: i64,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Record {
    /// Creates the record of a writable volume.
    pub(super) fn new(images: Vec<ImageName>, bytes: u64) -> Self {
        Self {
            format: FORMAT,
            images,
            next: None,
            bytes,
            read_only: false,
            incomplete: false,
            snapshot_of: None,
            names: Names::default(),
            reset_to: None,
            resets: false,
            reset_of: None,
            replaced: Vec::new(),
            new_top: None,
        }
    }

    /// Parses a record.
    ///
    /// # Errors
    /// A sentence with the problem.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let (images, format) = (record.images.len(), record.format);
        if format != FORMAT {
            return Err(format!("it has format {format}, this version knows {FORMAT}"));
        }
        if !(1..=MAX_IMAGES).contains(&images) {
            return Err(format!("it has {images} images; 1 to {MAX_IMAGES} are possible"));
        }
        for pair in record.images.windows(2) {
            let [above, below] = [pair.first(), pair.last()].map(|one| one.map(|one| one.format));
            if above == Some(ImageFormat::Raw) {
                return Err("a raw image is over another image".to_owned());
            }
            if (above, below) == (Some(ImageFormat::Vhd), Some(ImageFormat::Qcow2)) {
                return Err("a VHD is over a qcow2 image".to_owned());
            }
        }
        let mut sorted: Vec<_> = record.files().collect();
        sorted.sort();
        if sorted.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err("it has an image twice".to_owned());
        }
        Ok(record)
    }

    /// Returns all images as [`Self::used`] does, and replaced ones.
    pub(super) fn files(&self) -> impl Iterator<Item = ImageName> + '_ {
        self.used().chain(self.replaced.iter().copied())
    }

    /// Returns all images, with the one that is about to become the top.
    pub(super) fn used(&self) -> impl Iterator<Item = ImageName> + '_ {
        self.next.into_iter().chain(self.images.iter().copied())
    }

    /// Returns the top.
    pub(super) fn top(&self) -> Option<ImageName> {
        self.images.first().copied()
    }

    /// Makes `next` the top.
    pub(super) fn push_next(&mut self) {
        if let Some(next) = self.next.take() {
            self.images.insert(0, next);
            self.new_top = None;
        }
    }
}

/// Serialization of a volume's id as text.
mod vdi_text {
    use model::id::VdiId;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(vdi: &VdiId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(vdi)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<VdiId, D::Error> {
        String::deserialize(from)?.parse().map(VdiId).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> Uuid {
        Uuid::from_random([n; 16])
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let images = vec![ImageName::qcow2(id(2)), ImageName::raw(id(1))];
        let snapshot_of = Some(SnapshotOf { vdi: VdiId(id(1)), unix_seconds: 5 });
        let record = Record {
            next: Some(ImageName::qcow2(id(3))),
            read_only: true,
            snapshot_of,
            new_top: Some(FileState { size: 1, modified_ns: -1 }),
            ..Record::new(images, 4096)
        };
        let text = serde_json::to_vec(&record).unwrap();
        assert_eq!(Record::parse(&text), Ok(record));
    }

    #[test]
    fn a_name_is_that_of_an_image_of_this_folder() {
        let image = ImageName::qcow2(id(1));
        assert_eq!(ImageName::parse(&image.to_string()), Some(image));
        assert_eq!(ImageName::parse(&format!("{}.raw", id(1))), Some(ImageName::raw(id(1))));
        let upper = image.to_string().to_uppercase();
        for name in ["", "a.raw", "../a.qcow2", "/etc/passwd", &upper, &format!("{}.vmdk", id(1))] {
            assert_eq!(ImageName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_right_is_refused() {
        let [a, b] = [1, 2].map(|n| ImageName::qcow2(id(n)));
        let raw = ImageName::raw(id(3));
        let deep: Vec<_> = (0..31).map(|n| ImageName::qcow2(id(n))).collect();
        for (images, next, why) in [
            (vec![], None, "0 images"),
            (deep, None, "31 images"),
            (vec![raw, a], None, "over another"),
            (vec![ImageName::new(id(4), ImageFormat::Vhd), a], None, "VHD is over"),
            (vec![a, b, a], None, "twice"),
            (vec![a], Some(a), "twice"),
        ] {
            let record = Record { next, ..Record::new(images, 4096) };
            let error = Record::parse(&serde_json::to_vec(&record).unwrap()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let newer =
            serde_json::to_string(&Record { format: 2, ..Record::new(vec![a], 1) }).unwrap();
        for (text, why) in [
            ("", "EOF"),
            ("[]", "invalid"),
            (newer.as_str(), "format 2"),
            (r#"{"format":1,"images":["../x.raw"],"bytes":1}"#, "UUID.raw"),
        ] {
            let error = Record::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
