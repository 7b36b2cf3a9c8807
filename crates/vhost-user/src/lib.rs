//! vhost-user: sessions between a front-end (a virtual machine monitor) and a device of ours.
//!
//! # Words
//! - **Front-end**: owns the guest, its memory and its rings; sends requests.
//! - **Backend**: the device that serves the rings; an implementation of [`Backend`].
//! - **Session**: one connection of one front-end ([`Session`]). A socket has one at a time; the
//!   next front-end waits in the [`Listener`]'s backlog.
//! - **Channel**: the way back, for requests of ours ([`BackendChannel`]).
//!
//! # Model
//! A session is a loop on one control thread: a message is received whole (`wire`), becomes a
//! checked value (`message`), changes what is known (`state`, `ring`, `slots`) and is answered.
//! Nothing here touches a ring: when enough is known about one, the backend gets it as a
//! [`virtq::QueueStart`]; when it must stop, the backend drains it before the message is
//! answered. The thread sleeps in the kernel between messages; [`SessionHandle::close`] wakes it
//! for good.
//!
//! [`SessionHandle::freeze`] wakes it to stand still: [`Session::run`] returns everything that the
//! session knows ([`SessionState`]), and [`Session::restore`] goes on from there, in this process
//! or in another one that got the data and the descriptors. The front-end sees nothing of it: its
//! next message waits in the socket.
//!
//! Protocol features: several queues, configuration messages, acknowledgements, the way back,
//! in-flight region, device reset, memory slots ([`features::OFFERED`]). With an in-flight region
//! ([`virtq::InflightRegion`]) the front-end keeps a record of what was popped and not completed,
//! and brings it when it connects again; without one, requests in flight are lost when this
//! process dies.
//!
//! # Invariants
//! - A descriptor that came with a message is either kept by the ring or region that it was for,
//!   or closed before the next message is read.
//! - A queue runs only with features acknowledged, enabled, and with every part of its ring in
//!   memory. It is started and stopped in strict alternation.
//! - A memory table is immutable; a change makes a new one, and the backend has switched to it
//!   before the change is answered.
//! - Kicks are eventfds; whatever we write to is non-blocking.
//!
//! # Errors
//! - [`Refusal`]: this message is not carried out, the session goes on. It is logged, and the
//!   front-end is told where it asked for an acknowledgement.
//! - [`SessionError`]: the connection cannot go on: its bytes are no vhost-user, or the front-end
//!   waits for an answer that does not exist.
//! - [`SocketError`]: there is no connection to be had at this path.
//!
//! # How to test
//! A socket pair, a thread for [`Session::run`] with a backend that records its calls, and the
//! test as the front-end: see `tests/`. `vhost`'s front-end is the peer that we did not write.
#![forbid(unsafe_code)]

mod address;
mod backend;
mod channel;
mod connect;
mod error;
mod fds;
pub mod features;
mod inflight;
mod listener;
mod lock;
mod log;
mod memory_table;
mod message;
mod message_turn;
mod ring;
mod session;
mod session_state;
mod state;
mod stop_signal;
mod wire;

pub use address::MAX_SOCKET_PATH_BYTES;
pub use backend::{Backend, StopCause};
pub use channel::BackendChannel;
pub use connect::connect;
pub use error::{BackendError, Refusal, SessionError, SocketError};
pub use listener::{Access, Listener, ListenerParts};
pub use session::{Session, SessionEnd, SessionHandle};
pub use session_state::{NEWEST_FORMAT, OLDEST_FORMAT, SessionState, StateError};
pub use stop_signal::{StopSignal, Woken};
