//! vhost-user: sessions between a front-end (a virtual machine monitor) and a device of ours.
//!
//! # Words
//! - **Front-end**: owns the guest, its memory and its rings; sends requests.
//! - **Backend**: the device that serves the rings; an implementation of [`Backend`].
//! - **Session**: one connection of one front-end ([`Session`]). A socket has one at a time; the
//!   next front-end waits in the [`Listener`]'s backlog.
//! - **Backend channel**: carries requests from the backend to the front-end ([`BackendChannel`]).
//!
//! # Model
//! A session is a loop on one thread. A message is received whole (`wire`), becomes a checked value
//! (`message`), changes the session's state (`state`, `ring`, `memory_table`) and is answered.
//! Nothing here touches a ring. When the state of a ring is complete, the backend gets it as a
//! [`virtq::QueueStart`]. When the ring must stop, the backend drains it before the message is
//! answered. The thread sleeps in the kernel between messages; [`SessionHandle::close`] ends it.
//!
//! [`SessionHandle::freeze`] stops the loop between two messages: [`Session::run`] returns the
//! whole state of the session ([`SessionState`]). [`Session::restore`] goes on from there, in this
//! process or in another that received data and descriptors. The front-end does not notice: its
//! next message waits in the socket.
//!
//! Protocol features: several queues, configuration messages, acknowledgements, backend channel,
//! in-flight region, device reset, memory slots ([`features::OFFERED`]).
//!
//! # Design
//! **The front-end keeps the record of requests in flight** ([`virtq::InflightRegion`]). QEMU asks
//! for the region, keeps it over the death of this process, and brings it when it reconnects.
//! User-Mode Linux has no region: the log says that a crash loses its requests in flight. A region
//! that cannot be used stops the rings until the device is reset, because serving without it would
//! lose some requests and run others twice. A region must cover every queue that is started; other
//! queues are refused beside it.
//!
//! **No packed rings and no dirty log.** They are not offered, so no front-end relies on them.
//!
//! # Invariants
//! - A descriptor that came with a message belongs to its ring or region, or is closed before the
//!   next message is read.
//! - A queue runs only with features acknowledged, enabled, and with every part of its ring in
//!   memory. Start and stop alternate strictly.
//! - A memory table is immutable; a change makes a new one, and the backend has switched to it
//!   before the change is answered.
//! - Kicks are eventfds; each descriptor that we write to is non-blocking.
//!
//! # Errors
//! - [`Refusal`]: this message is not carried out, the session goes on. It is logged, and reported
//!   to the front-end if it asked for an acknowledgement.
//! - [`SessionError`]: the connection cannot go on, because its bytes are no vhost-user, or the
//!   front-end waits for an answer that does not exist.
//! - [`SocketError`]: no connection is possible at this path.
//!
//! # How to test
//! A socket pair, a thread for [`Session::run`] with a backend that records its calls, and the test
//! as the front-end: see `tests/`. The front-end of the crate `vhost` is an independent peer.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

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
mod socket_files;
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
pub use socket_files::{FilesState, SocketFiles};
pub use state::MAX_RING_ENTRIES;
pub use stop_signal::{StopSignal, Woken};
