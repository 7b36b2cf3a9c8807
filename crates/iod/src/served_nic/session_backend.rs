//! The `vhost_user::Backend` of a NIC.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::{MemoryShare, Table};
use net::config::Config;
use net::control::{ControlFeatures, ControlSettings};
use net::features::{AcceptedFeatures, QueueLayout, QueueRole, are_lost, feature};
use nic::{ControlQueueState, FaultHandler, PortIncarnation, RunningQueue};
use reactor::Handle;
use vhost_user::features::CONFIGURE_MEM_SLOTS;
use vhost_user::{Backend, BackendChannel, BackendError, SessionHandle, StopCause};
use virtq::QueueStart;

use super::ServedNic;
use super::start_barrier::BarrierTicket;
use crate::pool::ReactorLease;

/// State from one feature negotiation to the next.
struct NegotiatedState {
    port_incarnation: PortIncarnation,
    features: AcceptedFeatures,
    queue_layout: QueueLayout,
    /// Set from the first start of the control queue. A front-end may negotiate one and serve its
    /// ring itself. Then only the rings that it starts count.
    control_queue_state: Option<Arc<ControlQueueState>>,
}

impl NegotiatedState {
    fn terms(&self) -> ControlFeatures {
        ControlFeatures { features: self.features, pairs: self.queue_layout.pairs() }
    }
}

/// Backend of one session of a NIC.
pub(super) struct NicSessionBackend<'a> {
    nic: &'a ServedNic,
    session: SessionHandle,
    negotiated_state: Option<NegotiatedState>,
    queues: Vec<RunningQueue>,
    /// Lease of each pair, while one of its queues is served.
    places: Vec<Option<ReactorLease>>,
    /// Channel to the front-end. Front-ends treat its end as the end of the device.
    channel: Option<BackendChannel>,
    /// Settings of a continued session's driver, until they are applied here.
    control_settings: Option<ControlSettings>,
    /// Ticket of a continued session, used when it has a receive ring.
    barrier_ticket: Option<BarrierTicket>,
    /// True once the log has told that the front-end lost the driver's features.
    told_loss: bool,
}

impl<'a> NicSessionBackend<'a> {
    pub(super) fn new(nic: &'a ServedNic, session: SessionHandle) -> Self {
        let places = (0..nic.offered_features.pairs).map(|_| None).collect();
        let (queues, channel) = (Vec::new(), None);
        Self {
            nic,
            session,
            negotiated_state: None,
            queues,
            places,
            channel,
            control_settings: None,
            barrier_ticket: None,
            told_loss: false,
        }
    }

    /// Prepares the backend for a continued session.
    pub(super) fn resuming(
        self,
        control_settings: Option<ControlSettings>,
        barrier_ticket: Option<BarrierTicket>,
    ) -> Self {
        Self { control_settings, barrier_ticket, ..self }
    }

    /// Freezes the session. Returns its queues, which are still served, and its driver's settings.
    pub(super) fn freeze(self) -> (Vec<RunningQueue>, Option<ControlSettings>) {
        let control_queue_state =
            self.negotiated_state.and_then(|negotiated_state| negotiated_state.control_queue_state);
        (
            self.queues,
            control_queue_state.map(|control_queue_state| control_queue_state.all_asked()),
        )
    }

    /// Drops the state of a driver that is gone or replaced. All queues are stopped.
    fn forget_driver(&mut self) {
        let control_queue_state = self
            .negotiated_state
            .take()
            .and_then(|negotiated_state| negotiated_state.control_queue_state);
        if let Some(Err(error)) =
            control_queue_state.map(|control_queue_state| control_queue_state.close())
        {
            tracing::error!("settings of the former driver not reset: {error}");
        }
    }

    /// Returns the control queue's state, which has no settings at the first start of the queue.
    fn desk(&mut self) -> Result<Arc<ControlQueueState>, BackendError> {
        let negotiated_state = self.negotiated_state.as_mut().ok_or("no features were accepted")?;
        if let Some(control_queue_state) = &negotiated_state.control_queue_state {
            return Ok(Arc::clone(control_queue_state));
        }
        let control_queue_state = ControlQueueState::open(
            &self.nic.switch_network.fabric,
            negotiated_state.port_incarnation.port(),
            negotiated_state.terms(),
            self.nic.config.mac,
        )?;
        negotiated_state.control_queue_state = Some(Arc::clone(&control_queue_state));
        Ok(control_queue_state)
    }

    /// Applies the settings that the driver had when its session was frozen.
    fn resume_desk(&mut self) -> Result<(), BackendError> {
        let (Some(control_settings), Some(negotiated_state)) =
            (self.control_settings.take(), self.negotiated_state.as_mut())
        else {
            return Ok(());
        };
        let (fabric, port) =
            (&self.nic.switch_network.fabric, negotiated_state.port_incarnation.port());
        negotiated_state.control_queue_state = Some(ControlQueueState::resume(
            fabric,
            port,
            negotiated_state.terms(),
            control_settings,
        )?);
        Ok(())
    }

    /// Returns a reactor for the control queue. It needs no lease, because rare commands are no
    /// load.
    fn control_reactor(&self) -> Handle {
        let reactor_lease = self.places.iter().flatten().next();
        reactor_lease.map_or_else(
            || self.nic.switch_network.pool.place_in_networks().handle().clone(),
            |at| at.handle().clone(),
        )
    }

    /// Returns the reactor of a pair. Both its queues are on the same one.
    fn reactor(&mut self, pair: u16) -> Option<Handle> {
        let reactor_lease = self.places.get_mut(usize::from(pair))?;
        Some(
            reactor_lease
                .get_or_insert_with(|| self.nic.switch_network.pool.place_in_networks())
                .handle()
                .clone(),
        )
    }

    /// Records that rings are not broken any more. The session does not stop a ring that was broken
    /// before an upgrade, or did not start, so the end of the driver clears all.
    fn clear_broken_rings(&self, index: Option<u16>) {
        self.nic.switch_network.fabric.clear_broken_rings(self.nic.spec.port, index);
    }

    fn running(&self, index: u16) -> Option<usize> {
        self.queues.iter().position(|queue| queue.index() == index)
    }
}

impl Backend for NicSessionBackend<'_> {
    fn queue_count(&self) -> u16 {
        self.nic.offered_features.queues()
    }

    fn features(&self) -> u64 {
        self.nic.offered_features.bits()
    }

    fn memory_share(&self) -> Option<&MemoryShare> {
        Some(&self.nic.memory_share)
    }

    /// Withholds the memory-slot feature. QEMU before 8.0 adds each region once for each pair,
    /// which contradicts itself. Without the feature, front-ends send memory tables of up to 8
    /// regions.
    fn withheld_features(&self) -> u64 {
        CONFIGURE_MEM_SLOTS
    }

    fn ack_features(&mut self, features: u64) -> Result<(), BackendError> {
        self.forget_driver();
        if are_lost(features) && !std::mem::replace(&mut self.told_loss, true) {
            tracing::warn!(
                nic = %self.nic.spec.socket.display(),
                "the front-end does not know which features its driver accepted: QEMU 7.2 loses \
                 them if the guest starts its driver while QEMU is not connected; the guest \
                 is served without receive offloads until it starts its driver again"
            );
        }
        let features: AcceptedFeatures = self.nic.offered_features.accept(features)?;
        if !features.has(feature::VERSION_1) {
            return Err("legacy drivers are not served: use a modern virtio-net device".into());
        }
        let port_incarnation = PortIncarnation::driver(self.nic.spec.port, features);
        let queue_layout = self.nic.offered_features.roles(features);
        self.negotiated_state = Some(NegotiatedState {
            port_incarnation,
            features,
            queue_layout,
            control_queue_state: None,
        });
        self.resume_desk()
    }

    fn read_config(&self, offset: u32, out: &mut [u8]) {
        let control_queue_state = self
            .negotiated_state
            .as_ref()
            .and_then(|negotiated_state| negotiated_state.control_queue_state.as_ref());
        let mac = control_queue_state
            .map_or(self.nic.config.mac, |control_queue_state| control_queue_state.address());
        let space = Config { mac, ..self.nic.config }.bytes();
        let from = space.get(offset as usize..).unwrap_or_default();
        out.iter_mut().zip(from).for_each(|(place, byte)| *place = *byte);
    }

    fn write_config(&mut self, _: u32, _: &[u8]) -> Result<(), BackendError> {
        Err("the configuration of this NIC is read-only".into())
    }

    fn start_queue(&mut self, start: QueueStart) -> Result<(), BackendError> {
        let negotiated_state = self.negotiated_state.as_ref().ok_or("no features were accepted")?;
        let role = negotiated_state.queue_layout.of(start.index).ok_or("no such queue")?;
        // Rings start in order: the first ring of the session receives, and has been started.
        if start.index > 0
            && let Some(barrier_ticket) = self.barrier_ticket.take()
        {
            barrier_ticket.join();
        }
        let (session, nic) = (self.session.clone(), self.nic.spec.socket.clone());
        let fault: FaultHandler = Arc::new(move |why: &str| {
            let nic = nic.display();
            tracing::error!(%nic, "front-end disconnected: {why}");
            session.close();
        });
        let queue = match role {
            QueueRole::Pair(pair) => {
                let port_incarnation = negotiated_state.port_incarnation;
                let reactor = self.reactor(pair).ok_or("no such queue")?;
                RunningQueue::start(
                    &self.nic.switch_network.fabric,
                    &reactor,
                    port_incarnation,
                    start,
                    fault,
                )?
            }
            QueueRole::Control => {
                let control_queue_state = self.desk()?;
                RunningQueue::start_control(
                    &control_queue_state,
                    &self.control_reactor(),
                    start,
                    fault,
                )?
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
        self.clear_broken_rings(Some(index));
        let role = self
            .negotiated_state
            .as_ref()
            .and_then(|negotiated_state| negotiated_state.queue_layout.of(index));
        // `index ^ 1` is the other queue of the pair.
        if let Some(QueueRole::Pair(pair)) = role
            && self.running(index ^ 1).is_none()
            && let Some(reactor_lease) = self.places.get_mut(usize::from(pair))
        {
            *reactor_lease = None;
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
        self.clear_broken_rings(None);
        self.forget_driver();
    }

    fn disconnected(&mut self) {
        self.clear_broken_rings(None);
        self.forget_driver();
        self.channel = None;
    }
}
