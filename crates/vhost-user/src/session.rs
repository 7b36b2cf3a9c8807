//! One front-end's conversation with one device.

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

/// A connected front-end that is still to be served, or to be served on.
#[derive(Debug)]
pub struct Session {
    link: Arc<Link>,
    hushed: bool,
    /// What was known when it was frozen.
    saved: Option<SessionState>,
}

/// Ends or freezes a session from another thread. Clones do so with the same session. The default
/// is that of a session that has ended.
#[derive(Clone, Debug, Default)]
pub struct SessionHandle {
    link: Weak<Link>,
}

/// Why a session ended without an error.
#[derive(Debug)]
pub enum SessionEnd {
    /// The front-end closed the connection.
    HungUp,
    /// [`SessionHandle::close`] was called.
    Closed,
    /// [`SessionHandle::freeze`] was called. No message is half read or unanswered, and the device
    /// has heard nothing of it: its queues are started as they were, and are for the caller to
    /// stop ([`SessionState::stopped_at`]).
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
    /// A session over a connected socket, which must be blocking.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        Self::over(Arc::new(socket))
    }

    fn over(socket: Arc<UnixStream>) -> io::Result<Self> {
        let (closed, turn) = (AtomicBool::new(false), MessageTurn::default());
        let link = Link { socket, closed, freeze: StopSignal::new()?, turn };
        Ok(Self { link: Arc::new(link), hushed: false, saved: None })
    }

    /// Goes on with a session that was frozen, here or in another process, on the same device.
    /// [`Session::run`] then starts the queues that ran, and reads the next message.
    ///
    /// # Errors
    /// The device has other queues, offers less than the front-end has acknowledged, or cannot
    /// find a ring that ran.
    pub fn restore(state: SessionState, backend: &dyn Backend) -> Result<Self, StateError> {
        state.check_compatible(backend)?;
        let session = Self::over(Arc::clone(&state.socket)).map_err(StateError::Os)?;
        Ok(Self { saved: Some(state), ..session })
    }

    /// What this front-end is refused is logged at level debug only.
    pub fn log_refusals_at_debug(&mut self) {
        self.hushed = true;
    }

    /// A handle that can end the session while it runs.
    pub fn handle(&self) -> SessionHandle {
        SessionHandle { link: Arc::downgrade(&self.link) }
    }

    /// Serves the front-end until it goes, is sent away, or stands still. This thread is the
    /// session's control thread: it sleeps in the kernel between messages.
    ///
    /// However it ends, but for [`SessionEnd::Frozen`], every queue has been stopped and the
    /// device has heard [`Backend::disconnected`].
    ///
    /// # Errors
    /// A front-end that does not speak the protocol, or a broken socket.
    pub fn run(self, backend: &mut dyn Backend) -> Result<SessionEnd, SessionError> {
        let mut state = State::new(backend);
        state.log.hushed = self.hushed;
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
            // Whatever the shutdown made of a half-read message is not the front-end's fault.
            return Ok(SessionEnd::Closed);
        }
        outcome.map(|_| SessionEnd::HungUp)
    }
}

impl SessionHandle {
    /// Ends the session: its control thread wakes, stops the queues and returns from
    /// [`Session::run`]. Returns at once; no effect on a session that has ended.
    pub fn close(&self) {
        if let Some(link) = self.link.upgrade() {
            link.closed.store(true, Ordering::Release);
            // Fails only when the other side has closed already.
            let _ = link.socket.shutdown(Shutdown::Both);
        }
    }

    /// Lets the session stand still as soon as no message is half read or unanswered: its control
    /// thread then returns from [`Session::run`] with [`SessionEnd::Frozen`], unless the session
    /// has ended before. Returns at once. A front-end that stops within a message holds this up
    /// for as long as it likes: whoever cannot wait closes the session.
    pub fn freeze(&self) {
        if let Some(link) = self.link.upgrade() {
            link.freeze.stop();
        }
    }

    /// Waits until the front-end has sent all of a message that it has begun, and taken the answer;
    /// what the device does about it meanwhile is not waited for. False: it has not by `until`. True
    /// of a session that has ended.
    pub fn await_message(&self, until: Instant) -> bool {
        self.link.upgrade().is_none_or(|link| link.turn.wait_message_boundary(until))
    }
}

/// How a conversation has come to its end.
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

/// Carries out one message and answers it.
fn exchange(link: &Link, state: &mut State<'_>, message: Message) -> Result<(), SessionError> {
    let socket = &link.socket;
    let (code, needs_reply) = (message.header.code, message.header.needs_reply());
    let bytes = message.payload.len();
    let outcome = carry_out(state, message);
    let _theirs = link.turn.theirs();
    // A front-end may ask for this answer in the very message that negotiates answers.
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

/// Tells the front-end, in the way that the protocol has for this request.
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
        // A region of no bytes: there is none, and the front-end goes on without.
        return wire::reply(socket, code, &InflightDesc::default().reply(bytes));
    }
    if Request::has_own_reply(code) {
        return Err(SessionError::Unanswerable { code, source: refusal });
    }
    if acknowledge { wire::reply(socket, code, &1u64.to_ne_bytes()) } else { Ok(()) }
}
