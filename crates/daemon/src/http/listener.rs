//! Listeners of the API.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::connection::{ServerContext, serve};
use super::unix::UnixApiListener;
use crate::options::Listen;
use crate::peer::Origin;

/// Time limit of a TLS handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// TCP, TLS or Unix listener.
#[derive(Debug)]
pub enum ApiListener {
    /// TCP without TLS.
    Plain(TcpListener),
    /// TCP with TLS.
    Tls(TcpListener, Arc<ServerConfig>),
    /// Unix socket.
    Unix(UnixApiListener),
}

/// Reason why a listener cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is in use or does not belong to this host.
    #[error("cannot listen on {listen}: give another address or port with --listen")]
    Tcp {
        /// Requested address.
        listen: Listen,
        /// Error of the system.
        source: io::Error,
    },
    /// Another program serves the socket.
    #[error("the socket {} is served by another process: end that process, or give another \
             path with --socket", .path.display())]
    Taken {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The path exists and is not a socket.
    #[error("{} is no socket: move it away, or give another path with --socket", .path.display())]
    NoSocket {
        /// Path of the file.
        path: PathBuf,
    },
    /// The system refuses the socket.
    #[error("cannot make the socket {}: check its directory, or give another path with \
             --socket", .path.display())]
    Unix {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl ApiListener {
    /// Listens on TCP. Uses this TLS configuration unless `listen` is plain.
    ///
    /// # Errors
    /// [`ListenError::Tcp`] if the address cannot be used.
    pub async fn tcp(listen: Listen, tls: &Arc<ServerConfig>) -> Result<Self, ListenError> {
        let bound = TcpListener::bind(listen.address).await;
        let listener = bound.map_err(|source| ListenError::Tcp { listen, source })?;
        Ok(match listen.plain {
            true => Self::Plain(listener),
            false => Self::Tls(listener, Arc::clone(tls)),
        })
    }

    /// Listens on a Unix socket. Removes the stale socket of a dead process.
    ///
    /// # Errors
    /// [`ListenError`] if another process serves the socket or the system refuses it.
    pub fn unix(path: impl Into<PathBuf>) -> Result<Self, ListenError> {
        UnixApiListener::open(path.into()).map(Self::Unix)
    }

    /// Returns whether a TCP listener has no TLS, and its port. `None` for a Unix socket.
    pub fn port(&self) -> Option<(bool, u16)> {
        let (listener, plain) = match self {
            Self::Plain(listener) => (listener, true),
            Self::Tls(listener, _) => (listener, false),
            Self::Unix(_) => return None,
        };
        listener.local_addr().ok().map(|address| (plain, address.port()))
    }

    pub(super) fn is_tcp(&self) -> bool {
        !matches!(self, Self::Unix(_))
    }

    /// Waits for a connection. Returns its origin and the future that serves it.
    pub(super) async fn accept(
        &self,
        server_context: ServerContext,
    ) -> io::Result<(Origin, Pin<Box<dyn Future<Output = ()> + Send>>)> {
        Ok(match self {
            Self::Plain(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let from = Origin::Tcp(address);
                (from, Box::pin(serve(stream, from, server_context)))
            }
            Self::Tls(listener, config) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let (acceptor, from) =
                    (TlsAcceptor::from(Arc::clone(config)), Origin::Tcp(address));
                let served = async move {
                    match timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => serve(stream, from, server_context).await,
                        Ok(Err(error)) => tracing::debug!("{address}: TLS failed: {error}"),
                        Err(_late) => tracing::debug!("{address}: TLS timed out"),
                    }
                };
                (from, Box::pin(served))
            }
            Self::Unix(door) => {
                let stream = door.accept().await?;
                (Origin::Unix, Box::pin(serve(stream, Origin::Unix, server_context)))
            }
        })
    }
}

impl fmt::Display for ApiListener {
    /// Formats the address in option syntax, with the port that was assigned.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tcp = |listener: &TcpListener, plain| match listener.local_addr() {
            Ok(address) => Listen { address, plain }.to_string(),
            Err(error) => error.to_string(),
        };
        match self {
            Self::Plain(listener) => f.write_str(&tcp(listener, true)),
            Self::Tls(listener, _) => f.write_str(&tcp(listener, false)),
            Self::Unix(door) => write!(f, "{}", door.path().display()),
        }
    }
}
