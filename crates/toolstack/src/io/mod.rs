//! Starts `ringway-io` and talks to it.

mod client;
mod datapath;
mod datapaths;
mod items;
mod keep;
mod line;
mod params;
mod pool;
mod process;
mod served;
pub mod sim;
mod specs;
mod switch;

pub use client::{ATTACH_DEADLINE, CALL_DEADLINE, Client};
pub use datapath::Datapath;
pub use datapaths::IoDatapaths;
pub use keep::IoLaunch;
pub use params::params;
pub use process::IoProcess;
pub use switch::{IoSwitch, Switch};

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use model::rpc::{RpcError, code};

use crate::lines::LineError;
use crate::tail::quoted;

/// Why `ringway-io` did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
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
    #[error("ringway-io died ({status}){}", quoted(tail))]
    Died {
        /// How it ended.
        status: ExitStatus,
        /// Its last lines on standard error.
        tail: String,
    },
    /// No answer came in time.
    #[error("ringway-io did not answer {what} within {}", humane(*deadline))]
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

impl IoError {
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
pub(crate) fn humane(duration: Duration) -> String {
    if duration.subsec_millis() == 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{} ms", duration.as_millis())
    }
}
