//! A thread's connection to the source of an image.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::SourceError;
use crate::image::CachedImage;
use crate::source::{Connection, DEADLINE, Version, changed, connect};

/// Connection that is made when it is needed.
#[derive(Default)]
pub(crate) struct Link {
    connection: Option<CountedConnection>,
}

/// Connection that its image counts.
struct CountedConnection {
    connection: Box<dyn Connection>,
    image: Arc<CachedImage>,
}

impl CountedConnection {
    fn make(image: &Arc<CachedImage>) -> Result<Self, SourceError> {
        // A source without the image is like one that cannot be reached.
        let connection =
            connect(&image.source).map_err(|error| SourceError::Unreachable(error.to_string()))?;
        check(image, connection.version())?;
        image.connections.fetch_add(1, Ordering::Relaxed);
        Ok(Self { connection, image: Arc::clone(image) })
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.image.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Link {
    pub(crate) fn is_made(&self) -> bool {
        self.connection.is_some()
    }

    /// Connects to the source of the image, and checks that it has the image. Waits until a deadline.
    pub(crate) fn make(&mut self, image: &Arc<CachedImage>) -> Result<(), SourceError> {
        let made = CountedConnection::make(image).map_err(SourceError::bounded)?;
        self.connection = Some(made);
        Ok(())
    }

    /// Reads bytes of the image. Waits until a deadline.
    pub(crate) fn read(
        &mut self,
        image: &Arc<CachedImage>,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let began = Instant::now();
        let was_made = self.is_made();
        let read = match self.try_read(image, offset, out) {
            // A server may close a connection that was silent.
            Err(SourceError::Unreachable(_)) if was_made && began.elapsed() < DEADLINE => {
                self.connection = None;
                self.try_read(image, offset, out)
            }
            other => other,
        };
        read.map_err(SourceError::bounded)
    }

    fn try_read(
        &mut self,
        image: &Arc<CachedImage>,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let counted = match &mut self.connection {
            Some(counted) => counted,
            None => self.connection.insert(CountedConnection::make(image)?),
        };
        counted.connection.read_at(offset, out)
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
