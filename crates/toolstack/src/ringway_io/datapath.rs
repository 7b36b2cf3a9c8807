//! Interface of a datapath, which serves the disks of one SR to guests.

use std::fmt;

use model::image::{
    ImageConvert, ImageCreate, ImageInfo, ImageQuery, ImageResize, ImageSnapshotCall,
};
use model::image_stream::{ImageCopy, ImageExport, ImageImport, ImageImported};
use model::report::Stats;
use model::rpc::{DiskReply, Replace, SnapshotDisk};
use model::spec::{Caps, DiskShare, DiskSpec, PollSpec};

use super::{DatapathError, ExportStream, ImportStream};
use crate::boxed_future::BoxFuture;

/// Driver that serves disks. A call whose goal is already reached does nothing and succeeds. Disks
/// outlive the daemon.
pub trait Datapath: fmt::Debug + Send + Sync {
    /// Attaches a disk, which then listens on its socket. Does nothing if the disk exists with the
    /// same specification.
    fn attach<'a>(&'a self, spec: &'a DiskSpec) -> BoxFuture<'a, Result<DiskReply, DatapathError>>;
    /// Takes the disk's lock and serves it.
    fn activate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Stops serving and releases the lock.
    fn deactivate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Removes the disk and its socket.
    fn detach<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Grows a disk to this size in bytes, or applies the size to which its storage has grown.
    /// Returns the size in bytes.
    fn resize<'a>(
        &'a self,
        id: &'a str,
        bytes: Option<u64>,
    ) -> BoxFuture<'a, Result<u64, DatapathError>>;
    /// Grows an image that no program writes.
    fn resize_image<'a>(
        &'a self,
        resize: &'a ImageResize,
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Puts a new image over each of these disks, all at one instant.
    fn snapshot<'a>(
        &'a self,
        disks: &'a [SnapshotDisk],
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Replaces the backend of a disk by another one with the same content.
    fn replace<'a>(&'a self, replace: &'a Replace) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Creates an image, which does not exist yet.
    fn create_image<'a>(
        &'a self,
        create: &'a ImageCreate,
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Returns the properties of an image, which opens as the stated format.
    fn image_info<'a>(
        &'a self,
        query: &'a ImageQuery,
    ) -> BoxFuture<'a, Result<ImageInfo, DatapathError>>;
    /// Creates an image over another one that no program writes.
    fn create_layer<'a>(
        &'a self,
        layer: &'a ImageSnapshotCall,
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Copies a disk to a new image file. Reports the part that is done now and then. The copy ends
    /// when the future is dropped.
    fn convert<'a>(
        &'a self,
        convert: &'a ImageConvert,
        progress: &'a (dyn Fn(f64) + Send + Sync),
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Copies a disk, or what differs from another one, to a new image of a third disk. Reports the
    /// part that is done now and then. The copy ends when the future is dropped.
    fn copy<'a>(
        &'a self,
        copy: &'a ImageCopy,
        progress: &'a (dyn Fn(f64) + Send + Sync),
    ) -> BoxFuture<'a, Result<ImageImported, DatapathError>>;
    /// Begins to read a disk as a stream. The field `stream` is filled in.
    fn export<'a>(
        &'a self,
        export: &'a ImageExport,
    ) -> BoxFuture<'a, Result<ExportStream, DatapathError>>;
    /// Begins to make an image of a stream. The field `stream` is filled in.
    fn import<'a>(
        &'a self,
        import: &'a ImageImport,
    ) -> BoxFuture<'a, Result<ImportStream, DatapathError>>;
    /// Changes the caps of a disk.
    fn caps<'a>(&'a self, id: &'a str, caps: &'a Caps) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Changes the share of a disk in its storage.
    fn share<'a>(
        &'a self,
        id: &'a str,
        share: &'a DiskShare,
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Changes the polling of a disk's queues.
    fn poll<'a>(
        &'a self,
        id: &'a str,
        poll: &'a PollSpec,
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Returns the stats of all its disks; `None` if no process serves the SR.
    fn stats(&self) -> BoxFuture<'_, Result<Option<Stats>, DatapathError>>;
}
