//! The path of a request: pop, parse, submit, complete.

use std::sync::atomic::Ordering;

use disk::{Completion, IoError, Request, SubmitOutcome};
use memory::{Buffers, Byte};
use reactor::Context;
use virtq::{Chain, Queue};

use super::BlkQueue;
use super::stop::Stalled;
use crate::latency::{Class, InFlight};
use crate::parse::{Parsed, status_of};
use crate::spec::{ID_BYTES, S_OK};

/// Maximum number of requests popped in one turn, so that other queues of the reactor run too.
const BATCH: usize = 64;
/// Bytes of data after which a turn ends, because memory disks copy them during submission.
const BATCH_BYTES: u64 = 4 << 20;

/// Parts of a request that its completion needs.
pub(crate) struct FinishedRequest {
    pub(crate) chain: Chain,
    pub(crate) status: Byte,
    pub(crate) class: Class,
    pub(crate) bytes: u64,
}

/// Completes a request to the guest: writes `code` to its status byte and pushes its chain.
#[inline]
pub(crate) fn complete_to_guest(
    queue: &mut Queue,
    finished_request: FinishedRequest,
    code: u8,
    buffers: Buffers,
) {
    let FinishedRequest { mut chain, status, class, bytes } = finished_request;
    status.set(code);
    let written = match (class, code) {
        (Class::Read, S_OK) => bytes as u32 + 1,
        _ => 1,
    };
    // The buffer list returns with the chain, so that the next request needs no allocation.
    match class {
        Class::Read => chain.writable = buffers,
        Class::Write => chain.readable = buffers,
        _ => {}
    }
    queue.push(chain, written);
}

impl From<InFlight> for FinishedRequest {
    fn from(entry: InFlight) -> Self {
        let InFlight { chain, status, class, bytes, .. } = entry;
        Self { chain, status, class, bytes }
    }
}

impl BlkQueue {
    /// Pops and starts a batch of requests. Returns whether there was one.
    pub(super) fn submit_batch(&mut self, context: &mut Context<'_>) -> bool {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.rules.geometry = self.shared.disk.geometry();
        }
        let mut taken = 0;
        if let Some(request) = self.rejected_request.take() {
            self.submit_again(context, request);
            taken += usize::from(self.rejected_request.is_none());
        }
        taken += usize::from(self.release(context));
        self.turn_bytes = 0;
        if self.trial.is_some() {
            return self.try_next(context) || taken > 0;
        }
        let waiting = self.queue.waiting();
        self.steps.begin_turn(waiting);
        if self.steps.former_due(waiting) && self.queue.unpublished() > 0 {
            self.publish_step(context);
        }
        self.latency_recorder.observe_poll(context, &self.stats.recorder, waiting);
        while taken < BATCH
            && self.turn_bytes < BATCH_BYTES
            && self.rejected_request.is_none()
            && self.throttled_request.is_empty()
            && (!self.stopping || self.queue.recovering())
        {
            match self.queue.pop() {
                Ok(Some(chain)) => self.begin(context, chain),
                Ok(None) => break,
                Err(error) => self.broken(context, &error),
            }
            taken += 1;
        }
        taken > 0
    }

    /// Parses one chain and starts it.
    pub(super) fn begin(&mut self, context: &mut Context<'_>, mut chain: Chain) {
        self.latency_recorder.popped(context, &self.stats.recorder);
        match self.rules.parse(&mut chain) {
            Parsed::Io { kind, offset, len, data, status } => {
                let tag = u32::from(chain.head());
                let class = Class::from(kind);
                self.turn_bytes = self.turn_bytes.saturating_add(data.len() as u64);
                let request = Request { kind, offset, len, buffers: data, tag };
                let request = match self.throttled_request.admit(context, &self.shared, request) {
                    Some(request) => request,
                    None => {
                        let mut request_timestamps = self.latency_recorder.pending(class);
                        self.latency_recorder.held(
                            context,
                            &self.stats.recorder,
                            Some(&mut request_timestamps),
                        );
                        let entry = InFlight {
                            chain,
                            status,
                            class,
                            offset,
                            bytes: len,
                            request_timestamps,
                        };
                        return self.in_flight.insert(entry.chain.head(), entry);
                    }
                };
                self.rejected_request = match self.channel.submit(context, request) {
                    // A request that ends during submission never enters the table.
                    SubmitOutcome::Done(Completion { outcome, buffers, .. }) => {
                        self.latency_recorder.inline(class, offset, len, outcome.is_err());
                        let finished_request = FinishedRequest { chain, status, class, bytes: len };
                        self.complete(finished_request, outcome, buffers);
                        if self.steps.request_ended() {
                            self.publish_step(context);
                        }
                        return;
                    }
                    SubmitOutcome::Pending => None,
                    SubmitOutcome::Full(request) => Some(request),
                };
                let request_timestamps = self.latency_recorder.pending(class);
                let entry =
                    InFlight { chain, status, class, offset, bytes: len, request_timestamps };
                self.in_flight.insert(entry.chain.head(), entry);
            }
            Parsed::Id { data, status } => {
                let mut window = data;
                window.truncate(ID_BYTES);
                let written = window.write(&self.shared.serial);
                status.set(S_OK);
                self.stats.request(Class::GetId, written as u64);
                self.queue.push(chain, written as u32 + 1);
            }
            Parsed::Refused { code, status } => {
                status.set(code);
                self.refused(&chain);
                self.queue.push(chain, 1);
            }
            Parsed::NoStatusByte => {
                self.refused(&chain);
                self.queue.push(chain, 0);
            }
        }
    }

    /// Submits the request that the caps hold back if its tokens are available. Returns whether it
    /// did.
    fn release(&mut self, context: &mut Context<'_>) -> bool {
        // Its tokens are taken. A stop submits it early, and later requests pay the debt.
        let Some(request) = self.throttled_request.release(context, &self.shared, self.stopping)
        else {
            return false;
        };
        let stats = (&self.stats.stages, &self.stats.recorder);
        let popped = self.in_flight.get_mut(request.tag);
        let popped = popped.map(|entry| (&mut entry.request_timestamps, entry.class));
        self.latency_recorder.released(context, stats, popped);
        self.submit_again(context, request);
        true
    }

    /// Submits a request that was held back.
    fn submit_again(&mut self, context: &mut Context<'_>, request: Request) {
        match self.channel.submit(context, request) {
            SubmitOutcome::Done(completion) => {
                if let Some(entry) = self.in_flight.take(completion.tag) {
                    let Completion { outcome, buffers, .. } = completion;
                    self.latency_recorder.ended_at_once(&entry, outcome.is_err());
                    self.complete(entry.into(), outcome, buffers);
                }
            }
            SubmitOutcome::Pending => {}
            SubmitOutcome::Full(request) => self.rejected_request = Some(request),
        }
    }

    /// Collects the requests that the disk has finished. Returns whether there was one.
    pub(super) fn reap(&mut self, context: &mut Context<'_>) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.channel.reap(context, &mut done);
        let any = !done.is_empty();
        for Completion { tag, outcome, buffers } in done.drain(..) {
            let Some(entry) = self.in_flight.take(tag) else { continue };
            self.latency_recorder.reaped(context, &self.stats.recorder, &entry, outcome.is_err());
            self.complete(entry.into(), outcome, buffers);
        }
        self.done = done;
        any
    }

    /// Writes the status and returns the chain.
    #[inline]
    fn complete(
        &mut self,
        finished_request: FinishedRequest,
        outcome: Result<(), IoError>,
        buffers: Buffers,
    ) {
        let FinishedRequest { chain, status, class, bytes } = finished_request;
        if self.abandoned {
            // Another request may use its memory by now. The ring has failed, so a push writes
            // nothing.
            return self.queue.push(chain, 0);
        }
        let stays = match self.stalled {
            Stalled::Fail => {
                let has_waited = matches!(outcome, Err(IoError::Full | IoError::Unreachable));
                self.has_inflight_region && has_waited
            }
            Stalled::HandedOver => true,
            Stalled::Wait | Stalled::HandOver(_) => false,
        };
        if stays {
            return self.stalled_chains.push(chain);
        }
        match outcome {
            Ok(()) => self.stats.request(class, bytes),
            Err(error) => self.failed(class, error),
        }
        complete_to_guest(
            &mut self.queue,
            FinishedRequest { chain, status, class, bytes },
            status_of(outcome),
            buffers,
        );
    }

    /// Counts a request that never reached the disk, and logs an address outside memory.
    #[cold]
    fn refused(&mut self, chain: &Chain) {
        self.stats.error();
        let Some(outside) = chain.outside() else { return };
        self.outside_requests += 1;
        // A guest can make any number of them, and each line has a cost.
        if self.outside_requests.is_power_of_two() {
            let (disk, queue) = (&self.shared.id, self.index);
            let failed = self.outside_requests;
            tracing::error!(disk, queue, failed, "a request fails: {outside}");
        }
    }

    #[cold]
    fn failed(&mut self, class: Class, error: IoError) {
        self.stats.error();
        let failed = match error {
            IoError::Storage(_) | IoError::Short | IoError::Full | IoError::Unreachable => {
                self.stats.storage_errors.record(error)
            }
            IoError::Memory => {
                self.outside_requests += 1;
                self.outside_requests
            }
            // The guest asks for what the disk does not offer.
            IoError::ReadOnly | IoError::Range | IoError::Unsupported => {
                let (disk, queue) = (&self.shared.id, self.index);
                return tracing::debug!(disk, queue, ?class, %error, "a request fails");
            }
        };
        let (disk, queue) = (&self.shared.id, self.index);
        // Broken storage or a front-end fails any number of them, and each line has a cost.
        if failed.is_power_of_two() {
            tracing::error!(disk, queue, failed, ?class, %error, "a request fails");
        }
    }
}
