//! What is typed to start the daemon.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use serde::Deserialize;

/// Serves the XenAPI: machines, their disks and their networks.
#[derive(Clone, Debug, Default, Parser)]
#[command(
    name = "ringwayd",
    version,
    max_term_width = 100,
    after_help = "Options go before the configuration file, and that before the usual \
                  places.\n\nWhen it serves, one line on standard output says where. \
                  SIGTERM ends it; machines go on.\n\nExit codes: 0 ended as asked, 1 failed (the \
                  cause is on standard error), 2 wrong usage."
)]
pub struct Options {
    /// Directory of what is remembered: records, the certificate, the password [default:
    /// /var/lib/ringway]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Directory of what a reboot of the host forgets: sockets [default: /run/ringway, or `run` in
    /// the directory of --state]
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Where to listen; with TLS unless `plain` is said. Port 0 takes a free one. May be given
    /// several times [default: 0.0.0.0:443 and 127.0.0.1:80,plain]
    #[arg(long, value_name = "ADDR:PORT[,plain]")]
    pub listen: Vec<Listen>,
    /// The Unix socket; whoever may open it is root [default: `ringwayd.sock` in
    /// the directory of --run]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// What runs the machines [default: qemu]
    #[arg(long, value_enum, value_name = "KIND")]
    pub hypervisor: Option<HypervisorKind>,
    /// Whether CPU time is kept for control in control groups, which the section `slices` of the
    /// configuration describes [default: auto]
    #[arg(long, value_enum, value_name = "MODE")]
    pub slices: Option<SlicesMode>,
    /// File of users and passwords, for its owner only: name, password and role, each on a line of
    /// its own, an empty line between two users [default: users of the host where
    /// /etc/pam.d/ringway is there, as packaging/pam.d says; else `password` in the directory of
    /// --state, made with a random one for root]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Configuration [default: /etc/ringway/ringwayd.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Writes all records to a new file, as text, and ends. No daemon may have the state directory
    #[arg(long, value_name = "FILE", conflicts_with = "import")]
    pub export: Option<PathBuf>,
    /// Fills a state directory without records with those of a file that --export has written, and
    /// ends
    #[arg(long, value_name = "FILE")]
    pub import: Option<PathBuf>,
}

/// What runs the machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HypervisorKind {
    /// QEMU, with KVM where it is.
    #[default]
    Qemu,
    /// Nothing: machines are imagined, so that everything else can be tried.
    Simulator,
}

/// Whether there are control groups for control, datapath and guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlicesMode {
    /// Where the host lets us make them.
    #[default]
    Auto,
    /// None: control, datapath and guests share the CPUs as the host has it.
    Off,
    /// They are, or the daemon does not start.
    Required,
}

/// An address to listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Listen {
    /// Address and port; port 0 takes a free one.
    pub address: SocketAddr,
    /// Without TLS.
    pub plain: bool,
}

/// Text that is no address to listen at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address: give ADDR:PORT, as 0.0.0.0:443 or [::1]:80, and `,plain` for no TLS")]
pub struct ListenParseError(String);

impl FromStr for Listen {
    type Err = ListenParseError;

    fn from_str(text: &str) -> Result<Self, ListenParseError> {
        let (address, plain) = match text.strip_suffix(",plain") {
            Some(address) => (address, true),
            None => (text, false),
        };
        let bad = |_| ListenParseError(text.chars().take(64).collect());
        Ok(Self { address: address.parse().map_err(bad)?, plain })
    }
}

impl TryFrom<String> for Listen {
    type Error = ListenParseError;

    fn try_from(text: String) -> Result<Self, ListenParseError> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, if self.plain { ",plain" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn an_address_is_read_back() {
        for text in ["127.0.0.1:0,plain", "0.0.0.0:443", "[::1]:80,plain", "[fe80::1]:8443"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        assert!("127.0.0.1:0,plain".parse::<Listen>().unwrap().plain);
        assert!(!"127.0.0.1:0".parse::<Listen>().unwrap().plain);
    }

    #[test]
    fn what_is_no_address_is_named() {
        for text in ["", "443", "127.0.0.1", "localhost:80", "127.0.0.1:80,tls", "1.1.1.1:70000"] {
            let error = text.parse::<Listen>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is no address")), "{error}");
        }
    }
}
