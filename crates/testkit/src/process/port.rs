//! TCP ports that are reserved for a test.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

use crate::error::{Error, Result};

/// A TCP port of the loopback interface that the kernel gives to no other process while this lives.
/// The process under test can listen on it at any time, because the test does not.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _held: OwnedFd,
}

impl Port {
    /// Reserves a free port.
    ///
    /// # Errors
    /// No port is free.
    pub fn hold() -> Result<Self> {
        let (number, held) = held().map_err(|error| Error::io("cannot reserve a port", error))?;
        Ok(Self { number, _held: held })
    }

    /// Returns the port number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

fn held() -> rustix::io::Result<(u16, OwnedFd)> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((address.port(), socket))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn one_listens_where_the_port_is_held_and_then_nobody_else() {
        let port = Port::hold().unwrap();
        let address = (Ipv4Addr::LOCALHOST, port.number());
        for _ in 0..2 {
            let listener = TcpListener::bind(address).unwrap();
            let error = TcpListener::bind(address).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
            drop(listener);
        }
    }
}
