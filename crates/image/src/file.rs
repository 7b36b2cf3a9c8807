//! Bytes of an image, and how format code waits for them.

mod new_file;
mod plain;

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

pub use new_file::{NewFile, folder_of};
pub use plain::PlainFile;

use crate::ImageError;

/// File or block device that contains an image. Its owner is one thread.
#[allow(async_fn_in_trait)] // Owners run format code on their own thread: no future is sent.
#[allow(clippy::len_without_is_empty)] // No caller asks whether an image is empty.
pub trait ImageFile {
    /// Fills `out` with the bytes from `offset`.
    ///
    /// # Errors
    /// The storage fails, or the file ends before (`UnexpectedEof`).
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` to `offset`. The file grows if needed.
    ///
    /// # Errors
    /// The storage fails or is full.
    async fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes all ended writes and the size durable.
    ///
    /// # Errors
    /// The storage has lost data.
    async fn sync(&self) -> io::Result<()>;

    /// Returns the size in bytes.
    ///
    /// # Errors
    /// The storage fails.
    async fn len(&self) -> io::Result<u64>;

    /// Grows or shrinks the file to `len` bytes. New bytes are zero.
    ///
    /// # Errors
    /// The storage fails, or is a block device.
    async fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves space for a range. The file grows if needed; new bytes are zero.
    ///
    /// # Errors
    /// The storage fails, is full, or cannot reserve space (`Unsupported`).
    async fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Releases the space of a range, which reads as zero from then on. The size stays.
    ///
    /// # Errors
    /// The storage fails, or cannot release space (`Unsupported`).
    async fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
}

impl<F: ImageFile> ImageFile for Arc<F> {
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        F::read_at(self, offset, out).await
    }

    async fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        F::write_at(self, offset, data).await
    }

    async fn sync(&self) -> io::Result<()> {
        F::sync(self).await
    }

    async fn len(&self) -> io::Result<u64> {
        F::len(self).await
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        F::set_len(self, len).await
    }

    async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        F::allocate(self, offset, len).await
    }

    async fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        F::punch(self, offset, len).await
    }
}

/// Runs format code over a file whose futures are ready at once.
///
/// # Errors
/// The error of the code, or [`ImageError::Suspended`] if the file suspended it.
pub fn run_now<T>(future: impl Future<Output = Result<T, ImageError>>) -> Result<T, ImageError> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(ImageError::Suspended),
    }
}

/// Creates a file that did not exist, lets `create` fill it, and makes its name durable. After an
/// error, the file does not exist.
pub(crate) fn create_new(
    path: &Path,
    create: impl FnOnce(&PlainFile) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let new = NewFile::create(path).map_err(ImageError::io("create", 0))?;
    let own = new.fd().try_clone().map_err(ImageError::io("create", 0))?;
    create(&PlainFile::new(own))?;
    new.publish().map_err(ImageError::io("store the name of", 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_suspends_is_an_error() {
        assert_eq!(run_now(async { Ok(7) }).unwrap(), 7);
        let suspended = run_now(std::future::pending::<Result<(), _>>());
        assert!(matches!(suspended, Err(ImageError::Suspended)));
    }
}
