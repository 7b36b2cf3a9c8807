//! Options that name the processes to ask.

use std::path::PathBuf;

use clap::Args;
use toolstack::ringway_io::HostSockets;

/// Options for the sockets of a host.
#[derive(Clone, Debug, Args)]
pub(super) struct SocketOptions {
    /// Control socket of a ringway-io or ringway-net; may be repeated [default: every ringway-io of
    /// this host]
    #[arg(long, value_name = "SOCKET", env = "RINGWAY_CONTROL")]
    control: Vec<PathBuf>,
    /// Run directory of ringwayd, for one started with --state or --run [default: that of
    /// /etc/ringway/ringwayd.toml]
    #[arg(long, value_name = "DIR", conflicts_with = "control")]
    run: Option<PathBuf>,
}

impl SocketOptions {
    /// Returns whether the user has named control sockets.
    pub(super) fn are_given(&self) -> bool {
        !self.control.is_empty()
    }

    /// Returns the paths of the host.
    pub(super) fn host(&self) -> HostSockets {
        self.run.as_deref().map_or_else(HostSockets::of_host, HostSockets::in_run)
    }

    /// Returns the given control sockets, or those that exist on the host now.
    pub(super) fn controls(&self) -> Vec<PathBuf> {
        if self.are_given() { self.control.clone() } else { self.host().controls() }
    }

    /// Returns a sentence for a host on which no process was found.
    pub(super) fn none_found(&self) -> String {
        format!(
            "no ringway-io was found: there is no socket at {}; if one runs elsewhere, name its \
             socket with --control",
            self.host().places()
        )
    }
}
