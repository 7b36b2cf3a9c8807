//! One started ring: its parameters, and its queue on a reactor.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blk::{
    BlkDevice, DrainOutcome, DrainingQueue, FaultHandler, QueueError, QuiesceOutcome, RunningQueue,
    TrialStart,
};
use vhost_user::SessionHandle;
use virtq::{Inflight, InflightRegion, QueueStart};

use super::AbandonedQueues;
use crate::pool::ReactorLease;
use crate::trials::Trials;

/// Longest wait of a move for I/O in flight. The ring is not served meanwhile. If storage takes
/// longer, the ring does not keep its reactor busy anyway.
const MOVE_WITHIN: Duration = Duration::from_millis(50);

/// Started ring.
#[derive(Debug)]
pub(super) struct StartedRing {
    /// Parameters to serve it from here on.
    pub(super) start: QueueStart,
    /// Session of its front-end.
    session: SessionHandle,
    pub(super) running_ring: Option<RunningRing>,
    /// True if the ring was abandoned and has not been served since.
    pub(super) owed: bool,
    /// True if its driver has broken it. It is not served until its front-end restarts it.
    pub(super) broken: bool,
}

/// Ring on its reactor.
#[derive(Debug)]
pub(super) struct RunningRing {
    pub(super) queue: RunningQueue,
    reactor_lease: ReactorLease,
}

impl StartedRing {
    pub(super) fn new(start: QueueStart, session: SessionHandle) -> Self {
        Self { start, session, running_ring: None, owed: false, broken: false }
    }

    /// Serves the ring in the lease of `place`, unless it is served or broken. With `trials`,
    /// requests that a process has left wait for their turn.
    pub(super) fn serve(
        &mut self,
        device: &BlkDevice,
        trials: Option<&Trials>,
        place: impl FnOnce() -> ReactorLease,
    ) -> Result<(), QueueError> {
        if self.running_ring.is_some() || self.broken {
            return Ok(());
        }
        let (trial, end) = trials.map(Trials::new_trial).unzip();
        self.serve_in(device, self.start.clone(), place(), trial)?;
        if let (Some(trials), Some(end), Some(ring)) = (trials, end, &self.running_ring) {
            trials.enqueue(ring.queue.trial_handle(), end);
        }
        Ok(())
    }

    fn serve_in(
        &mut self,
        device: &BlkDevice,
        start: QueueStart,
        reactor_lease: ReactorLease,
        trial: Option<TrialStart>,
    ) -> Result<(), QueueError> {
        let (session, disk) = (self.session.clone(), device.id().to_owned());
        let fault: FaultHandler = Arc::new(move |why: &str| {
            tracing::error!(disk, "front-end disconnected: {why}");
            session.close();
        });
        let queue = device.start_queue(reactor_lease.handle(), start, fault, trial)?;
        self.running_ring = Some(RunningRing { queue, reactor_lease });
        self.owed = false;
        Ok(())
    }

    /// Returns whether the ring is served in the lease of this number.
    pub(super) fn is_in(&self, place: u64) -> bool {
        self.running_ring
            .as_ref()
            .is_some_and(|running_ring| running_ring.reactor_lease.id() == place)
    }

    /// Drains the ring and serves it from the same position in another lease. Returns false if the
    /// drain takes too long; the ring is served as before then. Also returns false if its driver
    /// has broken it; then it is not served.
    pub(super) fn relocate(
        &mut self,
        device: &BlkDevice,
        to: ReactorLease,
    ) -> Result<bool, QueueError> {
        let Some((draining_queue, reactor_lease)) = self.begin_quiesce() else { return Ok(false) };
        let ended = draining_queue.wait_or_resume(Instant::now() + MOVE_WITHIN);
        let next_avail = match ended {
            Ok(QuiesceOutcome::Drained(next_avail)) => next_avail,
            Ok(QuiesceOutcome::Resumed(queue)) => {
                self.running_ring = Some(RunningRing { queue, reactor_lease });
                return Ok(false);
            }
            Ok(QuiesceOutcome::Broken(next_avail)) => {
                self.rests_broken(next_avail);
                return Ok(false);
            }
            Err(error) => {
                self.position_lost(&error);
                return Ok(false);
            }
        };
        self.start.ring.next_avail = next_avail;
        match self.serve_in(device, self.start.clone(), to, None) {
            Ok(()) => Ok(true),
            Err(error) => {
                let cause = crate::error::error_chain(&error);
                tracing::warn!(queue = self.start.index, "stays on its reactor: {cause}");
                self.serve_in(device, self.start.clone(), reactor_lease, None).map(|()| false)
            }
        }
    }

    /// Stops the intake of requests, if the ring is served.
    pub(super) fn begin_drain(&mut self) -> Option<(DrainingQueue, ReactorLease)> {
        let RunningRing { queue, reactor_lease } = self.running_ring.take()?;
        match queue.begin_stop() {
            Ok(draining_queue) => Some((draining_queue, reactor_lease)),
            Err(error) => {
                self.position_lost(&error);
                None
            }
        }
    }

    /// Stops the intake of requests for a while, if the ring is served.
    pub(super) fn begin_quiesce(&mut self) -> Option<(DrainingQueue, ReactorLease)> {
        let RunningRing { queue, reactor_lease } = self.running_ring.take()?;
        match queue.begin_quiesce() {
            Ok(draining_queue) => Some((draining_queue, reactor_lease)),
            Err(error) => {
                self.position_lost(&error);
                None
            }
        }
    }

    /// Stops the intake of requests for another process, if the ring is served. A ring without an
    /// in-flight region records requests that wait for space in `spare`.
    pub(super) fn begin_handover(
        &mut self,
        spare: Option<&InflightRegion>,
    ) -> Option<(DrainingQueue, ReactorLease)> {
        let RunningRing { queue, reactor_lease } = self.running_ring.take()?;
        if self.start.inflight.is_none() {
            self.start.inflight = spare.and_then(|region| region.queue(self.start.index));
        }
        match queue.begin_handover(self.start.inflight.clone()) {
            Ok(draining_queue) => Some((draining_queue, reactor_lease)),
            Err(error) => {
                self.position_lost(&error);
                None
            }
        }
    }

    /// Waits for requests in flight. Returns false if that takes too long; the ring is served again
    /// then.
    pub(super) fn finish_quiesce(
        &mut self,
        (draining_queue, reactor_lease): (DrainingQueue, ReactorLease),
        deadline: Instant,
    ) -> bool {
        match draining_queue.wait_or_resume(deadline) {
            Ok(QuiesceOutcome::Drained(next_avail)) => {
                self.start.ring.next_avail = next_avail;
                true
            }
            Ok(QuiesceOutcome::Broken(next_avail)) => {
                self.rests_broken(next_avail);
                true
            }
            Ok(QuiesceOutcome::Resumed(queue)) => {
                self.running_ring = Some(RunningRing { queue, reactor_lease });
                false
            }
            Err(error) => {
                self.position_lost(&error);
                true
            }
        }
    }

    /// Waits for requests in flight and stores the position where the ring continues, or abandons
    /// the ring.
    pub(super) fn end_drain(
        &mut self,
        (draining_queue, reactor_lease): (DrainingQueue, ReactorLease),
        deadline: Instant,
        left: &mut AbandonedQueues,
    ) {
        match draining_queue.wait_until(deadline) {
            Ok(DrainOutcome::Drained(next_avail)) => self.start.ring.next_avail = next_avail,
            Ok(DrainOutcome::Broken(next_avail)) => self.rests_broken(next_avail),
            Ok(DrainOutcome::Stuck(abandoned_queue)) => {
                self.start.ring.next_avail = abandoned_queue.next_avail();
                self.broken = abandoned_queue.is_broken();
                self.owed = true;
                left.take(abandoned_queue, reactor_lease, self.is_recorded());
            }
            Err(error) => self.position_lost(&error),
        }
    }

    fn rests_broken(&mut self, next_avail: u16) {
        self.start.ring.next_avail = next_avail;
        self.broken = true;
    }

    /// Returns whether its front-end has an in-flight region.
    pub(super) fn is_recorded(&self) -> bool {
        self.start.inflight.as_ref().is_some_and(Inflight::is_shared)
    }

    fn position_lost(&self, error: &impl std::fmt::Display) {
        tracing::error!(queue = self.start.index, "position of the ring lost: {error}");
    }

    /// Logs the error, and reports it to the front-end.
    pub(super) fn not_served(
        &self,
        error: &QueueError,
        report_thread: &mut Option<JoinHandle<()>>,
    ) {
        let cause = crate::error::error_chain(error);
        tracing::error!(queue = self.start.index, "not served: {cause}");
        self.report_broken(report_thread);
    }

    /// Reports an unserved ring to the front-end. The descriptor belongs to the front-end too,
    /// which may make a writer wait. So `report_thread`, a separate thread, writes. There is at most
    /// one.
    fn report_broken(&self, report_thread: &mut Option<JoinHandle<()>>) {
        if report_thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let Some(err) = self.start.err.clone() else { return };
        // A front-end that does not read has no use for further reports.
        let report = move || {
            let _ = rustix::io::write(&err, &1u64.to_ne_bytes());
        };
        *report_thread = std::thread::Builder::new().name("tell".into()).spawn(report).ok();
    }
}
