//! Command-line options.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use serde::Deserialize;

/// Serve the XenAPI: VMs, their disks and networks
#[derive(Clone, Debug, Default, Parser)]
#[command(
    name = "ringwayd",
    version,
    max_term_width = 100,
    after_help = "Options override the configuration file, which overrides the defaults.\n\n\
                  When ringwayd is ready, it prints its addresses in one line on standard output. \
                  SIGTERM, SIGINT and SIGHUP stop it; VMs keep running.\n\n\
                  Exit codes: 0 stopped as requested, 1 failed (the \
                  cause is on standard error), 2 wrong usage."
)]
pub struct Options {
    /// Directory for persistent state: database, certificate, password file [default:
    /// /var/lib/ringway]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Directory for sockets and other state that a host reboot discards [default: /run/ringway, or
    /// `run` in the directory of --state]
    #[arg(long, value_name = "DIR")]
    pub run: Option<PathBuf>,
    /// Address to listen on, with TLS unless `plain` is given. Port 0 selects a free port. May be
    /// given several times [default: 0.0.0.0:443 and 127.0.0.1:80,plain]
    #[arg(long, value_name = "ADDR:PORT[,plain]")]
    pub listen: Vec<Listen>,
    /// Unix socket; every process that can open it is root [default: `ringwayd.sock` in the
    /// directory of --run]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Hypervisor that runs VMs [default: qemu]
    #[arg(long, value_enum, value_name = "KIND")]
    pub hypervisor: Option<HypervisorKind>,
    /// Use of control groups that reserve CPU time for the control plane; section `slices` of the
    /// configuration has their settings [default: auto]
    #[arg(long, value_enum, value_name = "MODE")]
    pub slices: Option<SlicesMode>,
    /// Measurement of storage repositories that have no profile, when they are plugged [default: auto]
    #[arg(long, value_enum, value_name = "MODE")]
    pub calibrate: Option<CalibrateMode>,
    /// Password file, mode 600: name, password and role of each user on a line each, an empty line
    /// between users [default: users of the host if /etc/pam.d/ringway exists, see packaging/pam.d;
    /// else `password` in the directory of --state, created with a random password for root]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Configuration file [default: /etc/ringway/ringwayd.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write all records to a new text file and exit. If a daemon uses the state directory, it makes
    /// the export and goes on
    #[arg(long, value_name = "FILE", conflicts_with = "import")]
    pub export: Option<PathBuf>,
    /// Load the records of a file that --export wrote into an empty state directory and exit
    #[arg(long, value_name = "FILE")]
    pub import: Option<PathBuf>,
}

/// Hypervisor that runs VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HypervisorKind {
    /// QEMU, with KVM where available.
    #[default]
    Qemu,
    /// No hypervisor: VMs are simulated, to test everything else.
    Simulator,
}

/// Use of control groups for control, datapath and guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlicesMode {
    /// Create the groups if the host allows it.
    #[default]
    Auto,
    /// Create no groups: control, datapath and guests share the CPUs.
    Off,
    /// Create the groups, or fail to start.
    Required,
}

/// Measurement of storage repositories without a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CalibrateMode {
    /// Measure a storage repository in the background when it is plugged, unless its `other-config`
    /// has `calibrate=false`.
    #[default]
    Auto,
    /// Measure none: `ringway calibrate` does.
    Off,
}

/// Address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Listen {
    /// Address and port. Port 0 selects a free port.
    pub address: SocketAddr,
    /// True for TCP without TLS.
    pub plain: bool,
}

/// Text that is not a valid address.
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
