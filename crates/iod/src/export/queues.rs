//! The rings that a front-end has started, whether or not the disk serves them now.
//!
//! A ring is started by the session and served while the disk is active and not paused. What it
//! takes to serve it is kept here, so that a disk that is held and served again under a connected
//! front-end goes on where it was.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use blk::{Device, Fault, QueueError, RunningQueue};
use memory::Table;
use vhost_user::SessionHandle;
use virtq::QueueStart;

use crate::pool::{Place, Pool};

/// Why a ring is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The device refused it.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// Its descriptors cannot be held twice.
    #[error("cannot duplicate the ring's descriptors; raise the limit of open files")]
    Descriptors(#[from] io::Error),
}

/// The rings of a disk that its front-end has started.
#[derive(Debug)]
pub(crate) struct Queues {
    device: Arc<Device>,
    pool: Arc<Pool>,
    /// The disk is active and not paused: rings are served.
    serving: bool,
    slots: Vec<Slot>,
}

/// A started ring.
#[derive(Debug)]
struct Slot {
    /// What it takes to serve it from here on.
    start: QueueStart,
    /// Its front-end.
    session: SessionHandle,
    served: Option<Served>,
}

/// A ring on its reactor.
#[derive(Debug)]
struct Served {
    queue: RunningQueue,
    _place: Place,
}

impl Queues {
    pub(crate) fn new(device: Arc<Device>, pool: Arc<Pool>) -> Self {
        Self { device, pool, serving: false, slots: Vec::new() }
    }

    /// Rings that are started.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Takes a ring that its front-end has started, and serves it if rings are served now.
    pub(crate) fn start(
        &mut self,
        start: QueueStart,
        session: SessionHandle,
    ) -> Result<(), ServeError> {
        let mut slot = Slot { start, session, served: None };
        if self.serving {
            slot.serve(&self.device, &self.pool)?;
        }
        self.slots.push(slot);
        Ok(())
    }

    /// Drains a ring that its front-end stops and forgets it; returns where it would go on.
    pub(crate) fn stop(&mut self, index: u16) -> u16 {
        let Some(at) = self.slots.iter().position(|slot| slot.start.index == index) else {
            return 0;
        };
        let mut slot = self.slots.swap_remove(at);
        slot.drain();
        slot.start.ring.next_avail
    }

    /// The disk may be used: serves every ring. One that cannot be served is told to its
    /// front-end and left alone.
    pub(crate) fn serve(&mut self) {
        self.serving = true;
        for slot in &mut self.slots {
            if let Err(error) = slot.serve(&self.device, &self.pool) {
                let cause = crate::error::text(&error);
                tracing::error!(queue = slot.start.index, "not served: {cause}");
                slot.report_broken();
            }
        }
    }

    /// The disk may no longer be used: drains every ring.
    pub(crate) fn hold(&mut self) {
        self.serving = false;
        self.slots.iter_mut().for_each(Slot::drain);
    }

    pub(crate) fn set_memory(&mut self, table: &Arc<Table>) -> Result<(), QueueError> {
        for slot in &mut self.slots {
            if let Some(served) = &slot.served {
                served.queue.set_memory(Arc::clone(table))?;
            }
            slot.start.table = Arc::clone(table);
        }
        Ok(())
    }

    pub(crate) fn set_call(&mut self, index: u16, call: Option<OwnedFd>) -> Result<(), ServeError> {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.start.index == index) else {
            return Ok(());
        };
        if let Some(served) = &slot.served {
            let twin = call.as_ref().map(OwnedFd::try_clone).transpose()?;
            served.queue.set_call(twin).map_err(QueueError::from)?;
        }
        slot.start.call = call;
        Ok(())
    }
}

impl Slot {
    fn serve(&mut self, device: &Device, pool: &Pool) -> Result<(), ServeError> {
        if self.served.is_some() {
            return Ok(());
        }
        let session = self.session.clone();
        let fault: Fault = Arc::new(move |why: &str| {
            tracing::error!("front-end sent away: {why}");
            session.close();
        });
        let place = pool.place();
        let queue = device.start_queue(place.handle(), self.twin()?, fault)?;
        self.served = Some(Served { queue, _place: place });
        Ok(())
    }

    /// The same start with descriptors of its own.
    fn twin(&self) -> io::Result<QueueStart> {
        let twin = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
        let QueueStart { index, ring, table, kick, call, err, features, inflight } = &self.start;
        Ok(QueueStart {
            index: *index,
            ring: *ring,
            table: Arc::clone(table),
            kick: twin(kick)?,
            call: twin(call)?,
            err: twin(err)?,
            features: *features,
            inflight: inflight.clone(),
        })
    }

    /// Waits for the requests in flight, and remembers where to go on.
    fn drain(&mut self) {
        let Some(served) = self.served.take() else { return };
        match served.queue.stop() {
            Ok(next_avail) => self.start.ring.next_avail = next_avail,
            Err(error) => {
                tracing::error!(queue = self.start.index, "position of the ring lost: {error}");
            }
        }
    }

    fn report_broken(&self) {
        if let Some(err) = &self.start.err {
            // Non-blocking; a front-end that does not listen is not helped by more.
            let _ = rustix::io::write(err, &1u64.to_ne_bytes());
        }
    }
}
