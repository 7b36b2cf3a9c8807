//! A disk behind a block map.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::disk::{Channel, Disk, DiskError, Extent, FileDisk, Geometry, IoError};
use image::ImageError;
use image::channel::MapChannel;
use image::format::Format;
use image::journal::{Cells, Journal, JournalSize};
use image::map::{Map, PagePool};
use image::shared::Shared;
use reactor::Context;

use crate::broken::BrokenChannel;
use crate::channel::{Limits, MappedChannel};
use crate::extents::Asker;
use crate::mailbox::Mailbox;
use crate::service::{OwnerService, Service};

/// Channels of a disk that can be open at a time: its queues, and connections of exports.
const CHANNELS: u32 = 320;

/// Sizes of the journal of an image that is written: 128 KiB of entries, 1 KiB a channel.
pub const JOURNAL: JournalSize =
    JournalSize { entries: 4096, rings: CHANNELS as usize, records: 64 };

/// Properties of a mapped disk.
#[derive(Clone)]
pub struct MappedOptions {
    /// Path of the image, for errors.
    pub path: PathBuf,
    /// Size and limits that the guest sees.
    pub geometry: Geometry,
    /// Whether requests wait for space, or fail.
    pub waits_for_room: bool,
    /// Memory of the journal, with [`JOURNAL`]'s number of cells. A successor gets the same.
    pub journal: Cells,
    /// Pool of the pages of the map.
    pub pages: Arc<PagePool>,
}

/// Starts the owner of an image whose lock this process has.
type StartFn = dyn Fn() -> Result<Arc<dyn Service>, ImageError> + Send + Sync;

/// A layer: the file of an image, and the disk below it.
pub struct MappedDisk {
    file: Arc<FileDisk>,
    below: Option<Arc<dyn Disk>>,
    options: MappedOptions,
    start: Box<StartFn>,
    service: Mutex<Option<Arc<dyn Service>>>,
}

impl fmt::Debug for MappedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedDisk({}, below {:?})", self.options.path.display(), self.below)
    }
}

impl MappedDisk {
    /// Joins the file of an image with the disk below it. `open` opens the format when the disk is
    /// activated, and each time again. Changes nothing.
    pub fn new<F: Format + Send + 'static>(
        file: Arc<FileDisk>,
        below: Option<Arc<dyn Disk>>,
        options: MappedOptions,
        open: impl Fn() -> Result<F, ImageError> + Send + Sync + 'static,
    ) -> Self {
        let (journal, pages) = (Arc::clone(&options.journal), Arc::clone(&options.pages));
        let start = move || {
            let format = open()?;
            let map = Map::new(format.layout(), Arc::clone(&pages));
            let journal = Journal::open(Arc::clone(&journal), JOURNAL)?;
            let shared = Arc::new(Shared::new(map, journal));
            let service: Arc<dyn Service> = OwnerService::start(shared, format, CHANNELS)?;
            Ok(service)
        };
        Self { file, below, options, start: Box::new(start), service: Mutex::default() }
    }

    /// Returns the file of the image.
    pub fn file(&self) -> &Arc<FileDisk> {
        &self.file
    }

    /// Returns the disk below, if there is one.
    pub(crate) fn below(&self) -> Option<&Arc<dyn Disk>> {
        self.below.as_ref()
    }

    fn service(&self) -> MutexGuard<'_, Option<Arc<dyn Service>>> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a channel whose image is in `file`.
    pub(crate) fn open_channel_on(
        &self,
        file: Box<dyn Channel>,
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
        let below = self.below.as_ref().map(|below| below.open_channel(context));
        let limits = Limits {
            below: self.below.as_ref().map_or(0, |below| below.geometry().size),
            waits_for_room: self.options.waits_for_room,
        };
        let channel = MappedChannel::new(
            Arc::clone(&self.file),
            (file, below),
            map,
            (service, mailbox),
            limits,
            context,
        );
        Box::new(channel)
    }

    #[cfg(test)]
    pub(crate) fn set_service(&self, service: Arc<dyn Service>) {
        *self.service() = Some(service);
    }

    fn image_error(&self) -> impl FnOnce(ImageError) -> DiskError {
        let path = self.options.path.clone();
        move |error| DiskError::Image { path, problem: error.to_string() }
    }
}

impl Disk for MappedDisk {
    fn geometry(&self) -> Geometry {
        self.options.geometry
    }

    fn open_channel(&self, context: &mut Context<'_>) -> Box<dyn Channel> {
        self.open_channel_on(self.file.open_channel(context), context)
    }

    fn wait_fence(&self) -> Result<(), DiskError> {
        self.file.wait_fence()?;
        self.below.as_ref().map_or(Ok(()), |below| below.wait_fence())
    }

    fn activate(&self) -> Result<(), DiskError> {
        let mut service = self.service();
        if service.is_some() {
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
        *service = Some(started);
        Ok(())
    }

    fn deactivate(&self) -> Result<(), DiskError> {
        let service = self.service().take();
        let stopped = service.map_or(Ok(()), |service| service.stop()).map_err(self.image_error());
        let file = self.file.deactivate();
        let below = self.below.as_ref().map_or(Ok(()), |below| below.deactivate());
        stopped.and(file).and(below)
    }

    fn sync(&self) -> Result<(), DiskError> {
        let service = self.service().clone();
        if let Some(service) = service.filter(|_| !self.options.geometry.read_only) {
            service.sync().map_err(self.image_error())?;
        }
        self.file.sync()
    }

    fn quiesce(&self) {
        // Others must not wait for the mutex as long as this waits for the storage.
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
        match size {
            Some(size) if size != now.size => {
                let problem = "an image of this format cannot grow while it is attached";
                Err(DiskError::Resize { problem: problem.into() })
            }
            _ => Ok(now),
        }
    }

    fn stalled(&self) -> u64 {
        let waiting = self.service().as_ref().map_or(0, |service| service.waiting());
        waiting + self.file.stalled()
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
        true
    }
}
