//! File that names the merge of images that is under way, `.ringway-merge`.
//!
//! One file for the SR, and not a field of the records: it stays when volumes are destroyed
//! meanwhile, so the new image is named until it is in use or gone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::directory::{SrDirectory, location};
use super::record::{ImageName, MAX_IMAGES};
use crate::sr::SrError;

/// Name of the file.
pub(super) const MERGE: &str = ".ringway-merge";
/// Format version of the file.
const FORMAT: u32 = 1;
/// Longest file that is read, in bytes: more than the most images need.
const MAX_BYTES: u64 = 16 << 10;
/// Most names of abandoned images. The oldest has long ended by then.
const MAX_ABANDONED: usize = 8;

/// Merge of images of an SR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Merging {
    /// Images that become one, top first.
    pub(super) images: Vec<ImageName>,
    /// New image. If its file exists, it is complete.
    pub(super) into: ImageName,
}

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MergeJournal {
    format: u32,
    /// Merge under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) merge: Option<Merging>,
    /// New images of merges that were given up. A process that is about to end may still create one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    abandoned: Vec<ImageName>,
}

impl Default for MergeJournal {
    fn default() -> Self {
        Self { format: FORMAT, merge: None, abandoned: Vec::new() }
    }
}

impl MergeJournal {
    fn parse(text: &[u8]) -> Result<Self, String> {
        let journal: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if journal.format != FORMAT {
            let format = journal.format;
            return Err(format!("it has format {format}, this version knows {FORMAT}"));
        }
        if let Some(Merging { images, into }) = &journal.merge {
            let different: BTreeSet<_> = images.iter().chain([into]).collect();
            let count = images.len();
            if !(2..=MAX_IMAGES).contains(&count) || different.len() != count + 1 {
                return Err(format!("it merges {count} images, or has one twice"));
            }
        }
        if journal.abandoned.len() > MAX_ABANDONED {
            return Err(format!("it names more than {MAX_ABANDONED} abandoned images"));
        }
        Ok(journal)
    }

    /// Returns the images that belong to merges: no volumes, whatever their names say, and not lost
    /// either. The end of the merge removes those that no record names.
    pub(super) fn images(&self) -> impl Iterator<Item = ImageName> + '_ {
        let former = self.merge.iter().flat_map(|merge| merge.images.iter().copied());
        let new = self.merge.iter().map(|merge| merge.into);
        former.chain(new).chain(self.abandoned.iter().copied())
    }

    /// Gives up the merge.
    pub(super) fn abandon(&mut self) {
        if let Some(merge) = self.merge.take() {
            self.abandoned.push(merge.into);
            if self.abandoned.len() > MAX_ABANDONED {
                self.abandoned.remove(0);
            }
        }
    }
}

impl SrDirectory<'_> {
    /// Reads the journal. Without a file it is empty.
    ///
    /// # Errors
    /// The journal is invalid, or a system call failed.
    pub(super) fn merge_journal(&self) -> Result<MergeJournal, SrError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, MERGE, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(MergeJournal::default()),
            Err(error) => return Err(self.os("open", MERGE, error)),
        };
        let mut text = Vec::new();
        let read = file.take(MAX_BYTES).read_to_end(&mut text);
        read.map_err(|error| self.failed("read", MERGE, 0, error))?;
        MergeJournal::parse(&text).map_err(|why| {
            let place = self.place.join(MERGE);
            location(format!("{}: {why}; restore this file from a backup", place.display()))
        })
    }

    /// Stores the journal. An empty one has no file.
    pub(super) fn put_merge_journal(&self, journal: &MergeJournal) -> Result<(), SrError> {
        if *journal == MergeJournal::default() {
            self.remove(MERGE)?;
            return self.settle();
        }
        // Serialization of plain fields cannot fail.
        let text = serde_json::to_vec(journal).unwrap_or_default();
        let bytes = text.len().try_into().unwrap_or_default();
        self.replace(MERGE, bytes, |mut file| file.write_all(&text))
    }

    /// Removes the journal, and the images that it names. No volume has one of them.
    pub(super) fn clear_merge(&self) -> Result<(), SrError> {
        let journal = self.merge_journal()?;
        journal.images().try_for_each(|image| self.remove(&image.to_string()))?;
        self.remove(MERGE)
    }

    /// Removes the images of merges that were given up, as far as they exist by now. Their names stay
    /// until later ones take their place.
    pub(super) fn remove_abandoned(&self, journal: &MergeJournal) -> Result<(), SrError> {
        journal.abandoned.iter().try_for_each(|image| self.remove(&image.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use model::id::Uuid;

    use super::*;

    fn image(n: u8) -> ImageName {
        ImageName::qcow2(Uuid::from_random([n; 16]))
    }

    #[test]
    fn a_journal_is_read_as_it_was_written() {
        let merge = Merging { images: vec![image(1), image(2)], into: image(3) };
        let mut journal = MergeJournal { merge: Some(merge), ..MergeJournal::default() };
        let again = |journal: &MergeJournal| {
            MergeJournal::parse(&serde_json::to_vec(journal).unwrap()).unwrap()
        };
        assert_eq!(again(&journal), journal);
        journal.abandon();
        assert_eq!(again(&journal), journal);
        assert_eq!(journal.images().collect::<Vec<_>>(), [image(3)]);
        for n in 10..30 {
            let images = vec![image(1), image(2)];
            journal.merge = Some(Merging { images, into: image(n) });
            journal.abandon();
        }
        let left: Vec<_> = again(&journal).images().collect();
        assert_eq!(
            (left.len(), left.first(), left.last()),
            (8, Some(&image(22)), Some(&image(29)))
        );
    }

    #[test]
    fn a_journal_that_cannot_be_right_is_refused() {
        let text = |images: &[u8], into| {
            let images = images.iter().map(|n| image(*n)).collect();
            let merge = Some(Merging { images, into: image(into) });
            serde_json::to_vec(&MergeJournal { merge, ..MergeJournal::default() }).unwrap()
        };
        for text in [text(&[1], 2), text(&[1, 2, 1], 3), text(&[1, 2], 2)] {
            let error = MergeJournal::parse(&text).unwrap_err();
            assert!(error.contains("twice"), "{error}");
        }
        for (text, why) in [("", "EOF"), (r#"{"format":2}"#, "format 2"), ("[]", "invalid")] {
            let error = MergeJournal::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
