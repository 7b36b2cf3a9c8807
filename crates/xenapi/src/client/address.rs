//! Where a server is.

use std::fmt;
use std::path::PathBuf;

use super::KnownServers;

/// Where a server is, and how it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket of this host. Whoever may open it is root there.
    Unix(PathBuf),
    /// A host, by name or address, and its port; everybody on the way can read along.
    Plain(String, u16),
    /// The same with TLS, and whom we take for the server.
    Tls(String, u16, KnownServers),
}

impl Address {
    /// What stands in the `Host` of a request.
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
