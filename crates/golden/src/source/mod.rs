//! Sources of images: connections that threads use, which may wait until a deadline.

mod file;
mod http;
mod nbd;
mod stream;

use std::fs::File;

use model::spec::GoldenSource;

pub(crate) use self::stream::DEADLINE;

use crate::SourceError;
use crate::checksum::hash;

/// Image that a source has, as far as it tells without sending the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Size in bytes.
    pub(crate) size: u64,
    /// Text that changes with the image, if the source has one.
    pub(crate) stamp: String,
}

impl Version {
    /// Returns the identity of the image of this version at a source.
    pub(crate) fn identity(&self, source: &GoldenSource) -> String {
        let text = format!("{source}\n{}\n{}", self.size, self.stamp);
        let (first, second) = (hash(1, text.as_bytes()), hash(2, text.as_bytes()));
        format!("{first:016x}{second:016x}")
    }
}

/// Connection to a source, for one thread.
pub(crate) trait Connection: Send {
    /// Returns the image that the source had when the connection was made.
    fn version(&self) -> &Version;

    /// Reads bytes inside of the image. After [`SourceError::Unreachable`] and
    /// [`SourceError::Changed`], the connection is not used again.
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<(), SourceError>;
}

/// Connects to a source. Waits until a deadline.
pub(crate) fn connect(source: &GoldenSource) -> Result<Box<dyn Connection>, SourceError> {
    Ok(match source {
        GoldenSource::File(path) => Box::new(file::FileSource::open(path)?),
        GoldenSource::Nbd(address) => Box::new(nbd::NbdSource::connect(address)?),
        GoldenSource::Http(address) => Box::new(http::HttpSource::connect(address)?),
    })
}

/// Opens the file of a source that is one. Returns it with the version of its image.
pub(crate) fn open_file(source: &GoldenSource) -> Option<(File, Version)> {
    let GoldenSource::File(path) = source else { return None };
    Some(file::FileSource::open(path).ok()?.into_parts())
}

/// Returns the error of a source that has another image than before.
pub(crate) fn changed(what: impl std::fmt::Display) -> SourceError {
    SourceError::Changed(format!(
        "the source has changed: {what}; give it its former image, or restart the machines on the \
         new one"
    ))
}
