//! What serves the disks of one SR to guests.

use std::fmt;

use model::report::Stats;
use model::rpc::DiskReply;
use model::spec::{Caps, DiskSpec, PollSpec};

use super::DatapathError;
use crate::boxed_future::BoxFuture;

/// Serves disks. A call whose goal is reached does nothing and ends well; disks outlive the
/// daemon.
pub trait Datapath: fmt::Debug + Send + Sync {
    /// Makes a disk that listens at its socket. One that is there already with the same spec is
    /// left as it is.
    fn attach<'a>(&'a self, spec: &'a DiskSpec) -> BoxFuture<'a, Result<DiskReply, DatapathError>>;
    /// Takes the disk's lock and serves it.
    fn activate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Ends serving and gives the lock back.
    fn deactivate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Removes the disk and its socket.
    fn detach<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Sees that the backend has grown; the size now, in bytes.
    fn resize<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<u64, DatapathError>>;
    /// Changes the limits of a disk.
    fn caps<'a>(&'a self, id: &'a str, caps: &'a Caps) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Changes how a disk's queues wait.
    fn poll<'a>(
        &'a self,
        id: &'a str,
        poll: &'a PollSpec,
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// What all its disks do; an SR of which nothing is served has none.
    fn stats(&self) -> BoxFuture<'_, Result<Option<Stats>, DatapathError>>;
}
