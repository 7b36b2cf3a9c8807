//! Virtqueue of control commands.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::Table;
use net::control::{COMMAND_BYTES_MAX, CommandError, ControlSettings, ERR, OK};
use reactor::{Context, Handle, PollOutcome, Poller, PollerId};
use virtq::{Chain, QueueStart, RingError};

use super::ControlQueueState;
use crate::ring::{FaultReporter, InOrderRing, ReactorQueue};

/// Control queue on its reactor.
pub(crate) struct ControlQueue {
    ring: InOrderRing,
    control_queue_state: Arc<ControlQueueState>,
    /// Reactor of the queue, and the queue's identifier there.
    reactor: Handle,
    id: PollerId,
    /// True if the driver sends no kicks, so that the queue must be polled.
    kickless: bool,
    /// Command that not all hubs have applied yet.
    held: Option<Chain>,
    /// Number of the last command that was sent to the hubs.
    ticket: u64,
    /// Buffer one byte larger than any command: a command that fills it is too long.
    room: Box<[u8]>,
}

/// Guard held by every hub that has not applied a command yet. Dropping the last one answers the
/// command, even if a reactor has ended.
pub(crate) struct PendingAck {
    reactor: Handle,
    queue: PollerId,
    ticket: u64,
}

impl Drop for PendingAck {
    fn drop(&mut self) {
        let (queue, ticket) = (self.queue, self.ticket);
        // A reactor that has ended has dropped the queue.
        let _ = self.reactor.send(move |context| {
            context.with_poller(queue, |control: &mut ControlQueue, context| {
                control.complete_command(ticket, context);
            });
        });
    }
}

impl ControlQueue {
    /// Creates the queue on `reactor`, which must be the calling one.
    pub(crate) fn new(
        control_queue_state: Arc<ControlQueueState>,
        start: QueueStart,
        fault_reporter: FaultReporter,
        reactor: Handle,
        kickless: bool,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let id = context.poller().expect("queues are made as pollers");
        let ring = InOrderRing::new(control_queue_state.port, start, fault_reporter, context)?;
        let room = vec![0; COMMAND_BYTES_MAX + 1].into();
        Ok(Self { ring, control_queue_state, reactor, id, kickless, held: None, ticket: 0, room })
    }

    /// Accepts a command, or answers at once that it is invalid.
    fn serve(&mut self, chain: Chain, context: &mut Context<'_>) {
        // Without readable bytes, it is refused below.
        self.ring.report_outside(&chain);
        let copied = chain.readable.peek(&mut self.room);
        let bytes = self.room.get(..copied).unwrap_or_default();
        let taken = if chain.writable.is_empty() {
            Err(CommandError::NoAnswer)
        } else {
            self.control_queue_state.take(bytes)
        };
        match taken {
            Ok(control_settings) => {
                self.held = Some(chain);
                self.publish_settings(control_settings);
            }
            Err(error) => {
                tracing::debug!(port = self.control_queue_state.port.0, %error, "a driver's command is refused");
                self.answer(chain, ERR, context);
            }
        }
    }

    fn publish_settings(&mut self, control_settings: ControlSettings) {
        self.ticket += 1;
        let (reactor, queue, ticket) = (self.reactor.clone(), self.id, self.ticket);
        let pending_ack = Arc::new(PendingAck { reactor, queue, ticket });
        self.control_queue_state.fabric.set_control_settings_nowait(
            self.control_queue_state.port,
            &Arc::new(control_settings),
            &pending_ack,
        );
    }

    /// Answers the command that all hubs have applied.
    fn complete_command(&mut self, ticket: u64, context: &mut Context<'_>) {
        // An abandoned command is popped again later, and applied again.
        if ticket == self.ticket
            && let Some(chain) = self.held.take()
        {
            self.answer(chain, OK, context);
        }
    }

    fn answer(&mut self, chain: Chain, answer: u8, context: &mut Context<'_>) {
        // At most one byte.
        let written = chain.writable.write(&[answer]) as u32;
        self.ring.queue.push(chain, written);
        self.ring.publish(context);
    }

    /// Abandons the unanswered command; returns the number of chains.
    fn abandon_popped(&mut self) -> u16 {
        self.ticket += 1;
        self.held.take().map_or(0, |chain| {
            chain.abandon();
            1
        })
    }
}

impl ReactorQueue for ControlQueue {
    /// Stops the queue. Its successor executes an unanswered command again, which changes nothing
    /// more.
    fn stop(&mut self, context: &mut Context<'_>) -> u16 {
        self.ring.publish(context);
        let unanswered = self.abandon_popped();
        let next = self.ring.queue.next_avail().wrapping_sub(unanswered);
        self.ring.queue.fail();
        next
    }

    fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.abandon_popped();
        self.ring.set_memory(table)
    }

    fn set_call(&mut self, call: Option<Arc<OwnedFd>>, context: &mut Context<'_>) {
        self.ring.set_call(call, context);
    }
}

impl Poller for ControlQueue {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        if self.held.is_some() {
            return PollOutcome::Idle;
        }
        let Some(chain) = self.ring.pop_chain() else {
            // The ring may be broken.
            self.ring.publish(context);
            return PollOutcome::Idle;
        };
        self.serve(chain, context);
        PollOutcome::Busy
    }

    fn on_runnable(&mut self) {
        self.ring.queue.suppress();
    }

    fn arm(&mut self) -> bool {
        // While a command is pending, only the last hub can make progress.
        self.held.is_none() && self.ring.queue.arm()
    }

    fn always_polls(&self) -> bool {
        self.kickless && self.held.is_none() && !self.ring.queue.failed()
    }
}

impl Drop for ControlQueue {
    /// Abandons the command if the reactor ends before the queue was stopped.
    fn drop(&mut self) {
        self.abandon_popped();
    }
}
