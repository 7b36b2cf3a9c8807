//! A thread's connection to the source of an image.

use std::time::Instant;

use crate::SourceError;
use crate::image::CachedImage;
use crate::source::{Connection, DEADLINE, Version, changed, connect};

/// Connection that is made when it is needed.
#[derive(Default)]
pub(crate) struct Link {
    connection: Option<Box<dyn Connection>>,
}

impl Link {
    /// Reads bytes of the image. Waits until a deadline.
    pub(crate) fn read(
        &mut self,
        image: &CachedImage,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let began = Instant::now();
        let was_kept = self.connection.is_some();
        let read = match self.try_read(image, offset, out) {
            // A server may close a connection that was silent.
            Err(SourceError::Unreachable(_)) if was_kept && began.elapsed() < DEADLINE => {
                self.connection = None;
                self.try_read(image, offset, out)
            }
            other => other,
        };
        read.map_err(SourceError::bounded)
    }

    fn try_read(
        &mut self,
        image: &CachedImage,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => {
                // A source without the image is like one that cannot be reached.
                let made = connect(&image.source)
                    .map_err(|error| SourceError::Unreachable(error.to_string()))?;
                check(image, made.version())?;
                self.connection.insert(made)
            }
        };
        connection.read_at(offset, out)
    }
}

/// Checks that the source has the image, as far as it tells.
pub(crate) fn check(image: &CachedImage, version: &Version) -> Result<(), SourceError> {
    let found = version.identity(&image.source);
    let is_same = match image.digest() {
        // A digest says nothing about the source's own version: that must stay what it was first.
        Some(_) => {
            version.size == image.size
                && *image.state().version.get_or_insert_with(|| found.clone()) == found
        }
        None => found == image.identity,
    };
    if is_same { Ok(()) } else { Err(changed("it has another image now")) }
}
