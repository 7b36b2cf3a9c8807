//! Errors of plan steps.

use crate::exec::StepTimeout;
use crate::hv::HvError;
use crate::net::NetError;
use crate::ringway_io::DatapathError;
use crate::sr::SrError;

/// Error of a step. An error of a driver has the driver's message.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The step did not end in time.
    #[error(transparent)]
    Late(#[from] StepTimeout),
    /// The SR driver returned an error.
    #[error(transparent)]
    Sr(#[from] SrError),
    /// The datapath returned an error.
    #[error(transparent)]
    Io(#[from] DatapathError),
    /// The hypervisor returned an error.
    #[error(transparent)]
    Hv(#[from] HvError),
    /// The network driver returned an error.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The host has too little memory.
    #[error("{needed} bytes of memory are needed, {available} are available")]
    Memory {
        /// Bytes that the machine needs.
        needed: u64,
        /// Bytes that the host can give.
        available: u64,
    },
    /// No driver can execute the step.
    #[error("{0}")]
    NoDriver(String),
}
