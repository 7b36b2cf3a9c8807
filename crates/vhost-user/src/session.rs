//! One front-end's conversation with one device.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::backend::Backend;
use crate::error::{Refusal, SessionError};
use crate::message::{InflightDesc, Request, code};
use crate::state::{Answer, State};
use crate::wire::{self, Message};

/// A connected front-end that is still to be served.
#[derive(Debug)]
pub struct Session {
    link: Arc<Link>,
    hushed: bool,
}

/// Ends a session from another thread. Clones end the same session.
#[derive(Clone, Debug)]
pub struct SessionHandle {
    link: Weak<Link>,
}

/// Why a session ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The front-end closed the connection.
    HungUp,
    /// [`SessionHandle::close`] was called.
    Closed,
}

#[derive(Debug)]
struct Link {
    socket: UnixStream,
    closed: AtomicBool,
}

impl Session {
    /// A session over a connected socket, which must be blocking.
    pub fn new(socket: UnixStream) -> Self {
        Self { link: Arc::new(Link { socket, closed: AtomicBool::new(false) }), hushed: false }
    }

    /// What this front-end is refused is logged at level debug only.
    pub fn hush(&mut self) {
        self.hushed = true;
    }

    /// A handle that can end the session while it runs.
    pub fn handle(&self) -> SessionHandle {
        SessionHandle { link: Arc::downgrade(&self.link) }
    }

    /// Serves the front-end until it goes or is sent away. This thread is the session's control
    /// thread: it sleeps in the kernel between messages.
    ///
    /// However it ends, every queue has been stopped and the device has heard
    /// [`Backend::disconnected`].
    ///
    /// # Errors
    /// A front-end that does not speak the protocol, or a broken socket.
    pub fn run(self, backend: &mut dyn Backend) -> Result<SessionEnd, SessionError> {
        let mut state = State::new(backend);
        state.log.warned = self.hushed;
        let outcome = converse(&self.link.socket, &mut state);
        state.end();
        if self.link.closed.load(Ordering::Acquire) {
            // Whatever the shutdown made of a half-read message is not the front-end's fault.
            return Ok(SessionEnd::Closed);
        }
        outcome.map(|()| SessionEnd::HungUp)
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
}

fn converse(socket: &UnixStream, state: &mut State<'_>) -> Result<(), SessionError> {
    while let Some(message) = wire::receive(socket)? {
        let (code, needs_reply) = (message.header.code, message.header.needs_reply());
        let bytes = message.payload.len();
        let outcome = carry_out(state, message);
        // A front-end may ask for this answer in the very message that negotiates answers.
        let acknowledge =
            needs_reply && (state.acknowledges() || code == code::SET_PROTOCOL_FEATURES);
        match outcome {
            Ok(Answer::Done) if acknowledge => wire::reply(socket, code, &0u64.to_ne_bytes())?,
            Ok(Answer::Done) => {}
            Ok(Answer::Payload(payload)) => wire::reply(socket, code, &payload)?,
            Ok(Answer::Region(payload, region)) => {
                wire::reply_with(socket, code, &payload, region.fd())?;
            }
            Err(refusal) => {
                state.log.report(&refusal, format_args!("request {code}"));
                if code == code::SET_INFLIGHT_FD {
                    state.lose_record();
                }
                refuse(socket, code, bytes, acknowledge, refusal)?;
            }
        }
    }
    Ok(())
}

fn carry_out(state: &mut State<'_>, message: Message) -> Result<Answer, Refusal> {
    if message.fds_lost {
        return Err(Refusal::DescriptorsLost);
    }
    let request = Request::parse(message.header.code, &message.payload, message.fds)?;
    state.carry_out(request)
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
