//! Clients of calls, and where their calls come from.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::sessions::ConnectionSession;

/// Origin of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Unix socket: root on this host.
    Unix,
    /// TCP connection.
    Tcp(SocketAddr),
}

/// Client of a call.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Origin of the call.
    pub from: Origin,
    /// Program of the client, from the HTTP header.
    pub user_agent: Option<String>,
    /// Session of the connection, for connections over the Unix socket.
    pub connection_session: Option<Arc<ConnectionSession>>,
}
