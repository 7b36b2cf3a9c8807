//! A NIC as sessions see it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::Table;
use net::config::Config;
use net::control::{ControlFeatures, ControlSettings};
use net::features::{AcceptedFeatures, QueueLayout, QueueRole, feature};
use nic::{ControlQueueState, FaultHandler, PortIncarnation, RunningQueue};
use reactor::Handle;
use vhost_user::features::CONFIGURE_MEM_SLOTS;
use vhost_user::{Backend, BackendChannel, BackendError, SessionHandle, StopCause};
use virtq::QueueStart;

use super::ServedNic;
use super::start_barrier::BarrierTicket;
use crate::pool::ReactorLease;

/// What holds since the driver has accepted features, until it does so again.
struct NegotiatedState {
    life: PortIncarnation,
    features: AcceptedFeatures,
    roles: QueueLayout,
    /// From the first start of the control queue on. A front-end that has negotiated one and does
    /// not hand us its ring answers it itself: which rings it starts is all that counts then.
    desk: Option<Arc<ControlQueueState>>,
}

impl NegotiatedState {
    fn terms(&self) -> ControlFeatures {
        ControlFeatures { features: self.features, pairs: self.roles.pairs() }
    }
}

/// One session's hold on a NIC.
pub(super) struct NicSessionBackend<'a> {
    nic: &'a ServedNic,
    session: SessionHandle,
    driver: Option<NegotiatedState>,
    queues: Vec<RunningQueue>,
    /// By pair: where its queues are served, while one of them is.
    places: Vec<Option<ReactorLease>>,
    /// Front-ends take its end for the end of the device.
    channel: Option<BackendChannel>,
    /// What the driver of a session that goes on had asked for, until it is known here.
    asked: Option<ControlSettings>,
    /// The session goes on, and is there when it has a ring to receive by.
    arrival: Option<BarrierTicket>,
}

impl<'a> NicSessionBackend<'a> {
    pub(super) fn new(nic: &'a ServedNic, session: SessionHandle) -> Self {
        let places = (0..nic.offer.pairs).map(|_| None).collect();
        let (queues, channel) = (Vec::new(), None);
        Self { nic, session, driver: None, queues, places, channel, asked: None, arrival: None }
    }

    /// For a session that goes on.
    pub(super) fn resuming(
        self,
        asked: Option<ControlSettings>,
        arrival: Option<BarrierTicket>,
    ) -> Self {
        Self { asked, arrival, ..self }
    }

    /// The session stands still: its queues, which are served on, and what its driver has asked for.
    pub(super) fn freeze(self) -> (Vec<RunningQueue>, Option<ControlSettings>) {
        let desk = self.driver.and_then(|driver| driver.desk);
        (self.queues, desk.map(|desk| desk.all_asked()))
    }

    /// The driver is gone, or is another one. All queues are stopped.
    fn forget_driver(&mut self) {
        let desk = self.driver.take().and_then(|driver| driver.desk);
        if let Some(Err(error)) = desk.map(|desk| desk.close()) {
            tracing::error!("what the driver asked for is left: {error}");
        }
    }

    /// What the driver asks for: nothing yet, at the first start of the control queue.
    fn desk(&mut self) -> Result<Arc<ControlQueueState>, BackendError> {
        let driver = self.driver.as_mut().ok_or("no features were accepted")?;
        if let Some(desk) = &driver.desk {
            return Ok(Arc::clone(desk));
        }
        let desk = ControlQueueState::open(
            &self.nic.lan.fabric,
            driver.life.port(),
            driver.terms(),
            self.nic.config.mac,
        )?;
        driver.desk = Some(Arc::clone(&desk));
        Ok(desk)
    }

    /// What a driver had asked for when its session stood still is asked for again.
    fn resume_desk(&mut self) -> Result<(), BackendError> {
        let (Some(asked), Some(driver)) = (self.asked.take(), self.driver.as_mut()) else {
            return Ok(());
        };
        let (fabric, port) = (&self.nic.lan.fabric, driver.life.port());
        driver.desk = Some(ControlQueueState::resume(fabric, port, driver.terms(), asked)?);
        Ok(())
    }

    /// A command now and then is no load: it takes no place of its own.
    fn control_reactor(&self) -> Handle {
        let place = self.places.iter().flatten().next();
        place.map_or_else(
            || self.nic.lan.pool.place_in_networks().handle().clone(),
            |at| at.handle().clone(),
        )
    }

    /// A reactor for a pair. All of a pair is on the same one.
    fn reactor(&mut self, pair: u16) -> Option<Handle> {
        let place = self.places.get_mut(usize::from(pair))?;
        Some(place.get_or_insert_with(|| self.nic.lan.pool.place_in_networks()).handle().clone())
    }

    fn running(&self, index: u16) -> Option<usize> {
        self.queues.iter().position(|queue| queue.index() == index)
    }
}

impl Backend for NicSessionBackend<'_> {
    fn queue_count(&self) -> u16 {
        self.nic.offer.queues()
    }

    fn features(&self) -> u64 {
        self.nic.offer.bits()
    }

    /// QEMU before 8.0 adds each region once for each pair, which contradicts itself. Tables of 8
    /// regions, as others have too, are left.
    fn withheld_features(&self) -> u64 {
        CONFIGURE_MEM_SLOTS
    }

    fn ack_features(&mut self, features: u64) -> Result<(), BackendError> {
        self.forget_driver();
        let features: AcceptedFeatures = self.nic.offer.accept(features)?;
        if !features.has(feature::VERSION_1) {
            return Err("legacy drivers are not served: use a modern virtio-net device".into());
        }
        let life = PortIncarnation::driver(self.nic.spec.port, features);
        let roles = self.nic.offer.roles(features);
        self.driver = Some(NegotiatedState { life, features, roles, desk: None });
        self.resume_desk()
    }

    fn read_config(&self, offset: u32, out: &mut [u8]) {
        let desk = self.driver.as_ref().and_then(|driver| driver.desk.as_ref());
        let mac = desk.map_or(self.nic.config.mac, |desk| desk.address());
        let space = Config { mac, ..self.nic.config }.bytes();
        let from = space.get(offset as usize..).unwrap_or_default();
        out.iter_mut().zip(from).for_each(|(place, byte)| *place = *byte);
    }

    fn write_config(&mut self, _: u32, _: &[u8]) -> Result<(), BackendError> {
        Err("the configuration of this NIC is read-only".into())
    }

    fn start_queue(&mut self, start: QueueStart) -> Result<(), BackendError> {
        let driver = self.driver.as_ref().ok_or("no features were accepted")?;
        let role = driver.roles.of(start.index).ok_or("no such queue")?;
        // Rings start in their order: the first of the session receives, and has been started.
        if start.index > 0
            && let Some(arrival) = self.arrival.take()
        {
            arrival.join();
        }
        let session = self.session.clone();
        let fault: FaultHandler = Arc::new(move |why: &str| {
            tracing::error!("front-end sent away: {why}");
            session.close();
        });
        let queue = match role {
            QueueRole::Pair(pair) => {
                let life = driver.life;
                let reactor = self.reactor(pair).ok_or("no such queue")?;
                RunningQueue::start(&self.nic.lan.fabric, &reactor, life, start, fault)?
            }
            QueueRole::Control => {
                let desk = self.desk()?;
                RunningQueue::start_control(&desk, &self.control_reactor(), start, fault)?
            }
        };
        self.queues.push(queue);
        Ok(())
    }

    fn stop_queue(&mut self, index: u16, _: StopCause) -> u16 {
        let Some(at) = self.running(index) else { return 0 };
        let next = self.queues.swap_remove(at).stop().unwrap_or_else(|error| {
            tracing::error!(queue = index, "position of the ring lost: {error}");
            0
        });
        let role = self.driver.as_ref().and_then(|driver| driver.roles.of(index));
        // `index ^ 1` is the other queue of the pair.
        if let Some(QueueRole::Pair(pair)) = role
            && self.running(index ^ 1).is_none()
            && let Some(place) = self.places.get_mut(usize::from(pair))
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
        self.forget_driver();
    }

    fn disconnected(&mut self) {
        self.forget_driver();
        self.channel = None;
    }
}
