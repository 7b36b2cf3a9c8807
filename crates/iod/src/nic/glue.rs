//! A NIC as sessions see it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::Table;
use net::features::{Features, feature};
use nic::{Fault, Life, RunningQueue};
use vhost_user::features::CONFIGURE_MEM_SLOTS;
use vhost_user::{Backend, BackendChannel, BackendError, SessionHandle, StopCause};
use virtq::QueueStart;

use super::Nic;
use crate::pool::Place;

/// One session's hold on a NIC.
pub(super) struct Glue<'a> {
    nic: &'a Nic,
    session: SessionHandle,
    /// Since the driver has accepted features.
    life: Option<Life>,
    queues: Vec<RunningQueue>,
    /// By pair: where its queues are served, while one of them is.
    places: Vec<Option<Place>>,
    /// Front-ends take its end for the end of the device.
    channel: Option<BackendChannel>,
}

impl<'a> Glue<'a> {
    pub(super) fn new(nic: &'a Nic, session: SessionHandle) -> Self {
        let places = (0..nic.offer.pairs).map(|_| None).collect();
        Self { nic, session, life: None, queues: Vec::new(), places, channel: None }
    }

    fn running(&self, index: u16) -> Option<usize> {
        self.queues.iter().position(|queue| queue.index() == index)
    }
}

impl Backend for Glue<'_> {
    fn queue_count(&self) -> u16 {
        self.nic.offer.pairs * 2
    }

    fn features(&self) -> u64 {
        self.nic.offer.bits()
    }

    /// QEMU before 8.0 adds each region once for each pair, which contradicts itself. Tables of 8
    /// regions, as others have too, are left.
    fn withheld(&self) -> u64 {
        CONFIGURE_MEM_SLOTS
    }

    fn ack_features(&mut self, features: u64) -> Result<(), BackendError> {
        let features: Features = self.nic.offer.accept(features)?;
        if !features.has(feature::VERSION_1) {
            return Err("legacy drivers are not served: use a modern virtio-net device".into());
        }
        self.life = Some(Life::driver(self.nic.spec.port, features));
        Ok(())
    }

    fn read_config(&self, offset: u32, out: &mut [u8]) {
        let space = self.nic.config.bytes();
        let from = space.get(offset as usize..).unwrap_or_default();
        out.iter_mut().zip(from).for_each(|(place, byte)| *place = *byte);
    }

    fn write_config(&mut self, _: u32, _: &[u8]) -> Result<(), BackendError> {
        Err("the configuration of this NIC is read-only".into())
    }

    fn start_queue(&mut self, start: QueueStart) -> Result<(), BackendError> {
        let life = self.life.ok_or("no features were accepted")?;
        let pair = self.places.get_mut(usize::from(start.index / 2)).ok_or("no such queue")?;
        let place = pair.get_or_insert_with(|| self.nic.lan.pool.place());
        let session = self.session.clone();
        let fault: Fault = Arc::new(move |why: &str| {
            tracing::error!("front-end sent away: {why}");
            session.close();
        });
        let fabric = &self.nic.lan.fabric;
        self.queues.push(RunningQueue::start(fabric, place.handle(), life, start, fault)?);
        Ok(())
    }

    fn stop_queue(&mut self, index: u16, _: StopCause) -> u16 {
        let Some(at) = self.running(index) else { return 0 };
        let next = self.queues.swap_remove(at).stop().unwrap_or_else(|error| {
            tracing::error!(queue = index, "position of the ring lost: {error}");
            0
        });
        // `index ^ 1` is the other queue of the pair.
        if self.running(index ^ 1).is_none()
            && let Some(place) = self.places.get_mut(usize::from(index / 2))
        {
            *place = None;
        }
        next
    }

    fn set_memory(&mut self, table: &Arc<Table>) -> Result<(), BackendError> {
        for queue in &self.queues {
            queue.set_memory(Arc::clone(table))?;
        }
        Ok(())
    }

    fn set_call(&mut self, index: u16, call: Option<Arc<OwnedFd>>) -> Result<(), BackendError> {
        match self.running(index).and_then(|at| self.queues.get(at)) {
            Some(queue) => Ok(queue.set_call(call)?),
            None => Ok(()),
        }
    }

    fn set_channel(&mut self, channel: BackendChannel) {
        self.channel = Some(channel);
    }

    fn reset(&mut self) {
        self.life = None;
    }

    fn disconnected(&mut self) {
        (self.life, self.channel) = (None, None);
    }
}
