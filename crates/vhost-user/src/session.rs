//! Sessions: one connection of a front-end to a device.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use rustix::io::Errno;

use crate::backend::Backend;
use crate::error::{Refusal, SessionError};
use crate::message::{InflightDesc, Request, code};
use crate::message_turn::MessageTurn;
use crate::session_state::{SessionState, StateError};
use crate::state::{Answer, State};
use crate::stop_signal::{StopSignal, Woken};
use crate::wire::{self, Message};

/// A connected front-end, before [`Session::run`] serves it.
#[derive(Debug)]
pub struct Session {
    link: Arc<Link>,
    /// State of a frozen session to continue with.
    saved: Option<SessionState>,
}

/// Handle that ends or freezes a session from another thread. Clones refer to the same session. The
/// default refers to a session that has ended.
#[derive(Clone, Debug, Default)]
pub struct SessionHandle {
    link: Weak<Link>,
}

/// Reason why a session ended without an error.
#[derive(Debug)]
pub enum SessionEnd {
    /// The front-end closed the connection.
    HungUp,
    /// [`SessionHandle::close`] was called.
    Closed,
    /// [`SessionHandle::freeze`] was called. No message is half read or unanswered. The device
    /// received no call: its queues are still started, and the caller must stop them
    /// ([`SessionState::stopped_at`]).
    Frozen(Box<SessionState>),
}

#[derive(Debug)]
struct Link {
    socket: Arc<UnixStream>,
    closed: AtomicBool,
    freeze: StopSignal,
    turn: MessageTurn,
}

impl Session {
    /// Creates a session over a connected socket, which must be blocking.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        Self::over(Arc::new(socket))
    }

    fn over(socket: Arc<UnixStream>) -> io::Result<Self> {
        let (closed, turn) = (AtomicBool::new(false), MessageTurn::default());
        let link = Link { socket, closed, freeze: StopSignal::new()?, turn };
        Ok(Self { link: Arc::new(link), saved: None })
    }

    /// Continues a session that was frozen in this or another process, on the same device.
    /// [`Session::run`] then starts the queues that ran, and reads the next message.
    ///
    /// # Errors
    /// The device has another number of queues, offers less than the front-end has acknowledged, or
    /// cannot find a ring that ran.
    pub fn restore(state: SessionState, backend: &dyn Backend) -> Result<Self, StateError> {
        state.check_compatible(backend)?;
        let session = Self::over(Arc::clone(&state.socket)).map_err(StateError::Os)?;
        Ok(Self { saved: Some(state), ..session })
    }

    /// Returns a handle that can end or freeze the session while it runs.
    pub fn handle(&self) -> SessionHandle {
        SessionHandle { link: Arc::downgrade(&self.link) }
    }

    /// Serves the front-end until it disconnects, or until the handle closes or freezes the
    /// session. The calling thread is the session's control thread: it sleeps in the kernel between
    /// messages.
    ///
    /// Unless the result is [`SessionEnd::Frozen`], all queues are stopped and
    /// [`Backend::disconnected`] was called when this returns.
    ///
    /// # Errors
    /// The front-end does not follow the protocol, or the socket is broken.
    pub fn run(self, backend: &mut dyn Backend) -> Result<SessionEnd, SessionError> {
        let mut state = State::new(backend);
        if let Some(saved) = self.saved {
            state.resume(saved);
        }
        let outcome = converse(&self.link, &mut state);
        let closed = self.link.closed.load(Ordering::Acquire);
        if matches!(outcome, Ok(LoopExit::Frozen)) && !closed {
            let socket = Arc::clone(&self.link.socket);
            return Ok(SessionEnd::Frozen(Box::new(state.freeze(socket))));
        }
        state.end();
        if closed {
            // The shutdown may have cut a message, which is not an error of the front-end.
            return Ok(SessionEnd::Closed);
        }
        outcome.map(|_| SessionEnd::HungUp)
    }
}

impl SessionHandle {
    /// Ends the session: its control thread wakes, stops the queues and returns from
    /// [`Session::run`]. Returns at once. Has no effect on a session that has ended.
    pub fn close(&self) {
        if let Some(link) = self.link.upgrade() {
            link.closed.store(true, Ordering::Release);
            // Fails only if the other side has already closed.
            let _ = link.socket.shutdown(Shutdown::Both);
        }
    }

    /// Freezes the session as soon as no message is half read or unanswered. Its control thread
    /// then returns [`SessionEnd::Frozen`] from [`Session::run`], unless the session ends before.
    /// Returns at once. A front-end that stops within a message delays this for as long as it
    /// likes; a caller that cannot wait must close the session.
    pub fn freeze(&self) {
        if let Some(link) = self.link.upgrade() {
            link.freeze.stop();
        }
    }

    /// Waits until the front-end has sent the rest of a message that it has begun, and received the
    /// reply. Does not wait while the device handles the message. Returns false if `until` passes
    /// first, and true if the session has ended.
    pub fn await_message(&self, until: Instant) -> bool {
        self.link.upgrade().is_none_or(|link| link.turn.wait_message_boundary(until))
    }
}

/// Reason why the message loop ended without an error.
enum LoopExit {
    HungUp,
    Frozen,
}

fn converse(link: &Link, state: &mut State<'_>) -> Result<LoopExit, SessionError> {
    let socket = &link.socket;
    loop {
        let woken = link.freeze.wait(Some(socket.as_fd()), None);
        match woken.map_err(|error| SessionError::Os {
            action: "wait for",
            source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })? {
            Woken::Stopped => return Ok(LoopExit::Frozen),
            Woken::Readable | Woken::TimedOut => {}
        }
        let front_end_turn = link.turn.theirs();
        let Some(message) = wire::receive(socket)? else { return Ok(LoopExit::HungUp) };
        drop(front_end_turn);
        exchange(link, state, message)?;
    }
}

/// Handles one message and sends its reply.
fn exchange(link: &Link, state: &mut State<'_>, message: Message) -> Result<(), SessionError> {
    let socket = &link.socket;
    let (code, needs_reply) = (message.header.code, message.header.needs_reply());
    let bytes = message.payload.len();
    let outcome = carry_out(state, message);
    let _theirs = link.turn.theirs();
    // A front-end may request this reply in the same message that negotiates replies.
    let acknowledge = needs_reply && (state.acknowledges() || code == code::SET_PROTOCOL_FEATURES);
    match outcome {
        Ok(Answer::Done) if acknowledge => wire::reply(socket, code, &0u64.to_ne_bytes()),
        Ok(Answer::Done) => Ok(()),
        Ok(Answer::Payload(payload)) => wire::reply(socket, code, &payload),
        Ok(Answer::Region(payload, region)) => {
            wire::reply_with(socket, code, &payload, region.fd())
        }
        Err(refusal) => {
            state.log.report(&refusal, format_args!("request {code}"));
            if code == code::SET_INFLIGHT_FD {
                state.lose_record();
            }
            refuse(socket, code, bytes, acknowledge, refusal)
        }
    }
}

fn carry_out(state: &mut State<'_>, message: Message) -> Result<Answer, Refusal> {
    if message.fds_lost {
        return Err(Refusal::DescriptorsLost);
    }
    let request = Request::parse(message.header.code, &message.payload, message.fds)?;
    state.handle_request(request)
}

/// Reports a refusal to the front-end, in the form that the protocol has for this request.
fn refuse(
    socket: &UnixStream,
    code: u32,
    bytes: usize,
    acknowledge: bool,
    refusal: Refusal,
) -> Result<(), SessionError> {
    if code == code::GET_CONFIG {
        return wire::reply(socket, code, &[]);
    }
    if code == code::GET_INFLIGHT_FD {
        // A region of no bytes means that there is none. The front-end continues without it.
        return wire::reply(socket, code, &InflightDesc::default().reply(bytes));
    }
    if Request::has_own_reply(code) {
        return Err(SessionError::Unanswerable { code, source: refusal });
    }
    if acknowledge { wire::reply(socket, code, &1u64.to_ne_bytes()) } else { Ok(()) }
}
