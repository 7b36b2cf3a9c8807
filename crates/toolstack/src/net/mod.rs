//! Networks of the host: a bridge each, and a TAP device for each interface that is in use.
//!
//! A call whose goal is reached does nothing and ends well.

mod bridge;
mod host;
mod ip;
pub mod sim;
mod tap;

use std::fmt;

use crate::fut::Fut;
pub use host::HostNet;

/// Why the host's network did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A command did not end in time.
    #[error("{0} did not end in time")]
    Late(String),
    /// A command failed.
    #[error("{what}: {why}")]
    Refused {
        /// What was tried.
        what: String,
        /// What was said.
        why: String,
    },
}

/// Makes networks. Names of devices have at most 15 bytes.
pub trait Net: fmt::Debug + Send + Sync {
    /// Makes a bridge that is up.
    fn create_bridge<'a>(&'a self, bridge: &'a str, mtu: u32) -> Fut<'a, Result<(), NetError>>;
    /// Removes a bridge.
    fn remove_bridge<'a>(&'a self, bridge: &'a str) -> Fut<'a, Result<(), NetError>>;
    /// Makes a TAP device that is up, in a bridge.
    fn create_tap<'a>(
        &'a self,
        tap: &'a str,
        bridge: &'a str,
        mtu: u32,
    ) -> Fut<'a, Result<(), NetError>>;
    /// Removes a TAP device.
    fn remove_tap<'a>(&'a self, tap: &'a str) -> Fut<'a, Result<(), NetError>>;
    /// The TAP devices that are there, of those that this made.
    fn taps(&self) -> Fut<'_, Result<Vec<String>, NetError>>;
}
