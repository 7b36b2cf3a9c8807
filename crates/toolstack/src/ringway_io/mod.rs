//! Starts `ringway-io` and talks to it.

mod connection_pool;
mod datapath;
mod datapaths;
mod params;
mod process;
mod rpc_client;
mod rpc_connection;
mod served_devices;
pub mod sim;
mod spec_store;
mod sr_datapath;
mod supervisor;
mod switch;

pub use datapath::Datapath;
pub use datapaths::IoDatapaths;
pub use params::params;
pub use process::IoProcess;
pub use rpc_connection::{ATTACH_DEADLINE, CALL_DEADLINE, RpcConnection};
pub use supervisor::IoLaunch;
pub use switch::{IoSwitch, Switch};

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use model::rpc::{RpcError, code};

use crate::json_lines::LineError;
use crate::stderr_tail::format_tail;

/// Why `ringway-io` did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// The program could not be started.
    #[error("cannot start {}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The directory of its sockets cannot be had.
    #[error("cannot use {} for the sockets of disks", folder.display())]
    Folder {
        /// The directory.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing accepts on the control socket.
    #[error(
        "no ringway-io answers at {}: start one with `ringway-io --control {}`",
        socket.display(), socket.display()
    )]
    NotThere {
        /// The control socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The process ended although nobody asked it to.
    #[error("ringway-io died ({status}){}", format_tail(tail))]
    Died {
        /// How it ended.
        status: ExitStatus,
        /// Its last lines on standard error.
        tail: String,
    },
    /// No answer came in time.
    #[error("ringway-io did not answer {what} within {}", format_duration(*deadline))]
    Late {
        /// The verb, or what else was awaited.
        what: String,
        /// How long we waited.
        deadline: Duration,
    },
    /// The connection broke, or held what is not JSON.
    #[error("the answer to {what} could not be read")]
    Broken {
        /// The verb.
        what: String,
        /// What happened.
        source: LineError,
    },
    /// The answer is JSON, but not an answer to this call.
    #[error("the answer to {what} is not one: {why}; is the other side a ringway-io?")]
    Nonsense {
        /// The verb.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The process answered with an error.
    #[error("{what} was refused")]
    Refused {
        /// The verb.
        what: String,
        /// Its reason.
        source: RpcError,
    },
    /// An earlier call was cut off while it was being sent.
    #[error("this connection was left in the middle of a call; connect again")]
    Unusable,
}

impl DatapathError {
    /// Nobody serves the disk or NIC that it is about.
    pub fn is_not_served(&self) -> bool {
        match self {
            Self::NotThere { .. } => true,
            Self::Refused { source, .. } => {
                matches!(source.code, code::NO_SUCH_DISK | code::NO_SUCH_NIC)
            }
            _ => false,
        }
    }
}

/// A duration as people write it.
pub(crate) fn format_duration(duration: Duration) -> String {
    if duration.subsec_millis() == 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{} ms", duration.as_millis())
    }
}
