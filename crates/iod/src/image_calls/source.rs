//! A tree of images that is read from its first byte to its last.

mod changes;

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use disk::{Disk as _, DiskError, ImageLock, open_image};
use golden::{GoldenDisk, GoldenError};
use image::format::Access;
use image::qcow2::{Compressed, Image, Mapping};
use image::vhd::{self, DiskType};
use image::{ImageError, ImageFile, PlainFile, Presence, run_now};
use model::spec::Backend;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::ImageCallError;
use super::new_file::plain;
pub(super) use changes::common_image;

/// Bytes of the blocks in which a golden image is counted.
const SECTOR_BYTES: u32 = 512;

/// Disk that is read. All its files are locked against writers.
pub(super) struct Source {
    node: Node,
    /// Size of the disk in bytes.
    size: u64,
    path: String,
    _lock: Option<ImageLock>,
}

enum Node {
    Raw(PlainFile),
    Golden {
        disk: GoldenDisk,
        stop: Arc<AtomicBool>,
        /// File of its source, which tells where zeroes are.
        file: Option<PlainFile>,
    },
    Qcow2 {
        image: Box<Image<PlainFile>>,
        below: Option<Box<Source>>,
        /// Compressed cluster that was read last.
        cluster: Option<(Compressed, Vec<u8>)>,
    },
    Vhd {
        image: Box<vhd::Image<PlainFile>>,
        below: Option<Box<Source>>,
    },
    Window {
        child: Box<Source>,
        offset: u64,
    },
}

impl Source {
    /// Opens and locks the files of a tree. If `direct`, reads them without the page cache where that
    /// is possible.
    ///
    /// # Errors
    /// A file cannot be opened, another process writes it, or it is not as stated.
    pub(super) fn open(
        backend: &Backend,
        stop: &Arc<AtomicBool>,
        direct: bool,
    ) -> Result<Self, ImageCallError> {
        match backend {
            Backend::File(file) => {
                let (path, fd, lock) = locked(file.path())?;
                let size = seek(&fd, SeekFrom::End(0)).map_err(DiskError::os("measure", path))?;
                let file = plain(fd.try_clone().map_err(DiskError::os("open", path))?, direct);
                let path = path.display().to_string();
                Ok(Self { node: Node::Raw(file), size, path, _lock: Some(lock) })
            }
            Backend::Qcow2 { file, backing } => {
                let (path, fd, lock) = locked(file.path())?;
                let file = plain(fd.try_clone().map_err(DiskError::os("open", path))?, direct);
                let path = path.display().to_string();
                let failed = |source| ImageCallError::Image { path: path.clone(), source };
                let mut image = run_now(Image::open(file, Access::Read)).map_err(failed)?;
                image.stop_when(Arc::clone(stop));
                let below = backing.as_deref().map(|backing| Self::open(backing, stop, direct));
                let below = below.transpose()?.map(Box::new);
                if below.is_none() && image.header().backing().is_some() {
                    return Err(ImageCallError::Refused(only_a_part(&path)));
                }
                let size = image.header().size;
                let node = Node::Qcow2 { image: Box::new(image), below, cluster: None };
                Ok(Self { node, size, path, _lock: Some(lock) })
            }
            Backend::Vhd { file, backing } => {
                Self::open_vhd(file.path(), backing.as_deref(), (stop, direct))
            }
            Backend::Raw { child, offset, size } => {
                let child = Self::open(child, stop, direct)?;
                if offset.checked_add(*size).is_none_or(|end| end > child.size) {
                    let problem =
                        format!("the window of {size} bytes at {offset} is not inside its image");
                    return Err(ImageCallError::Refused(problem));
                }
                let path = child.path.clone();
                let node = Node::Window { child: Box::new(child), offset: *offset };
                Ok(Self { node, size: *size, path, _lock: None })
            }
            Backend::Golden(image) => {
                let refused = |error: GoldenError| ImageCallError::Refused(error.to_string());
                let disk = golden::open(image, SECTOR_BYTES).map_err(refused)?;
                let (size, path) = (disk.geometry().size, image.source.to_string());
                let file = disk.source_file().map(PlainFile::new);
                let node = Node::Golden { disk, stop: Arc::clone(stop), file };
                Ok(Self { node, size, path, _lock: None })
            }
            Backend::Null(_) | Backend::Memory(_) | Backend::Model(_) | Backend::Overlay { .. } => {
                let problem = "a source consists of files and golden images; attach other disks \
                               and export them";
                Err(ImageCallError::Refused(problem.into()))
            }
        }
    }

    fn open_vhd(
        path: Option<&Path>,
        backing: Option<&Backend>,
        (stop, direct): (&Arc<AtomicBool>, bool),
    ) -> Result<Self, ImageCallError> {
        let (path, fd, lock) = locked(path)?;
        let file = plain(fd.try_clone().map_err(DiskError::os("open", path))?, direct);
        let path = path.display().to_string();
        let failed = |source| ImageCallError::Image { path: path.clone(), source };
        let mut image = run_now(vhd::Image::open(file, Access::Read)).map_err(failed)?;
        image.stop_when(Arc::clone(stop));
        let below = backing.map(|backing| Self::open(backing, stop, direct)).transpose()?;
        let parent_id = below.as_ref().and_then(Self::unique_id);
        image.check_parent(below.is_some(), parent_id).map_err(failed)?;
        if below.is_none() && image.footer().disk_type == DiskType::Differencing {
            return Err(ImageCallError::Refused(only_a_part(&path)));
        }
        let (size, below) = (image.footer().size, below.map(Box::new));
        let node = Node::Vhd { image: Box::new(image), below };
        Ok(Self { node, size, path, _lock: Some(lock) })
    }

    /// Reads a qcow2 image that no other program knows, and that must have all of its disk.
    ///
    /// # Errors
    /// The file is no such image, or fails.
    pub(super) fn open_received(
        file: PlainFile,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, ImageError> {
        let mut image = run_now(Image::open(file, Access::Read))?;
        image.stop_when(Arc::clone(stop));
        if image.header().backing().is_some() {
            let problem = "it needs another image below it, which a received image cannot have; \
                           send the whole disk, as `qemu-img convert` writes it";
            return Err(ImageError::Parent { problem: problem.into() });
        }
        let size = image.header().size;
        let node = Node::Qcow2 { image: Box::new(image), below: None, cluster: None };
        Ok(Self { node, size, path: "the received image".into(), _lock: None })
    }

    /// Returns the size of the disk in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Fills `out` with the bytes from `at`. Behind the end there are zeroes.
    ///
    /// # Errors
    /// A file fails or is damaged.
    pub(super) fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), ImageCallError> {
        let inside = self.size.saturating_sub(at).min(out.len() as u64);
        // At most the length of a slice.
        let (out, behind) = out.split_at_mut(inside as usize);
        behind.fill(0);
        if out.is_empty() {
            return Ok(());
        }
        let path = &self.path;
        let failed = |source| ImageCallError::Image { path: path.clone(), source };
        match &mut self.node {
            Node::Raw(file) => read_padded(file, at, out).map_err(failed),
            Node::Golden { disk, stop, .. } => {
                disk.read(at, out, stop).map_err(|error| match error.kind() {
                    ErrorKind::Interrupted => failed(ImageError::Stopped),
                    _ => failed(ImageError::io("read", at)(error)),
                })
            }
            Node::Window { child, offset } => child.read(offset.saturating_add(at), out),
            Node::Vhd { image, below } => read_runs(at, out, |from, rest| {
                let run = run_now(image.lookup(from)).map_err(failed)?;
                let part = first(rest, run.bytes);
                match (run.host_offset, &mut *below) {
                    (Some(offset), _) => read_padded(image.file(), offset, part).map_err(failed)?,
                    (None, Some(below)) => below.read(from, part)?,
                    (None, None) => part.fill(0),
                }
                Ok(part.len())
            }),
            Node::Qcow2 { image, below, cluster } => read_runs(at, out, |from, rest| {
                let run = run_now(image.lookup(from)).map_err(failed)?;
                let part = first(rest, run.bytes);
                match (run.mapping, &mut *below) {
                    (Mapping::Unallocated, Some(below)) => below.read(from, part)?,
                    (Mapping::Zero | Mapping::Unallocated, _) => part.fill(0),
                    (Mapping::Data { host_offset, .. }, _) => {
                        read_padded(image.file(), host_offset, part).map_err(failed)?;
                    }
                    (Mapping::Compressed(compressed), _) => {
                        decompress(image, compressed, cluster).map_err(failed)?;
                        let bytes = cluster.as_ref().map_or(&[][..], |(_, bytes)| bytes);
                        let skip = (from % image.header().cluster_bytes()) as usize;
                        let found = bytes.get(skip..skip + part.len());
                        found.into_iter().for_each(|found| part.copy_from_slice(found));
                    }
                }
                Ok(part.len())
            }),
        }
    }

    /// Returns the first byte from `at` on that may not be zero, at most `end`. Does not look behind
    /// `end`.
    ///
    /// # Errors
    /// A file fails or is damaged.
    pub(super) fn next_data(&mut self, mut at: u64, end: u64) -> Result<u64, ImageCallError> {
        while at < end {
            let (presence, bytes) = self.presence(at, end, u32::MAX)?;
            if presence == Presence::Data {
                return Ok(at);
            }
            at = at.saturating_add(bytes.max(1));
        }
        Ok(end)
    }

    /// Returns what the first `layers` images of the tree say about the bytes from `at`, which is
    /// before `end`, and about how many bytes: at least one, at most to `end`. What all images of a
    /// tree leave open is zero.
    ///
    /// # Errors
    /// A file fails or is damaged.
    pub(super) fn presence(
        &mut self,
        at: u64,
        end: u64,
        layers: u32,
    ) -> Result<(Presence, u64), ImageCallError> {
        let Some(below_layers) = layers.checked_sub(1) else {
            return Ok((Presence::Below, end - at));
        };
        // Behind its end, a layer is zero, and hides what lies below.
        if at >= self.size {
            return Ok((Presence::Zero, end - at));
        }
        let end = end.min(self.size);
        let path = &self.path;
        let failed = |source| ImageCallError::Image { path: path.clone(), source };
        let (bytes, known, below) = match &mut self.node {
            Node::Raw(file) => return Ok(raw_presence(file, at, end)),
            Node::Golden { file: Some(file), .. } => return Ok(raw_presence(file, at, end)),
            // A server is not asked where zeroes are.
            Node::Golden { .. } => return Ok((Presence::Data, end - at)),
            Node::Window { child, offset } => {
                let [at, end] = [at, end].map(|one| offset.saturating_add(one));
                return child.presence(at, end, layers);
            }
            Node::Vhd { image, below } => {
                let run = run_now(image.lookup(at)).map_err(failed)?;
                (run.bytes, run.host_offset.map(|_| Presence::Data), below)
            }
            Node::Qcow2 { image, below, .. } => {
                let run = run_now(image.lookup(at)).map_err(failed)?;
                let known = match run.mapping {
                    Mapping::Zero => Some(Presence::Zero),
                    Mapping::Data { .. } | Mapping::Compressed(_) => Some(Presence::Data),
                    Mapping::Unallocated => None,
                };
                (run.bytes, known, below)
            }
        };
        let next = end.min(at.saturating_add(bytes));
        match (known, below) {
            (Some(known), _) => Ok((known, next - at)),
            (None, Some(below)) => below.presence(at, next, below_layers),
            (None, None) => Ok((Presence::Zero, next - at)),
        }
    }

    /// Returns the identity of the image at the top, if it is a VHD.
    pub(super) fn unique_id(&self) -> Option<[u8; 16]> {
        match &self.node {
            Node::Vhd { image, .. } => Some(image.footer().unique_id),
            _ => None,
        }
    }

    /// Returns the number of images of the tree.
    pub(super) fn images(&self) -> u32 {
        match &self.node {
            Node::Raw(_) | Node::Golden { .. } => 1,
            Node::Window { child, .. } => child.images(),
            Node::Vhd { below, .. } | Node::Qcow2 { below, .. } => {
                below.as_ref().map_or(1, |below| below.images().saturating_add(1))
            }
        }
    }
}

/// Returns whether a raw image may have data at `at`, and for how many bytes.
fn raw_presence(file: &PlainFile, at: u64, end: u64) -> (Presence, u64) {
    let found = |whence| match seek(file.fd(), whence) {
        Ok(found) => Some(found.clamp(at, end)),
        Err(Errno::NXIO) => Some(end),
        // The storage cannot tell.
        Err(_) => None,
    };
    let data = found(SeekFrom::Data(at)).unwrap_or(at);
    if data > at {
        return (Presence::Zero, data - at);
    }
    let hole = found(SeekFrom::Hole(at)).filter(|hole| *hole > at).unwrap_or(end);
    (Presence::Data, hole - at)
}

fn only_a_part(path: &str) -> String {
    format!("the image {path} has only a part of its disk; give the image below, too (--backing)")
}

/// Opens a file and locks it against writers.
fn locked(path: Option<&Path>) -> Result<(&Path, Arc<OwnedFd>, ImageLock), ImageCallError> {
    let missing = || ImageCallError::Refused("a source is given by paths".into());
    let path = path.ok_or_else(missing)?;
    let fd = Arc::new(open_image(path, true)?);
    let lock = ImageLock::take(path, Arc::clone(&fd), false)?;
    Ok((path, fd, lock))
}

/// Fills `out` with the bytes from `at`, one run after the other. `read_run` fills the first run of its
/// buffer, and returns the length of the run.
fn read_runs(
    at: u64,
    out: &mut [u8],
    mut read_run: impl FnMut(u64, &mut [u8]) -> Result<usize, ImageCallError>,
) -> Result<(), ImageCallError> {
    let mut done = 0;
    while done < out.len() {
        let rest = out.get_mut(done..).unwrap_or_default();
        done += read_run(at + done as u64, rest)?;
    }
    Ok(())
}

/// Returns the first `bytes` of a buffer, at most all.
fn first(buffer: &mut [u8], bytes: u64) -> &mut [u8] {
    let len = bytes.min(buffer.len() as u64) as usize;
    buffer.get_mut(..len).unwrap_or_default()
}

/// Reads from a file whose last cluster may be shorter than others.
fn read_padded(file: &PlainFile, offset: u64, out: &mut [u8]) -> Result<(), ImageError> {
    let len = run_now(async { file.len().await.map_err(ImageError::io("measure", 0)) })?;
    let inside = len.saturating_sub(offset).min(out.len() as u64);
    // At most the length of a slice.
    let (out, behind) = out.split_at_mut(inside as usize);
    behind.fill(0);
    run_now(async { file.read_at(offset, out).await.map_err(ImageError::io("read", offset)) })
}

/// Decompresses a cluster, unless it is the one that was read last.
fn decompress(
    image: &mut Image<PlainFile>,
    compressed: Compressed,
    last: &mut Option<(Compressed, Vec<u8>)>,
) -> Result<(), ImageError> {
    if last.as_ref().is_some_and(|(known, _)| *known == compressed) {
        return Ok(());
    }
    // A cluster has at most 2 MiB.
    let mut bytes = vec![0; image.header().cluster_bytes() as usize];
    run_now(image.read_compressed(compressed, &mut bytes))?;
    *last = Some((compressed, bytes));
    Ok(())
}
