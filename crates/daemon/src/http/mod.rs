//! HTTP server of the API: listeners, connections and responses.
//!
//! # Terms
//! - **Listener** ([`ApiListener`]): TCP with or without TLS, or the Unix socket.
//! - **Connection permit**: at most [`CONNECTIONS_MAX`] connections exist at once. Some are
//!   reserved for the Unix socket. One network address has at most [`OF_SOURCE_MAX`].
//! - **Handler** ([`ApiHandler`]): carries out calls. The server does not interpret them.
//!
//! # Model
//! Each listener and each connection is a task. Everything in a connection is bounded: the heads
//! and bodies of requests in size and time, and the time that a peer takes no data. A call is
//! dropped when its client disconnects; the handler ensures that operations continue.
//!
//! # Errors
//! API results have status 200, including API errors. A body that is not a call is answered with
//! status 500, and its connection ends.
//!
//! # How to test
//! The tests put a small [`ApiHandler`] behind real sockets.

mod certificate;
mod connection;
mod console;
mod database;
mod disks;
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
mod web;
mod websocket;

use std::fmt;

use tokio::sync::watch;
use toolstack::boxed_future::BoxFuture;
use xenapi::envelope::Call;
use xenapi::{ApiError, Value};

use crate::peer::Peer;
use crate::sessions::ConnectionSession;

pub use certificate::{TlsError, TlsIdentity, tls_identity};
pub use console::{ConsoleError, ConsoleLine, ConsoleRequest};
pub use database::RestoreRequest;
pub use disks::{BodyCut, DiskRequest, ExportBody, ImportAnswer, ImportBody, SessionRequest};
pub use limits::{CONNECTIONS_MAX, KEPT_FOR_UNIX, OF_SOURCE_MAX};
pub use listener::{ApiListener, ListenError};
pub use server::Server;
pub use web::{WebError, WebPages};

/// Handler of calls, consoles, disks and metrics requests.
pub trait ApiHandler: fmt::Debug + Send + Sync + 'static {
    /// Carries out a call.
    fn call(&self, call: Call, peer: Peer) -> BoxFuture<'static, Result<Value, ApiError>>;
    /// Handles the end of a connection that had this session.
    fn connection_closed(&self, connection_session: &ConnectionSession);
    /// Opens the serial console of a VM.
    fn console(
        &self,
        console_request: ConsoleRequest,
        peer: Peer,
    ) -> BoxFuture<'static, Result<ConsoleLine, ConsoleError>>;
    /// Begins to send the content of a disk.
    fn export(
        &self,
        disk_request: DiskRequest,
        peer: Peer,
    ) -> BoxFuture<'static, Result<ExportBody, ApiError>>;
    /// Replaces the content of a disk.
    fn import(
        &self,
        disk_request: DiskRequest,
        import_body: ImportBody,
        peer: Peer,
    ) -> BoxFuture<'static, Result<ImportAnswer, ApiError>>;
    /// Checks a database, and makes it the one of the next start.
    fn restore(
        &self,
        restore_request: RestoreRequest,
        body: ImportBody,
        peer: Peer,
    ) -> BoxFuture<'static, Result<(), ApiError>>;
    /// Returns the metrics in OpenMetrics format.
    fn metrics(&self) -> String;
}

/// Waits until the server stops.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A dropped sender also means stop.
    let _result = stop.wait_for(|stop| *stop).await;
}
