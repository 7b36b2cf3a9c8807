//! Processes and clients of `ringway-io`.

mod connection_pool;
mod datapath;
mod datapaths;
mod first_profile;
mod full_follower;
mod host_sockets;
mod image_calls;
mod image_streams;
mod params;
mod private_io;
mod process;
mod rpc_client;
mod rpc_connection;
mod served_devices;
pub mod sim;
mod spec_store;
mod sr_datapath;
mod storage_calls;
mod supervisor;
mod switch;

pub use datapath::Datapath;
pub use datapaths::IoDatapaths;
pub use first_profile::CalibrationExtent;
pub use full_follower::FullDisks;
pub use host_sockets::{HostSockets, USUAL_CONTROL};
pub use image_streams::{ExportStream, ImportStream};
pub use params::params;
pub use private_io::PrivateIo;
pub use process::IoProcess;
pub use rpc_connection::{ATTACH_DEADLINE, CALL_DEADLINE, RpcConnection};
pub use supervisor::IoLaunch;
pub use switch::{IoSwitch, Switch};

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use model::rpc::{RpcError, code};

use crate::format::format_duration;
use crate::json_lines::LineError;
use crate::stderr_tail::format_tail;

/// Error of a `ringway-io`.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// The program could not be started.
    #[error("cannot start {}", program.display())]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The directory of its sockets cannot be used.
    #[error("cannot use {} for the sockets of disks", folder.display())]
    Folder {
        /// Path of the directory.
        folder: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// No process accepts connections on the control socket.
    #[error(
        "no ringway-io answers at {}: start one with `ringway-io --control {}`",
        socket.display(), socket.display()
    )]
    NotThere {
        /// Path of the control socket.
        socket: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The process exited without a request.
    #[error("ringway-io died ({status}){}", format_tail(tail))]
    Died {
        /// Exit status.
        status: ExitStatus,
        /// Last lines on standard error.
        tail: String,
    },
    /// No answer came in time.
    #[error("ringway-io did not answer {what} within {}", format_duration(*deadline))]
    Late {
        /// Method, or other awaited event.
        what: String,
        /// Time waited.
        deadline: Duration,
    },
    /// The connection broke, or received no valid JSON.
    #[error("the answer to {what} could not be read")]
    Broken {
        /// Method of the call.
        what: String,
        /// Error of the connection.
        source: LineError,
    },
    /// The answer is valid JSON, but not an answer to this call.
    #[error("the answer to {what} is invalid: {why}; is the other side a ringway-io?")]
    Nonsense {
        /// Method of the call.
        what: String,
        /// Reason.
        why: String,
    },
    /// The parameters of a call have no JSON form.
    #[error("the parameters of {what} cannot be sent: {why}; rename that file or directory")]
    NoJson {
        /// Method of the call.
        what: String,
        /// Reason.
        why: String,
    },
    /// The process answered with an error.
    #[error("{what} was refused")]
    Refused {
        /// Method of the call.
        what: String,
        /// Error of the answer.
        source: RpcError,
    },
    /// An earlier call was dropped while it was being sent.
    #[error("a call on this connection was interrupted; connect again")]
    Unusable,
}

impl DatapathError {
    /// Returns whether the disk or NIC of the call is not served.
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
