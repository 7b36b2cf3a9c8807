//! Addresses of servers.

use std::fmt;
use std::path::PathBuf;

use super::KnownServers;

/// Address of a server, with its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Unix socket of this host. Every process that can open it is root on the server.
    Unix(PathBuf),
    /// Host name or address, and port, without encryption.
    Plain(String, u16),
    /// Host name or address, and port, with TLS. The known servers decide which certificate is
    /// valid.
    Tls(String, u16, KnownServers),
}

impl Address {
    /// Returns the value of the `Host` header.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Unix(_) => "localhost".to_owned(),
            Self::Plain(..) | Self::Tls(..) => self.to_string(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Plain(host, port) | Self::Tls(host, port, _) if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            Self::Plain(host, port) | Self::Tls(host, port, _) => write!(f, "{host}:{port}"),
        }
    }
}
