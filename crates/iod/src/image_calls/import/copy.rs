//! New content of a disk from another disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use image::BitSet;
use model::image_stream::{ImageCopy, ImageImported};

use super::new_content::{NewContent, UNIT};
use super::{ImportError, PIECE, check_size};
use crate::image_calls::ImageCallError;
use crate::image_calls::convert::Progress;
use crate::image_calls::source::Source;
use crate::image_calls::units::{changed, stored};

/// Copies a disk, or what differs from another one, to a new image of a third disk.
pub(in crate::image_calls) fn copy(
    call: &ImageCopy,
    stop: &Arc<AtomicBool>,
    progress: &Progress,
) -> Result<ImageImported, ImageCallError> {
    let mut content = NewContent::open(&call.present, &call.path, stop)?;
    let mut source = Source::open(&call.source, stop, false)?;
    let (size, tree) = (source.size(), &call.source);
    match check_size(size, &content) {
        Ok(()) => {}
        Err(ImportError::Failed(error)) => return Err(error),
        Err(ImportError::Refused(why)) => return Ok(ImageImported::Refused(why)),
    }
    let units = match &call.base {
        None => {
            content.begin_whole()?;
            stored(&mut source, UNIT, stop)?
        }
        Some(base) => {
            content.begin_delta()?;
            changed((&mut source, tree), base, UNIT, stop)?
        }
    };
    progress.total.store(units.count() * UNIT, Ordering::Relaxed);
    match copy_units(&mut source, &mut content, &units, progress) {
        Ok(()) => content.finish(),
        Err(ImportError::Failed(error)) => Err(error),
        Err(ImportError::Refused(why)) => Ok(ImageImported::Refused(why)),
    }
}

/// Copies these units, neighbours together.
fn copy_units(
    source: &mut Source,
    content: &mut NewContent<'_>,
    units: &BitSet,
    progress: &Progress,
) -> Result<(), ImportError> {
    let most = PIECE as u64 / UNIT;
    let mut piece = vec![0; PIECE];
    let mut from = 0;
    while let Some(first) = units.next(from, units.limit()) {
        let end = (first + most).min(units.limit());
        let end = (first..end).find(|one| !units.contains(*one)).unwrap_or(end);
        let start = first * UNIT;
        // At most the length of a piece.
        let len = (end * UNIT).min(source.size()).saturating_sub(start) as usize;
        let part = piece.get_mut(..len).unwrap_or_default();
        source.read(start, part)?;
        content.write(start, part)?;
        progress.done.fetch_add((end - first) * UNIT, Ordering::Relaxed);
        from = end;
    }
    Ok(())
}
