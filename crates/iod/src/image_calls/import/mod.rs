//! A new image from a stream.
//!
//! The stream is hostile: it comes from a client of the network. Nothing but its own file is written,
//! and that appears when the image is complete.

mod copy;
mod incoming;
mod new_content;
mod qcow2;
mod vhd;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use image::ImageError;
use model::image::ImageFormat;
use model::image_stream::{ImageImport, ImageImported};

use super::ImageCallError;
pub(super) use copy::copy;
use incoming::Incoming;
use new_content::NewContent;

/// Bytes that are written together, a multiple of every cluster.
const PIECE: usize = 1 << 20;

/// Reason why a stream became no image.
#[derive(Debug, thiserror::Error)]
enum ImportError {
    /// The stream is no image that the disk can take.
    #[error("{0}")]
    Refused(String),
    /// The storage or the sender failed.
    #[error(transparent)]
    Failed(#[from] ImageCallError),
}

impl ImportError {
    /// Converts an error of the received image.
    fn received(error: ImageError) -> Self {
        Self::Refused(format!("this is no image that can be imported: {error}"))
    }
}

/// Receives an image from the caller's socket.
pub(super) fn import(
    call: &ImageImport,
    stop: &Arc<AtomicBool>,
) -> Result<ImageImported, ImageCallError> {
    let mut content = NewContent::open(&call.present, &call.path, stop)?;
    let mut incoming = Incoming::connect(&call.stream, stop)?;
    let received = match call.format {
        ImageFormat::Raw => receive_raw(&mut incoming, &mut content, call.open_end),
        ImageFormat::Vhd => vhd::receive(&mut incoming, &mut content, call),
        ImageFormat::Qcow2 => qcow2::receive(&mut incoming, &mut content, call, stop),
    };
    match received {
        Ok(()) => content.finish(),
        Err(ImportError::Failed(error)) => Err(error),
        Err(ImportError::Refused(why)) => Ok(ImageImported::Refused(why)),
    }
}

/// Receives the bytes of a disk, of which there must be as many as the disk has.
fn receive_raw(
    incoming: &mut Incoming<'_>,
    content: &mut NewContent<'_>,
    open_end: bool,
) -> Result<(), ImportError> {
    let (size, mut at) = (content.size(), 0);
    content.begin_whole()?;
    let mut piece = vec![0; PIECE];
    while at < size {
        // At most the length of a piece.
        let len = (size - at).min(PIECE as u64) as usize;
        let part = piece.get_mut(..len).unwrap_or_default();
        let found = incoming.read(part)?;
        if found < len {
            let sent = at + found as u64;
            return Err(ImportError::Refused(format!(
                "the image has {sent} bytes, and the disk {size}: make a disk of the image's size"
            )));
        }
        content.write(at, part)?;
        at += len as u64;
    }
    if !open_end && incoming.read(&mut [0])? > 0 {
        let why =
            format!("the image has more than the {size} bytes of the disk: make a larger one");
        return Err(ImportError::Refused(why));
    }
    Ok(())
}

/// Returns why an image of a disk of `size` bytes does not fit, if it does not.
fn check_size(size: u64, content: &NewContent<'_>) -> Result<(), ImportError> {
    let has = content.size();
    if size <= has {
        return Ok(());
    }
    Err(ImportError::Refused(format!(
        "the image is one of a disk of {size} bytes, and this disk has {has}: make a disk of at least \
         {size} bytes"
    )))
}
