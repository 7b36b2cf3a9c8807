//! One connection, from its first byte to its last.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{self, HeaderMap};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};

use super::stall_timeout::StallTimeout;
use super::{ApiHandler, routes, stopped};
use crate::dispatch::{Origin, Peer};
use crate::sessions::ConnectionSession;

/// How long the head of a request may take, and how long a connection may be idle before it.
pub(super) const HEAD_DEADLINE: Duration = Duration::from_secs(60);
/// How long a peer may take nothing of what it is sent.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);
/// Most headers of a request: browsers send twenty.
const HEADERS_MAX: usize = 64;
/// Most bytes that are read ahead; the head of a request is at most twice that.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest text kept of what a client says of itself, in characters.
const AGENT_CHARS_MAX: usize = 128;

/// What every connection of a server has in common.
#[derive(Clone, Debug)]
pub(super) struct ServerContext {
    pub(super) api_handler: Arc<dyn ApiHandler>,
    pub(super) head_deadline: Duration,
    pub(super) consoles: Arc<Semaphore>,
    pub(super) stop: watch::Receiver<bool>,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) from: Origin,
    /// The session of the connection, if it may have one.
    pub(super) connection_session: Option<Arc<ConnectionSession>>,
}

impl Caller {
    /// Who asks with these headers.
    pub(super) fn asks(self, headers: &HeaderMap) -> Peer {
        let Self { from, connection_session: own } = self;
        let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let user_agent = agent.map(|text| text.chars().take(AGENT_CHARS_MAX).collect());
        Peer { from, user_agent, connection_session: own }
    }
}

/// A connection with a session of its own, which ends with it.
struct SessionGuard {
    connection_session: Arc<ConnectionSession>,
    api_handler: Arc<dyn ApiHandler>,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.api_handler.connection_closed(&self.connection_session);
    }
}

/// Serves a connection until either side ends it.
pub(super) async fn serve<S>(stream: S, from: Origin, server_context: ServerContext)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (head_deadline, mut stop) = (server_context.head_deadline, server_context.stop.clone());
    let connection_session = (from == Origin::Unix).then(|| Arc::new(ConnectionSession::default()));
    let api_handler = Arc::clone(&server_context.api_handler);
    let _stay = connection_session
        .clone()
        .map(|connection_session| SessionGuard { connection_session, api_handler });
    let caller = Caller { from, connection_session };
    let service =
        service_fn(move |request| routes::answer(request, caller.clone(), server_context.clone()));
    let io = TokioIo::new(StallTimeout::new(stream, WRITE_PATIENCE));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_deadline)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(io, service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}
