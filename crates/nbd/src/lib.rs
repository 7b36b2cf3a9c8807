//! NBD server over a [`disk::Disk`], and a blocking client that reads ([`NbdClient`]).
//!
//! # Words
//! - [`NbdServer`]: one disk offered under one name to any number of clients. The caller accepts
//!   the sockets.
//! - **Connection**: one client's socket, a poller on one reactor with a channel of its own to the
//!   disk. A client may use several at once; they share nothing but the disk.
//! - **Negotiation**: the newstyle handshake, a pure state machine over bytes.
//! - **Request buffer**: memory for the data of one request, with space for the reply's header
//!   right before it. So a reply is one piece for the kernel.
//! - **Simple** and **structured** replies: the latter carry error texts and block status.
//!
//! # Model
//! ```text
//! recv into a small buffer -> parse every whole request in it -> disk::Channel::submit
//!   the data of a write that is not in that buffer is received into its request buffer
//! disk::Channel::reap -> replies -> one send for all that are ready
//! ```
//! If a client usually comes back within microseconds, the connection polls for it before the
//! reactor sleeps. Then the client need not wake the reactor for each request; see `busy_poll`.
//! Otherwise at most one receive and one send are under way. Both are operations of the reactor's
//! ring, so a connection that waits for its client costs a descriptor and no thread. Data is copied
//! once through the socket. Only what came along with a batch of headers is copied once more, to
//! where direct I/O needs it.
//!
//! | command | becomes |
//! |---|---|
//! | READ | read; parts of blocks are cut from whole ones |
//! | WRITE, with FUA | write, durable |
//! | FLUSH | flush: of the disk, whichever connection wrote, so several may be used for one job |
//! | TRIM | discard, with FUA a flush behind it |
//! | WRITE_ZEROES | zeroes; FAST_ZERO is refused where they would be written out |
//! | CACHE | success |
//! | BLOCK_STATUS | [`disk::Disk::extents`] on a thread of its own, since it may wait |
//!
//! # What a client can do to us
//! Everything that it sends is parsed once into a checked type. A connection holds at most
//! [`MEMORY_MAX`] bytes, however many requests it sends and however few replies it takes: then no
//! more is received until replies are gone. A client that does not finish its handshake is
//! disconnected after [`HANDSHAKE_DEADLINE`], or when another client needs its place among the
//! limited connections. Afterwards a client may take as long as it likes,
//! because it keeps only its own memory busy.
//!
//! # Errors and invariants
//! - A request that was understood is answered exactly once, unless the connection ends first.
//! - A connection to a disk that it may write ends only when the disk has ended its last request:
//!   once [`NbdServer::wait_ended`] says so, none of its I/O comes any more. A connection that only
//!   reads ends at once: outstanding reads go to memory that the reactor keeps for them.
//! - [`AcceptError`] says why a socket was not taken.
//!
//! # How to test
//! The parsers are pure and tested beside their code with every truncation and with garbage;
//! `tests/` speaks to a server over socket pairs, and does what no client should.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod buffers;
mod busy_poll;
mod client;
mod command;
mod connection;
mod extents;
mod negotiation;
mod reply;
mod server;
mod stats;
mod wire;

pub use buffers::MEMORY_MAX;
pub use client::{ClientError, NbdClient};
pub use connection::HANDSHAKE_DEADLINE;
pub use server::{AcceptError, NbdServer, Options};
pub use stats::Counts;
pub use wire::MAX_REQUEST_BYTES;
