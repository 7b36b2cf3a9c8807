//! The ring of commands.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::Table;
use net::control::{COMMAND_BYTES_MAX, CommandError, ControlSettings, ERR, OK};
use reactor::{Context, Handle, PollOutcome, Poller, PollerId};
use virtq::{Chain, QueueStart, RingError};

use super::ControlQueueState;
use crate::ring::{FaultHandler, InOrderRing, ReactorQueue};

/// A control queue on its reactor.
pub(crate) struct ControlQueue {
    ring: InOrderRing,
    control_queue_state: Arc<ControlQueueState>,
    /// Where it lives, and as whom.
    reactor: Handle,
    id: PollerId,
    /// Nobody kicks: it must look.
    kickless: bool,
    /// The command that not all hubs have heard yet.
    held: Option<Chain>,
    /// Of the last command that the hubs were told.
    ticket: u64,
    /// A byte more than any command has: one that fills it is too long.
    room: Box<[u8]>,
}

/// Held by every hub that is still to hear a command. Dropping the last of them answers it, also
/// when that is because a reactor has ended.
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
                control.heard(ticket, context);
            });
        });
    }
}

impl ControlQueue {
    /// On `reactor`, which is this one.
    pub(crate) fn new(
        control_queue_state: Arc<ControlQueueState>,
        start: QueueStart,
        fault: FaultHandler,
        reactor: Handle,
        kickless: bool,
        context: &mut Context<'_>,
    ) -> Result<Self, RingError> {
        let id = context.poller().expect("queues are made as pollers");
        let ring = InOrderRing::new(control_queue_state.port, start, fault, context)?;
        let room = vec![0; COMMAND_BYTES_MAX + 1].into();
        Ok(Self { ring, control_queue_state, reactor, id, kickless, held: None, ticket: 0, room })
    }

    /// Takes a command in, or answers at once that it cannot be had.
    fn serve(&mut self, chain: Chain, context: &mut Context<'_>) {
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
                self.tell(control_settings);
            }
            Err(error) => {
                tracing::debug!(port = self.control_queue_state.port.0, %error, "a driver's command is refused");
                self.answer(chain, ERR, context);
            }
        }
    }

    fn tell(&mut self, control_settings: ControlSettings) {
        self.ticket += 1;
        let (reactor, queue, ticket) = (self.reactor.clone(), self.id, self.ticket);
        let pending_ack = Arc::new(PendingAck { reactor, queue, ticket });
        self.control_queue_state.fabric.set_control_settings_nowait(
            self.control_queue_state.port,
            &Arc::new(control_settings),
            &pending_ack,
        );
    }

    /// All hubs have heard it.
    fn heard(&mut self, ticket: u64, context: &mut Context<'_>) {
        // One that was given up meanwhile is popped anew, and told anew.
        if ticket == self.ticket
            && let Some(chain) = self.held.take()
        {
            self.answer(chain, OK, context);
        }
    }

    fn answer(&mut self, chain: Chain, answer: u8, context: &mut Context<'_>) {
        // One byte at most.
        let written = chain.writable.write(&[answer]) as u32;
        self.ring.queue.push(chain, written);
        self.ring.publish(context);
    }

    /// Gives up what is held; returns how many chains that were.
    fn let_go(&mut self) -> u16 {
        self.ticket += 1;
        self.held.take().map_or(0, |chain| {
            chain.abandon();
            1
        })
    }
}

impl ReactorQueue for ControlQueue {
    /// A command that was not answered yet is carried out again by the successor, which changes
    /// nothing more.
    fn stop(&mut self, context: &mut Context<'_>) -> u16 {
        self.ring.publish(context);
        let unanswered = self.let_go();
        let next = self.ring.queue.next_avail().wrapping_sub(unanswered);
        self.ring.queue.fail();
        next
    }

    fn set_memory(&mut self, table: Arc<Table>) -> Result<(), RingError> {
        self.let_go();
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
        // While a command is held only the last hub brings us on.
        self.held.is_none() && self.ring.queue.arm()
    }

    fn always_polls(&self) -> bool {
        self.kickless && self.held.is_none() && !self.ring.queue.failed()
    }
}

impl Drop for ControlQueue {
    /// Its reactor may end before it was stopped.
    fn drop(&mut self) {
        self.let_go();
    }
}
