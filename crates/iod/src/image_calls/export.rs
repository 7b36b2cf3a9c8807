//! A disk that is sent as a stream.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use disk::DiskError;
use image::vhd::{self, Parent};
use image::{ImageError, qcow2};
use model::image::ImageFormat;
use model::image_stream::ImageExport;

use super::ImageCallError;
use super::source::Source;
use super::units::{changed, check_stop, stored};

/// Bytes that are read together.
const CHUNK: u64 = 1 << 20;

/// Sends a disk to the caller's socket.
pub(super) fn export(call: &ImageExport, stop: &Arc<AtomicBool>) -> Result<(), ImageCallError> {
    if call.base.is_some() && call.format != ImageFormat::Vhd {
        let why = "only a VHD can have the difference to another disk; export it as vhd";
        return Err(ImageCallError::Refused(why.into()));
    }
    let mut source = Source::open(&call.source, stop, false)?;
    let size = source.size();
    if size == 0 {
        return Err(ImageCallError::Refused(format!("{} is empty", call.source)));
    }
    match call.format {
        ImageFormat::Raw => {
            let mut sink = Sink::open(&call.stream, stop, size)?;
            sink.send(&mut source, 0, size)
        }
        ImageFormat::Vhd => send_vhd(call, &mut source, stop),
        ImageFormat::Qcow2 => send_qcow2(call, &mut source, stop),
    }
}

fn send_vhd(
    call: &ImageExport,
    source: &mut Source,
    stop: &Arc<AtomicBool>,
) -> Result<(), ImageCallError> {
    let failed = ImageCallError::image(&call.stream);
    let unit = vhd::ExportLayout::BLOCK_BYTES;
    let blocks = match &call.base {
        None => stored(source, unit, stop)?,
        Some(base) => changed((source, &call.source), &base.source, unit, stop)?,
    };
    let parent = call.base.as_ref().map(|base| Parent {
        file: base.name.clone().into(),
        unique_id: base.id,
        unix_seconds: 0,
    });
    let layout = vhd::ExportLayout::new(source.size(), call.id, parent, &blocks);
    let layout = layout.map_err(&failed)?;
    let mut sink = Sink::open(&call.stream, stop, layout.bytes())?;
    sink.write(layout.head())?;
    let block_head = vhd::ExportLayout::block_head();
    for block in blocks.iter() {
        sink.write(&block_head)?;
        // The last block may end behind the disk, where the source is zero.
        sink.send(source, block * unit, (block + 1) * unit)?;
    }
    sink.write(layout.footer())
}

fn send_qcow2(
    call: &ImageExport,
    source: &mut Source,
    stop: &Arc<AtomicBool>,
) -> Result<(), ImageCallError> {
    let failed = ImageCallError::image(&call.stream);
    let unit = 1 << qcow2::export_cluster_bits(source.size());
    let clusters = stored(source, unit, stop)?;
    let layout = qcow2::ExportLayout::new(source.size(), &clusters).map_err(&failed)?;
    let mut sink = Sink::open(&call.stream, stop, layout.bytes())?;
    layout.write_head(|piece| sink.write(piece).map_err(HeadError::Sink)).map_err(|error| {
        match error {
            HeadError::Sink(error) => error,
            HeadError::Layout(error) => failed(error),
        }
    })?;
    let mut from = 0;
    while let Some(first) = clusters.next(from, clusters.limit()) {
        let run = (first..clusters.limit()).find(|one| !clusters.contains(*one));
        let end = run.unwrap_or(clusters.limit());
        sink.send(source, first * unit, end * unit)?;
        from = end;
    }
    Ok(())
}

/// Reason why the head of an image was not sent.
enum HeadError {
    Sink(ImageCallError),
    Layout(ImageError),
}

impl From<ImageError> for HeadError {
    fn from(error: ImageError) -> Self {
        Self::Layout(error)
    }
}

/// The caller's socket.
struct Sink<'a> {
    stream: UnixStream,
    path: &'a Path,
    stop: &'a AtomicBool,
    buffer: Vec<u8>,
}

impl<'a> Sink<'a> {
    /// Connects to a socket, and announces a stream of `bytes`.
    fn open(path: &'a Path, stop: &'a AtomicBool, bytes: u64) -> Result<Self, ImageCallError> {
        let stream = UnixStream::connect(path).map_err(lost(path))?;
        // A chunk has 1 MiB.
        let buffer = vec![0; CHUNK as usize];
        let mut sink = Self { stream, path, stop, buffer };
        sink.write(&bytes.to_be_bytes())?;
        Ok(sink)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ImageCallError> {
        check_stop(self.stop)?;
        self.stream.write_all(bytes).map_err(lost(self.path))
    }

    /// Sends the bytes of a disk from `start` to `end`.
    fn send(&mut self, source: &mut Source, start: u64, end: u64) -> Result<(), ImageCallError> {
        let mut at = start;
        while at < end {
            check_stop(self.stop)?;
            // At most the length of the buffer.
            let len = (end - at).min(CHUNK) as usize;
            let part = self.buffer.get_mut(..len).unwrap_or_default();
            source.read(at, part)?;
            self.stream.write_all(part).map_err(lost(self.path))?;
            at += len as u64;
        }
        Ok(())
    }
}

fn lost(path: &Path) -> impl FnOnce(io::Error) -> ImageCallError {
    let failed = DiskError::os::<io::Error>("send to", path);
    move |error| failed(error).into()
}
