//! Metrics in the OpenMetrics 1.0 text format.
//!
//! # Words
//! - **Family**: all samples of one name, with its type and help (`text`).
//! - **Scrape**: one `GET /metrics` (`server`), or the call `metrics`.
//!
//! # Model
//! A scrape reads the same data as `stats`, plus the histograms. It stores nothing between scrapes,
//! never waits for storage and does not disturb reactors. The fine histograms (6% steps) are mapped
//! to `families::BOUNDS`, which are few enough for a time series database. `stats` has the fine
//! percentiles.
//!
//! # Invariants
//! - Labels have few values: disk, op, stage, state, reactor; nic, queue, direction, reason. Only
//!   the ends of flows take many values over time. A page has at most eight flows of each NIC.
//! - Units are seconds and bytes; counters end in `_total`.
//! - The server accepts `CONNECTIONS_MAX` connections at a time, each with a bounded header and
//!   time. Others wait.
//! - An accepted scrape is answered, even if another worker takes over meanwhile.

mod broken_rings;
mod families;
mod golden;
mod layers;
mod overlay;
mod polling;
mod ports;
mod preserved_socket;
mod server;
mod shares;
mod text;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

pub(crate) use families::{Source, page};
pub(crate) use ports::{Residence, page as ports_page};
pub(crate) use preserved_socket::{drop_preserved, hold, take};
pub(crate) use server::{ScrapeHandler, bind, serve};

/// Address where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// An address and port of this host.
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    /// Formats the address as on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    /// Parses `unix:PATH`, `ADDRESS:PORT`, or only a port, which is a port of the loopback
    /// interface.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("unix: needs a path, for example unix:/run/ringway/metrics.sock".into())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let port = text.strip_prefix(':').unwrap_or(text).parse().map(loopback);
        let address = port.or_else(|_| text.parse());
        address.map(Self::Tcp).map_err(|_| {
            format!("{text:?} is neither unix:PATH, ADDRESS:PORT nor a port of the loopback")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_the_loopback() {
        let tcp = |text: &str| Ok(Address::Tcp(text.parse().unwrap()));
        assert_eq!("9750".parse(), tcp("127.0.0.1:9750"));
        assert_eq!(":9750".parse(), tcp("127.0.0.1:9750"));
        assert_eq!("[::1]:9750".parse(), tcp("[::1]:9750"));
        assert_eq!("unix:/a b".parse(), Ok(Address::Unix("/a b".into())));
        for bad in ["", "unix:", "localhost", "99999", "1.2.3.4"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
