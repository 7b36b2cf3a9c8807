//! The stream of an import.

use std::io::{BufReader, ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use disk::DiskError;
use model::image_stream::MAX_FRAME_BYTES;

use super::ImportError;
use crate::image_calls::ImageCallError;

/// Bytes that are read ahead.
const BUFFER: usize = 256 << 10;

/// Stream from the caller's socket.
pub(super) struct Incoming<'a> {
    stream: BufReader<UnixStream>,
    stop: &'a AtomicBool,
    /// Bytes of the frame that are not read yet.
    left: usize,
    has_ended: bool,
    position: u64,
}

impl<'a> Incoming<'a> {
    /// Connects to a socket.
    pub(super) fn connect(path: &Path, stop: &'a AtomicBool) -> Result<Self, ImageCallError> {
        let stream = UnixStream::connect(path).map_err(DiskError::os("connect to", path))?;
        let stream = BufReader::with_capacity(BUFFER, stream);
        Ok(Self { stream, stop, left: 0, has_ended: false, position: 0 })
    }

    /// Returns the number of bytes that were read.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Reads until `out` is full or the image ends. Returns the number of bytes.
    ///
    /// # Errors
    /// The stream was cut, or the caller stopped the call.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Result<usize, ImportError> {
        let mut done = 0;
        while done < out.len() {
            if self.left == 0 && !self.next_frame()? {
                break;
            }
            let rest = out.get_mut(done..).unwrap_or_default();
            let len = rest.len().min(self.left);
            let part = rest.get_mut(..len).unwrap_or_default();
            self.stream.read_exact(part).map_err(|error| cut(&error))?;
            self.left -= len;
            done += len;
        }
        self.position += done as u64;
        Ok(done)
    }

    /// Fills `out`. `what` names it.
    ///
    /// # Errors
    /// Those of [`Self::read`], or the image ends before.
    pub(super) fn fill(&mut self, what: &str, out: &mut [u8]) -> Result<(), ImportError> {
        let at = self.position;
        let found = self.read(out)?;
        if found == out.len() {
            return Ok(());
        }
        Err(ImportError::Refused(format!(
            "the image ends after {} bytes, within its {what} at byte {at}: send all of it",
            self.position
        )))
    }

    /// Skips bytes up to this position. `what` names what is there.
    ///
    /// # Errors
    /// Those of [`Self::fill`].
    pub(super) fn skip_to(&mut self, what: &str, position: u64) -> Result<(), ImportError> {
        let mut waste = [0; 4096];
        while self.position < position {
            let len = (position - self.position).min(waste.len() as u64) as usize;
            self.fill(what, waste.get_mut(..len).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Begins the next frame. Returns false at the end of the image.
    fn next_frame(&mut self) -> Result<bool, ImportError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(failed("the import was stopped"));
        }
        let mut head = [0; 4];
        if !self.has_ended {
            self.stream.read_exact(&mut head).map_err(|error| cut(&error))?;
        }
        let bytes = u32::from_be_bytes(head);
        if bytes > MAX_FRAME_BYTES {
            return Err(failed("the sender does not keep to the protocol of image.import"));
        }
        self.left = bytes as usize;
        self.has_ended = bytes == 0;
        Ok(!self.has_ended)
    }
}

fn failed(why: &str) -> ImportError {
    ImageCallError::Refused(why.into()).into()
}

fn cut(error: &std::io::Error) -> ImportError {
    match error.kind() {
        ErrorKind::UnexpectedEof => failed("the sender left before the end of the image"),
        _ => failed(&format!("the stream of the image failed: {error}")),
    }
}
