//! The daemon's doors: how calls come in and answers go out.
//!
//! # Words
//! - **Door**: something that is listened on, TCP with or without TLS, or the Unix socket.
//! - **Place**: the permission to be connected. There are [`CONNECTIONS_MAX`] of them, some of which
//!   only the Unix socket gives; one address of the network gets [`OF_SOURCE_MAX`] of them.
//! - **Answers**: who carries out what comes in; here nobody knows what a call does.
//!
//! # Model
//! Each door is a task, and each connection one of its own, in which everything has a bound: the head
//! of a request and its body have a length and a time, and so has a peer that does not take its answer.
//! A call is dropped when its caller leaves: whoever carries it out sees to what must go on.
//!
//! # Errors
//! What the API answers has the status 200, errors too. A body that is no call gets a page with the
//! status 500, and its connection ends.
//!
//! # How to test
//! [`ApiHandler`] is a trait: the tests put a small one behind real sockets.

mod certificate;
mod connection;
mod console;
mod limits;
mod listener;
mod response;
mod routes;
mod rpc;
mod server;
mod stall_timeout;
#[cfg(test)]
mod tests;
mod unix;
mod websocket;

use std::fmt;

use tokio::net::UnixStream;
use tokio::sync::watch;
use toolstack::boxed_future::BoxFuture;
use xenapi::envelope::Call;
use xenapi::{ApiError, Value};

use crate::dispatch::Peer;
use crate::sessions::ConnectionSession;

pub use certificate::{TlsError, server_config};
pub use console::{ConsoleError, ConsoleRequest};
pub use limits::{CONNECTIONS_MAX, KEPT_FOR_UNIX, OF_SOURCE_MAX};
pub use listener::{ApiListener, ListenError};
pub use server::Server;

/// Who carries out what comes in.
pub trait ApiHandler: fmt::Debug + Send + Sync + 'static {
    /// Carries out a call.
    fn call(&self, call: Call, peer: Peer) -> BoxFuture<'static, Result<Value, ApiError>>;
    /// A connection has ended that had this session of its own.
    fn connection_closed(&self, connection_session: &ConnectionSession);
    /// Opens the serial line of a machine.
    fn console(
        &self,
        console_request: ConsoleRequest,
        peer: Peer,
    ) -> BoxFuture<'static, Result<UnixStream, ConsoleError>>;
    /// What is counted and measured, as OpenMetrics has it.
    fn metrics(&self) -> String;
}

/// Waits until the server is to stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // It also stops when nobody is there any more who could say so.
    let _said = stop.wait_for(|stop| *stop).await;
}
