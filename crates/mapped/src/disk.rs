//! A disk behind a block map.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::disk::{
    CacheState, Channel, Disk, DiskError, Extent, FileDisk, Geometry, IoError, Layer, LayerCounts,
};
use image::ImageError;
use image::channel::{MapChannel, MapReader};
use image::format::Backing;
use image::format::Format;
use image::journal::{Journal, JournalOwner, JournalSize};
use image::map::{Map, PagePool};
use image::shared::Shared;
use reactor::Context;

use crate::below::Below;
use crate::broken::BrokenChannel;
use crate::channel::MappedChannel;
use crate::counters::Counters;
use crate::extents::Asker;
use crate::locator::LayerLocator;
use crate::mailbox::Mailbox;
use crate::service::{OwnerService, Service, ServiceOptions};
use crate::source::{ImageSource, JournalSource};

/// Channels of a disk that can be open at a time: its queues, and connections of exports.
const CHANNELS: u32 = 320;

/// Sizes of the journal of an image that is written: up to 512 KiB of entries, 1 KiB a
/// channel. Only what is used takes memory.
pub const JOURNAL: JournalSize =
    JournalSize { entries: 16384, rings: CHANNELS as usize, records: 64 };

/// Sizes of the journal of an image that is only read: it stays empty.
pub const READ_ONLY_JOURNAL: JournalSize =
    JournalSize { entries: 1, rings: CHANNELS as usize, records: 1 };

/// Properties of a mapped disk.
#[derive(Clone)]
pub struct MappedOptions {
    /// Path of the image, for errors.
    pub path: PathBuf,
    /// Size and limits that the guest sees, until the disk grows. Without `discard`, the image cannot
    /// say that a granule is zero.
    pub geometry: Geometry,
    /// Whether requests wait for space, or fail.
    pub waits_for_room: bool,
    /// Memory of the journal. A successor gets the same.
    pub journal: Arc<dyn JournalSource>,
    /// Pool of the pages of the map.
    pub pages: Arc<PagePool>,
}

/// Starts the owner of an image whose lock this process has.
type StartFn = dyn Fn() -> Result<Arc<dyn Service>, ImageError> + Send + Sync;

/// Makes an image larger, whose owner has stopped.
type GrowFn = dyn Fn(u64) -> Result<(), ImageError> + Send + Sync;

/// A layer: the file of an image, and the disk below it.
pub struct MappedDisk {
    file: Arc<FileDisk>,
    below: Option<Arc<dyn Disk>>,
    options: MappedOptions,
    start: Box<StartFn>,
    grow: Box<GrowFn>,
    size: AtomicU64,
    counters: Arc<Counters>,
    /// Held while the storage is waited for.
    activating: Mutex<()>,
    /// Never held for long: reactors take it.
    service: Mutex<Option<Arc<dyn Service>>>,
    /// Reference of the image to the one below.
    pub(crate) reference: Option<Backing>,
}

impl fmt::Debug for MappedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedDisk({}, below {:?})", self.options.path.display(), self.below)
    }
}

impl MappedDisk {
    /// Joins the file of an image with the disk below it. `source` opens the image when the disk is
    /// activated, and each time again. Changes nothing.
    pub fn new(
        file: Arc<FileDisk>,
        below: Option<Arc<dyn Disk>>,
        options: MappedOptions,
        source: impl ImageSource,
    ) -> Self {
        let counters = Arc::<Counters>::default();
        let (journal, pages) = (Arc::clone(&options.journal), Arc::clone(&options.pages));
        let to_grow = Arc::new(source);
        let source = Arc::clone(&to_grow);
        let (read_only, waits_for_room) = (options.geometry.read_only, options.waits_for_room);
        let (storage, counted) = (Arc::clone(&file), Arc::clone(&counters));
        let start = move || {
            let service_options = |counters| ServiceOptions {
                file: Arc::clone(&storage),
                rings: CHANNELS,
                waits_for_room,
                counters,
            };
            recover(&*source, &journal, &pages, read_only, service_options(Arc::default()))?;
            let size = if read_only { READ_ONLY_JOURNAL } else { JOURNAL };
            let journal = Journal::open(Arc::clone(&journal).open()?, size)?;
            start(&*source, journal, &pages, service_options(Arc::clone(&counted)))
        };
        let grow = move |size| to_grow.grow(size);
        let size = AtomicU64::new(options.geometry.size);
        let (start, grow) = (Box::new(start), Box::new(grow));
        let (activating, service, reference) = Default::default();
        Self { file, below, options, start, grow, size, counters, activating, service, reference }
    }

    /// Returns the file of the image.
    pub fn file(&self) -> &Arc<FileDisk> {
        &self.file
    }

    /// Returns the reference of the image to the one below, which is never followed.
    pub fn reference(&self) -> Option<&Backing> {
        self.reference.as_ref()
    }

    /// Returns the disk below, if there is one.
    pub(crate) fn below(&self) -> Option<&Arc<dyn Disk>> {
        self.below.as_ref()
    }

    fn service(&self) -> MutexGuard<'_, Option<Arc<dyn Service>>> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn image_error(&self) -> impl FnOnce(ImageError) -> DiskError {
        let path = self.options.path.clone();
        move |error| DiskError::Image { path, problem: error.to_string() }
    }

    #[cfg(test)]
    pub(crate) fn set_service(&self, service: Arc<dyn Service>) {
        *self.service() = Some(service);
    }

    /// Opens the layer below, if there is one.
    pub(crate) fn open_below(&self, context: &mut Context<'_>) -> Option<(Layer, u64)> {
        let below = self.below.as_ref()?;
        Some((Arc::clone(below).open_layer(context), below.geometry().size))
    }

    /// Opens a channel whose image is in `file`.
    pub(crate) fn open_channel_on(
        &self,
        file: Box<dyn Channel>,
        below: Option<Below>,
        context: &mut Context<'_>,
    ) -> Box<dyn Channel> {
        let Some(service) = self.service().clone() else {
            tracing::error!("a queue of {self:?} starts, but the disk is not active");
            return Box::new(BrokenChannel);
        };
        let mailbox = Mailbox::new(context);
        let opened = service.open_channel(Arc::clone(&mailbox));
        let shared = Arc::clone(service.shared());
        let open =
            |(number, ring)| Some((MapChannel::open(shared, ring)?.numbered(number), number));
        let Some(map) = opened.and_then(open) else {
            tracing::error!("{self:?} has more than {CHANNELS} queues and connections");
            return Box::new(BrokenChannel);
        };
        let channel = MappedChannel::new(
            Arc::clone(&self.file),
            (file, below),
            map,
            (service, mailbox, Arc::clone(&self.counters)),
            (self.options.waits_for_room, self.options.geometry.discard),
            context,
        );
        Box::new(channel)
    }
}

/// Starts the owner of an image.
fn start(
    source: &impl ImageSource,
    journal: Journal,
    pages: &Arc<PagePool>,
    options: ServiceOptions,
) -> Result<Arc<dyn Service>, ImageError> {
    let format = source.open()?;
    let map = Map::new(format.layout(), pages);
    let shared = Arc::new(Shared::new(map, journal));
    let service: Arc<dyn Service> = OwnerService::start(shared, format, options)?;
    Ok(service)
}

/// Makes durable what a process left that has died and that nothing preserves.
fn recover(
    source: &impl ImageSource,
    journal: &Arc<dyn JournalSource>,
    pages: &Arc<PagePool>,
    read_only: bool,
    options: ServiceOptions,
) -> Result<(), ImageError> {
    let Some(cells) = journal.former()? else { return Ok(()) };
    if read_only {
        let problem = "the disk is read-only; serve it once for writing".into();
        return Err(journal.refusal(&ImageError::Repair { problem }).into());
    }
    let opened = Journal::open(cells, JOURNAL).map_err(ImageError::from).and_then(|opened| {
        source.verify(&JournalOwner::new(opened.clone()))?;
        Ok(opened)
    });
    let opened = opened.map_err(|error| journal.refusal(&error))?;
    start(source, opened, pages, options)?.stop()?;
    Ok(journal.remove_former()?)
}

impl Disk for MappedDisk {
    fn inner(&self) -> Option<Arc<dyn Disk>> {
        // It has a file and a disk below, and calls both.
        None
    }

    fn geometry(&self) -> Geometry {
        Geometry { size: self.size.load(Ordering::Acquire), ..self.options.geometry }
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        let below = self.open_below(context).map(|(layer, size)| Below::new(layer, size));
        self.open_channel_on(self.file.open_channel(context), below, context)
    }

    fn open_layer(self: Arc<Self>, context: &mut Context<'_>) -> Layer {
        let Some(service) = self.service().clone().filter(|_| self.options.geometry.read_only)
        else {
            return Layer::opaque(self.open_channel(context));
        };
        let below = self.open_below(context);
        let (mut channel, mut locator, mut files) = (None, None, vec![self.file.clone() as _]);
        let mut below_size = 0;
        if let Some((layer, size)) = below {
            // The layer on top knows the files, so this one's channel need not.
            channel = Some(Below::new(Layer::opaque(layer.channel), size));
            (locator, below_size) = (layer.locator, size);
            files.extend(layer.files);
        }
        let locator = LayerLocator {
            map: MapReader::open(Arc::clone(service.shared())),
            size: self.geometry().size,
            below: locator,
            below_size,
        };
        let channel = self.open_channel_on(self.file.open_channel(context), channel, context);
        Layer { channel, locator: Some(Box::new(locator)), files }
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        self.file.wait_fence()?;
        self.below.as_ref().map_or(Ok(()), |below| below.wait_fence())
    }

    fn activate(&self) -> Result<(), DiskError> {
        let _alone = self.activating.lock().unwrap_or_else(PoisonError::into_inner);
        if self.service().is_some() {
            return Ok(());
        }
        if let Some(below) = &self.below {
            below.activate()?;
        }
        self.file.activate()?;
        let started = (self.start)().map_err(self.image_error())?;
        if self.file.handover().1 {
            started.shared().set_lost();
        }
        *self.service() = Some(started);
        Ok(())
    }

    fn reads_need_activation(&self) -> bool {
        // The owner knows the map.
        true
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        let service = self.service().take();
        let stopped = service.map(|service| service.stop()).transpose();
        if let Ok(Some(())) = stopped {
            self.options.journal.close();
        }
        let stopped = stopped.map(drop).map_err(self.image_error());
        let file = self.file.deactivate();
        let below = self.below.as_ref().map_or(Ok(()), |below| below.deactivate());
        stopped.and(file).and(below)
    }

    fn sync(&self) -> Result<(), DiskError> {
        let service = self.service().clone();
        match service.filter(|service| !service.shared().is_durable()) {
            // The round syncs the data, too. A flush of it may have failed elsewhere.
            Some(service) if !self.options.geometry.read_only && !self.file.handover().1 => {
                service.sync().map_err(self.image_error())
            }
            _ => self.file.sync(),
        }
    }

    fn begin_quiesce(&self) {
        if let Some(service) = self.service().clone() {
            service.begin_pause();
        }
        if let Some(below) = &self.below {
            below.begin_quiesce();
        }
    }

    fn quiesce(&self) {
        let service = self.service().clone();
        if let Some(service) = service {
            Arc::clone(&service).pause();
            if service.shared().is_lost() {
                // The next process learns it from the file.
                self.file.set_lost();
            }
        }
        if let Some(below) = &self.below {
            below.quiesce();
        }
    }

    fn unquiesce(&self) {
        if let Some(service) = self.service().clone() {
            service.resume();
        }
        if let Some(below) = &self.below {
            below.unquiesce();
        }
    }

    fn resize(&self, size: Option<u64>) -> Result<Geometry, DiskError> {
        let now = self.geometry();
        let Some(size) = size.filter(|size| *size != now.size) else { return Ok(now) };
        let refuse = |problem: String| Err(DiskError::Resize { problem });
        if now.read_only {
            return refuse("the image is read-only".into());
        }
        if !size.is_multiple_of(now.block_size.into()) {
            return refuse(format!("{size} bytes is not a multiple of {}", now.block_size));
        }
        let mut slot = self.service();
        let Some(service) = slot.take() else {
            return refuse("the disk is not active; activate it first".into());
        };
        let path = &self.options.path;
        let grown = service.stop().and_then(|()| (self.grow)(size));
        let started = (self.start)();
        let grown = grown.map_err(|error| match error {
            ImageError::Resize { .. } => DiskError::Resize { problem: error.to_string() },
            other => DiskError::Image { path: path.clone(), problem: other.to_string() },
        });
        if grown.is_ok() {
            self.size.store(size, Ordering::Release);
        }
        let started = started.map_err(self.image_error())?;
        if service.shared().is_lost() {
            started.shared().set_lost();
        }
        *slot = Some(started);
        grown.map(|()| self.geometry())
    }

    fn drains_to_resize(&self) -> bool {
        true
    }

    fn stalled(&self) -> u64 {
        self.file.stalled()
    }

    fn cache_state(&self) -> Option<CacheState> {
        self.below.as_ref()?.cache_state()
    }

    fn layer_counts(&self) -> Option<LayerCounts> {
        let service = self.service().clone();
        let counts = self.counters.counts(service.as_ref().map(|service| &**service.shared()));
        let below = self.below.as_ref().and_then(|below| below.layer_counts());
        Some(counts.plus(below.unwrap_or_default()))
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Extent>, IoError> {
        self.geometry().check_inside(offset, len)?;
        let service = self.service().clone();
        let asker = service.and_then(Asker::open);
        // Without an owner, no thread knows the map.
        let Some(asker) = asker else { return Ok(vec![Extent { len, hole: false }]) };
        asker.extents(self, offset, len, limit)
    }

    fn zeroes_fast(&self, _: bool) -> bool {
        self.options.geometry.discard
    }
}
