//! Why a step failed.

use std::time::Duration;

use crate::hv::HvError;
use crate::net::NetError;
use crate::ringway_io::DatapathError;
use crate::sr::SrError;

/// Why a step failed. The message of one that comes from a driver is the driver's.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// It did not end in time.
    #[error("did not end within {} s", .after.as_secs())]
    Late {
        /// How long was waited.
        after: Duration,
    },
    /// The SR refused.
    #[error(transparent)]
    Sr(#[from] SrError),
    /// The datapath refused.
    #[error(transparent)]
    Io(#[from] DatapathError),
    /// The hypervisor refused.
    #[error(transparent)]
    Hv(#[from] HvError),
    /// The host's network refused.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The host has too little memory.
    #[error("{needed} bytes of memory are needed, {available} are available")]
    Memory {
        /// Bytes that the machine takes.
        needed: u64,
        /// Bytes that the host can give.
        available: u64,
    },
    /// Nobody here can do it.
    #[error("{0}")]
    NoDriver(String),
}
