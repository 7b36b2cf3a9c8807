//! Copies of disks in new image files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use disk::DiskError;
use image::format::Backing;
use image::{ImageError, Presence};
use model::image::{ImageBacking, ImageConvert, ImageFormat};
use model::spec::Backend;

use super::ImageCallError;
use super::new_file::{DIRECT_BLOCK, NewFile, plain};
use super::pace::{DiskLoad, Pace, STEP};
use super::source::Source;
use super::target::{Target, TargetFormat, data_runs};

/// Bytes that are copied together, a multiple of every cluster.
const CHUNK: usize = 2 << 20;
/// Bytes that are copied together in the background, a multiple of the clusters of new qcow2 images.
const BACKGROUND_CHUNK: usize = 256 << 10;
/// Longest sleep of a copy that pauses, before it looks whether it must stop.
const NAP: Duration = Duration::from_millis(50);

/// Progress of a copy.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
}

/// Part of a tree that is copied.
struct Copied<'a> {
    source: Source,
    /// Number of its images that are copied.
    layers: u32,
    /// Whether a layer below has what these do not have.
    has_below: bool,
    stop: &'a AtomicBool,
}

impl Copied<'_> {
    /// Fills `out` with the bytes from `at`, as far as its units are present. Returns their presence.
    /// A unit that is present in part is so as a whole, with what lies below.
    fn read(
        &mut self,
        at: u64,
        out: &mut [u8],
        unit: usize,
    ) -> Result<Vec<Presence>, ImageCallError> {
        let (end, mut known) = (at + out.len() as u64, vec![None; out.len().div_ceil(unit)]);
        let mut from = at;
        while from < end {
            let (presence, bytes) = self.source.presence(from, end, self.layers)?;
            // Within the buffer.
            let first = (from - at) as usize / unit;
            from += bytes.max(1);
            let last = ((from - at) as usize).div_ceil(unit);
            for one in known.get_mut(first..last).unwrap_or_default() {
                let is_same = one.is_none_or(|before| before == presence);
                *one = Some(if is_same { presence } else { Presence::Data });
            }
        }
        let mut known: Vec<_> =
            known.into_iter().map(|one| one.unwrap_or(Presence::Zero)).collect();
        out.fill(0);
        for (skip, range) in data_runs(out.len(), &known, unit) {
            let part = out.get_mut(range).unwrap_or_default();
            self.source.read(at + skip as u64, part)?;
        }
        for (one, data) in known.iter_mut().zip(out.chunks(unit)) {
            if *one == Presence::Data && data.iter().all(|byte| *byte == 0) {
                *one = Presence::Zero;
            }
        }
        Ok(known)
    }

    /// Returns the first chunk from `at` on that may have something to store, or the end.
    fn skip(&mut self, mut at: u64) -> Result<u64, ImageCallError> {
        let size = self.source.size();
        while at < size {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(at);
            }
            let (presence, bytes) = self.source.presence(at, size, self.layers)?;
            let is_nothing = match presence {
                Presence::Below => true,
                Presence::Zero => !self.has_below,
                Presence::Data => false,
            };
            if !is_nothing {
                break;
            }
            at += bytes.max(1);
        }
        Ok(at)
    }
}

/// Returns the reference of a new image at `path` to the image below it.
pub(super) fn reference(path: &Path, below: &Backend) -> Result<Backing, ImageCallError> {
    let image = below.image().and_then(|(file, format)| Some((file.path()?, format)));
    let (file, format) = image.ok_or_else(|| {
        let problem = "a layer lies over an image file; give no layers, and copy the whole disk";
        ImageCallError::Refused(problem.into())
    })?;
    // In one folder, the two may move together.
    let name = file.file_name().filter(|_| file.parent() == path.parent());
    let file = name.map_or_else(|| file.to_owned(), PathBuf::from);
    Ok(Backing { file, format: Some(format.qemu_name().into()) })
}

/// Opens the source of a copy. Returns it with the format of the new image.
fn open<'a>(
    call: &ImageConvert,
    stop: &'a Arc<AtomicBool>,
) -> Result<(Copied<'a>, TargetFormat), ImageCallError> {
    let source = Source::open(&call.source, stop, call.background)?;
    if source.size() == 0 {
        return Err(ImageCallError::Refused(format!("{} is empty", call.source)));
    }
    let (images, layers) = (source.images(), call.layers.unwrap_or(u32::MAX));
    if call.layers.is_some_and(|layers| layers > images) {
        let problem = format!("layers: the source has {images} images, not {layers}");
        return Err(ImageCallError::Refused(problem));
    }
    let below = call.layers.and_then(|layers| call.source.below(layers));
    let backing = below.map(|below| reference(&call.path, below)).transpose()?;
    let has_below = backing.is_some();
    let format = match (call.format, backing) {
        (ImageFormat::Vhd, backing) => {
            let parent = |backing: Backing| {
                let below = below.and_then(Backend::image).map(|(_, format)| format.name().into());
                let backing = ImageBacking { file: backing.file, format: below };
                super::vhd::parent(&call.path, &backing, stop)
            };
            // Images over the ones that it replaces know it by their identity.
            let unique_id = call.layers.and_then(|_| source.unique_id());
            TargetFormat::Vhd(backing.map(parent).transpose()?, unique_id)
        }
        (ImageFormat::Qcow2, backing) => TargetFormat::Qcow2(backing),
        (ImageFormat::Raw, None) => TargetFormat::Raw,
        (ImageFormat::Raw, Some(_)) => {
            let problem = "a part of a disk is copied to qcow2 or VHD only";
            return Err(ImageCallError::Refused(problem.into()));
        }
    };
    Ok((Copied { source, layers, has_below, stop }, format))
}

/// Pauses of a copy in the background.
struct Pauses<'a> {
    pace: Pace,
    load: &'a dyn Fn() -> DiskLoad,
    /// Begin of the step under way.
    began: Instant,
}

impl<'a> Pauses<'a> {
    fn new(load: &'a dyn Fn() -> DiskLoad) -> Self {
        Self { pace: Pace::new(load()), load, began: Instant::now() }
    }

    /// Pauses if the step under way is long enough and guests need it.
    fn make_way(&mut self, stop: &AtomicBool) {
        let step = self.began.elapsed();
        if step < STEP {
            return;
        }
        let pause = self.pace.after_step(step, (self.load)());
        if !pause.is_zero() {
            wait(pause / 2, stop);
            self.pace.amid_pause((self.load)());
            wait(pause / 2, stop);
            self.pace.after_pause((self.load)());
        }
        self.began = Instant::now();
    }
}

/// Waits, or until the copy is to stop.
fn wait(time: Duration, stop: &AtomicBool) {
    let until = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// Copies a disk to a new file, which appears when it is complete. `load` is that of the disks for
/// which a copy in the background makes way.
pub(super) fn convert(
    call: &ImageConvert,
    stop: &Arc<AtomicBool>,
    progress: &Progress,
    load: &dyn Fn() -> DiskLoad,
) -> Result<(), ImageCallError> {
    let path = &call.path;
    let (mut copied, format) = open(call, stop)?;
    let size = copied.source.size();
    progress.total.store(size, Ordering::Relaxed);
    let file = NewFile::create(path).map_err(DiskError::os("create", path))?;
    let failed = ImageCallError::image(path);
    let own = file.fd().try_clone().map_err(DiskError::os("create", path))?;
    // A raw image ends with the last byte, which direct I/O may not write alone.
    let is_aligned = call.format != ImageFormat::Raw || size.is_multiple_of(DIRECT_BLOCK as u64);
    let own = plain(own, call.background && is_aligned);
    let mut target = Target::create(own, format, size).map_err(&failed)?;
    let mut pauses = call.background.then(|| Pauses::new(load));
    let is_small = call.background && call.format != ImageFormat::Vhd;
    let chunk = if is_small { BACKGROUND_CHUNK } else { CHUNK };
    let (mut at, mut buffer) = (0, vec![0; chunk]);
    while at < size {
        if stop.load(Ordering::Relaxed) {
            return Err(failed(ImageError::Stopped));
        }
        let data = copied.skip(at)?;
        at = at.max(data - data % chunk as u64);
        if data < size {
            // At most the length of the buffer.
            let len = (size - at).min(chunk as u64) as usize;
            let part = buffer.get_mut(..len).unwrap_or_default();
            let presence = copied.read(at, part, target.unit_bytes())?;
            target.write_units(at, part, &presence).map_err(&failed)?;
            at += len as u64;
        } else {
            at = size;
        }
        progress.done.store(at, Ordering::Relaxed);
        if let Some(pauses) = &mut pauses {
            pauses.make_way(stop);
        }
    }
    target.finish().map_err(&failed)?;
    Ok(file.publish().map_err(DiskError::os("store", path))?)
}
