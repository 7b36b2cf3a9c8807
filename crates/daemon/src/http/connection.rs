//! HTTP connections.

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
use super::{ApiHandler, WebPages, stopped, web};
use crate::peer::{Origin, Peer};
use crate::sessions::ConnectionSession;

/// Time limit for the head of a request. Also the longest idle time before a request.
pub(super) const HEAD_DEADLINE: Duration = Duration::from_secs(60);
/// Longest time that a peer may take none of the data sent to it.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);
/// Most headers of a request. Browsers send about twenty.
const HEADERS_MAX: usize = 64;
/// Most bytes read ahead. The head of a request is at most twice as long.
const BUFFER_BYTES: usize = 64 << 10;
/// Longest user agent text that is stored, in characters.
const AGENT_CHARS_MAX: usize = 128;

/// Context that all connections of a server share.
#[derive(Clone, Debug)]
pub(super) struct ServerContext {
    pub(super) api_handler: Arc<dyn ApiHandler>,
    pub(super) head_deadline: Duration,
    pub(super) consoles: Arc<Semaphore>,
    pub(super) pages: Arc<WebPages>,
    pub(super) stop: watch::Receiver<bool>,
}

/// Peer of a connection.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) from: Origin,
    /// Session of the connection. Only connections over the Unix socket have one.
    pub(super) connection_session: Option<Arc<ConnectionSession>>,
}

impl Caller {
    /// Returns the client of a request with these headers.
    pub(super) fn asks(self, headers: &HeaderMap) -> Peer {
        let Self { from, connection_session: own } = self;
        let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let user_agent = agent.map(|text| text.chars().take(AGENT_CHARS_MAX).collect());
        Peer { from, user_agent, connection_session: own }
    }
}

/// Guard that ends the session of a connection when the connection ends.
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
        service_fn(move |request| web::answer(request, caller.clone(), server_context.clone()));
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
