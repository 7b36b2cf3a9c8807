//! Rings of a session: handles the requests that change, start and stop them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Answer, State, device, ring_size};
use crate::backend::StopCause;
use crate::error::Refusal;
use crate::features::PROTOCOL_FEATURES;
use crate::message::{RingAddr, vring_state_reply};
use crate::ring::{Kick, Ring};

impl State<'_> {
    pub(super) fn set_num(&mut self, index: u32, num: u32) -> Result<(), Refusal> {
        let index = self.stopped(index, "size")?;
        self.ring(index)?.size = Some(ring_size(num)?);
        self.start_if_ready(index)
    }

    pub(super) fn set_addr(&mut self, index: u32, addr: RingAddr) -> Result<(), Refusal> {
        let at = self.checked(index)?;
        if self.ring(at)?.addr == Some(addr) {
            return self.start_if_ready(at);
        }
        self.change(index, |ring| ring.addr = Some(addr))
    }

    pub(super) fn set_call(&mut self, index: u32, fd: Option<Arc<OwnedFd>>) -> Result<(), Refusal> {
        let index = self.checked(index)?;
        if self.ring(index)?.running.is_some() {
            // Below queue_count, which is a u16.
            let taken = self.backend.set_call(index as u16, fd.clone());
            taken.map_err(device("accept this call descriptor"))?;
        }
        self.ring(index)?.call = fd;
        Ok(())
    }

    pub(super) fn set_enable(&mut self, index: u32, enable: bool) -> Result<(), Refusal> {
        let index = self.checked(index)?;
        self.ring(index)?.enabled = Some(enable);
        if enable {
            self.start_if_ready(index)
        } else {
            self.stop(index, StopCause::Requested);
            Ok(())
        }
    }

    pub(super) fn get_base(&mut self, index: u32) -> Result<Answer, Refusal> {
        let at = self.checked(index)?;
        self.stop(at, StopCause::Requested);
        let ring = self.ring(at)?;
        // The ring stays stopped until the next kick descriptor arrives.
        ring.kick = Kick::Unset;
        let base = ring.next_avail.unwrap_or(0);
        Ok(Answer::Payload(vring_state_reply(index, base.into())))
    }

    /// Applies a change that a running ring must not see: stops the ring and starts it again.
    pub(super) fn change(
        &mut self,
        index: u32,
        change: impl FnOnce(&mut Ring),
    ) -> Result<(), Refusal> {
        let index = self.checked(index)?;
        self.stop(index, StopCause::Change);
        change(self.ring(index)?);
        self.start_if_ready(index)
    }

    pub(super) fn checked(&self, index: u32) -> Result<usize, Refusal> {
        let count = self.rings.len();
        let at = usize::try_from(index).ok().filter(|at| *at < count);
        at.ok_or(Refusal::NoSuchQueue { index, count })
    }

    /// Refuses a change to a running ring.
    pub(super) fn stopped(&self, index: u32, what: &'static str) -> Result<usize, Refusal> {
        let at = self.checked(index)?;
        match self.rings.get(at) {
            Some(ring) if ring.running.is_some() => Err(Refusal::Running { index: at, what }),
            _ => Ok(at),
        }
    }

    pub(super) fn ring(&mut self, index: usize) -> Result<&mut Ring, Refusal> {
        let count = self.rings.len();
        let refusal = Refusal::NoSuchQueue { index: index as u32, count };
        self.rings.get_mut(index).ok_or(refusal)
    }

    pub(super) fn start_if_ready(&mut self, index: usize) -> Result<(), Refusal> {
        let Some(acked) = self.acked else { return Ok(()) };
        let (table, features) = (Arc::clone(&self.table), self.virtio_features());
        if !self.ring(index)?.ready(acked & PROTOCOL_FEATURES == 0) {
            return Ok(());
        }
        // Below queue_count, which is a u16.
        let inflight = self.record.queue(index as u16)?;
        let ring = self.ring(index)?;
        let Some(config) = ring.resolve(index, &table, features)? else { return Ok(()) };
        let start = ring.start(index as u16, config, &table, features, inflight);
        self.backend.start_queue(start).map_err(device("start the queue"))?;
        self.ring(index)?.running = Some(config);
        tracing::debug!(queue = index, size = config.size, next = config.next_avail, "started");
        Ok(())
    }

    /// Starts all rings that can run now, and logs those that fail to start.
    pub(super) fn start_all(&mut self) {
        (0..self.rings.len()).for_each(|index| self.start_or_report(index));
    }

    pub(super) fn start_or_report(&mut self, index: usize) {
        if let Err(refusal) = self.start_if_ready(index) {
            self.log.report(&refusal, format_args!("start of queue {index}"));
        }
    }

    pub(super) fn stop(&mut self, index: usize, cause: StopCause) {
        if let Some(ring) = self.rings.get_mut(index)
            && ring.running.take().is_some()
        {
            let next = self.backend.stop_queue(index as u16, cause);
            ring.next_avail = Some(next);
            tracing::debug!(queue = index, next, "stopped");
        }
    }

    pub(super) fn stop_all(&mut self) {
        (0..self.rings.len()).for_each(|index| self.stop(index, StopCause::Change));
    }
}
