//! A qcow2 image, which is received as a whole before it is read: its tables may lie anywhere.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use disk::DiskError;
use image::{ImageError, ImageFile as _, PlainFile, qcow2, run_now};
use model::image_stream::ImageImport;
use rustix::fs::fstatvfs;
use rustix::io::Errno;

use super::incoming::Incoming;
use super::new_content::NewContent;
use super::{ImportError, PIECE, check_size};
use crate::image_calls::ImageCallError;
use crate::image_calls::new_file::{NewFile, folder_of};
use crate::image_calls::source::Source;
use crate::image_calls::target::write_sparse;

/// Bytes of tables that an image may have in addition to an eighth of its disk.
const TABLES: u64 = 64 << 20;
/// Bytes that are read before all others: the header and more, a multiple of every block.
const HEADER: usize = 64 << 10;
/// Prefix of incomplete files of a storage repository, which its next attach removes.
const INCOMPLETE: &str = ".new-received-";

/// Receives a qcow2 image.
pub(super) fn receive(
    incoming: &mut Incoming<'_>,
    content: &mut NewContent<'_>,
    call: &ImageImport,
    stop: &Arc<AtomicBool>,
) -> Result<(), ImportError> {
    let file = store(incoming, content, call)?;
    let own = file.fd().try_clone().map_err(DiskError::os("read", &call.path));
    let own = PlainFile::new(own.map_err(ImageCallError::from)?);
    let mut source = Source::open_received(own, stop).map_err(ImportError::received)?;
    let size = source.size();
    check_size(size, content)?;
    content.begin_whole()?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < size {
        let data = source.next_data(at, size).map_err(received)?;
        at = data - data % PIECE as u64;
        if data >= size {
            break;
        }
        let len = (size - at).min(PIECE as u64) as usize;
        let part = piece.get_mut(..len).unwrap_or_default();
        source.read(at, part).map_err(received)?;
        content.write(at, part)?;
        at += len as u64;
    }
    Ok(())
}

/// Stores the image in a file that goes with this process.
fn store(
    incoming: &mut Incoming<'_>,
    content: &NewContent<'_>,
    call: &ImageImport,
) -> Result<NewFile, ImportError> {
    let name = call.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let path = folder_of(&call.path).join(PathBuf::from(format!("{INCOMPLETE}{name}")));
    let created = NewFile::create(&path).map_err(DiskError::os("create", &path));
    let file = created.map_err(ImageCallError::from)?;
    let full = |source: Errno| ImageCallError::from(DiskError::os::<Errno>("store", &path)(source));
    let space = fstatvfs(file.fd()).map_err(full)?;
    if call.length > Some(space.f_bavail.saturating_mul(space.f_frsize)) {
        return Err(full(Errno::NOSPC).into());
    }
    let own = file.fd().try_clone().map_err(DiskError::os("create", &path));
    let own = PlainFile::new(own.map_err(ImageCallError::from)?);
    let most = content.size().saturating_add(content.size() / 8).saturating_add(TABLES);
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        // The header alone says whether the disk fits.
        let want = if at == 0 { HEADER } else { PIECE };
        let len = incoming.read(piece.get_mut(..want).unwrap_or_default())?;
        let part = piece.get(..len).unwrap_or_default();
        if at == 0 {
            let size = qcow2::stated_size(part).map_err(ImportError::received)?;
            check_size(size, content)?;
        }
        if at + len as u64 > most {
            let why = format!("it has more than {most} bytes, more than its disk and its tables");
            return Err(ImportError::Refused(why));
        }
        write_sparse(&own, at, part).map_err(ImageCallError::image(&path))?;
        at += len as u64;
        if len < want {
            break;
        }
    }
    let sized = own.set_len(at);
    run_now(async { sized.await.map_err(ImageError::io("size", 0)) })
        .map_err(ImageCallError::image(&path))?;
    Ok(file)
}

/// Converts an error of reading the received image.
fn received(error: ImageCallError) -> ImportError {
    match error {
        ImageCallError::Image { source, .. } if !matches!(source, ImageError::Io { .. }) => {
            ImportError::received(source)
        }
        other => other.into(),
    }
}
