//! What is listened on.

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
use crate::dispatch::Origin;
use crate::options::Listen;

/// How long a TLS handshake may take.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// Something that is listened on.
#[derive(Debug)]
pub enum ApiListener {
    /// TCP without TLS.
    Plain(TcpListener),
    /// TCP with TLS.
    Tls(TcpListener, Arc<ServerConfig>),
    /// The Unix socket.
    Unix(UnixApiListener),
}

/// Why something cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is taken, or not one of this host.
    #[error("cannot listen on {listen}: give another address or port with --listen")]
    Tcp {
        /// What was asked for.
        listen: Listen,
        /// What the system said.
        source: io::Error,
    },
    /// Another program serves the socket.
    #[error("the socket {} is served by another process: end that one, or give another path with \
             --socket", .path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// Something that is no socket is in its place.
    #[error("{} is no socket: move it away, or give another path with --socket", .path.display())]
    NoSocket {
        /// What is there.
        path: PathBuf,
    },
    /// The system refuses it.
    #[error("cannot make the socket {}: see to its directory, or give another path with \
             --socket", .path.display())]
    Unix {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl ApiListener {
    /// Listens on TCP; with this configuration of TLS unless it is to be plain.
    ///
    /// # Errors
    /// [`ListenError::Tcp`].
    pub async fn tcp(listen: Listen, tls: &Arc<ServerConfig>) -> Result<Self, ListenError> {
        let bound = TcpListener::bind(listen.address).await;
        let listener = bound.map_err(|source| ListenError::Tcp { listen, source })?;
        Ok(match listen.plain {
            true => Self::Plain(listener),
            false => Self::Tls(listener, Arc::clone(tls)),
        })
    }

    /// Listens on a Unix socket. What a process that has died left in its place is removed.
    ///
    /// # Errors
    /// Another process serves it, or the system refuses it.
    pub fn unix(path: impl Into<PathBuf>) -> Result<Self, ListenError> {
        UnixApiListener::open(path.into()).map(Self::Unix)
    }

    pub(super) fn is_tcp(&self) -> bool {
        !matches!(self, Self::Unix(_))
    }

    /// Waits for somebody to come; from where, and how that one is served.
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
                        Ok(Err(error)) => tracing::debug!("{address}: no TLS: {error}"),
                        Err(_late) => tracing::debug!("{address}: no TLS in time"),
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
    /// As it would be asked for; the port is the one that was got.
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
