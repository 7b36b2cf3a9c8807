//! [`Datapath`] through a `ringway-io`.

mod attach;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use model::image::{
    ImageConvert, ImageCreate, ImageInfo, ImageQuery, ImageResize, ImageSnapshotCall,
};
use model::image_stream::{ImageCopy, ImageExport, ImageImport, ImageImported};
use model::report::Stats;
use model::rpc::{DiskReply, Replace, Resize, SnapshotDisk, code};
use model::spec::{Backend, Caps, DiskShare, DiskSpec, PollSpec};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::rpc_client::{RpcCall, RpcClient, gone_is_done, is, task, typed};
use super::spec_store::SpecStore;
use super::supervisor::Supervisor;
use super::{Datapath, DatapathError, ExportStream, ImportStream, RpcConnection};
use crate::boxed_future::BoxFuture;

/// Most deaths of workers for which work is begun again. The work itself may be what kills them.
const MAX_DEATHS: usize = 4;
/// Interval between two reports of the progress of a copy.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Datapath of one SR.
#[derive(Clone, Debug)]
pub(super) struct SrDatapath {
    rpc_client: RpcClient<DiskSpec>,
    /// Whether the stored backends are those of the disks.
    corrected: Arc<AtomicBool>,
}

impl SrDatapath {
    pub(super) fn new(supervisor: Arc<Supervisor<DiskSpec>>) -> Self {
        Self { rpc_client: RpcClient { supervisor }, corrected: Arc::default() }
    }

    /// Returns the supervisor of its `ringway-io`.
    pub(super) fn supervisor(&self) -> Arc<Supervisor<DiskSpec>> {
        Arc::clone(&self.rpc_client.supervisor)
    }

    /// Ends the `ringway-io`.
    pub(super) async fn end(&self) -> Result<(), DatapathError> {
        self.rpc_client.supervisor.end().await
    }

    /// Stores the backends that the disks have, once. An earlier daemon may have ended between a
    /// snapshot and its storing.
    fn correct_backends(&self, stats: &Stats) {
        if self.corrected.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut specs = self.rpc_client.supervisor.specs();
        for disk in &stats.disks {
            specs.change(&disk.id, |spec| spec.backend = disk.backend.clone());
        }
    }

    async fn activate(&self, id: &str) -> Result<(), DatapathError> {
        let ask = ("disk.activate", json!({ "id": id }));
        self.rpc_client.step(id, ask, |spec| spec.activate = true).await.map(drop)
    }

    async fn deactivate(&self, id: &str) -> Result<(), DatapathError> {
        let ask = ("disk.deactivate", json!({ "id": id }));
        gone_is_done(
            self.rpc_client.step(id, ask, |spec| spec.activate = false).await,
            code::NO_SUCH_DISK,
        )
    }

    async fn detach(&self, id: &str) -> Result<(), DatapathError> {
        let note =
            |specs: &mut SpecStore<DiskSpec>, answer: &Result<Value, DatapathError>| match answer {
                Err(error) if !is(error, code::NO_SUCH_DISK) => {}
                _ => specs.remove(id),
            };
        let outcome =
            self.rpc_client.call(RpcCall::step(id, "disk.detach", json!({ "id": id })), note).await;
        if let Err(error) = &outcome
            && is(error, code::FAILED)
        {
            // A failed flush is reported once, but the disk is removed all the same.
            let query = RpcCall::step(id, "stats", json!({ "id": id }));
            let gone = |specs: &mut SpecStore<DiskSpec>, answer: &Result<Value, DatapathError>| {
                match answer {
                    Err(error) if is(error, code::NO_SUCH_DISK) => specs.remove(id),
                    _ => {}
                }
            };
            // The failure is the answer, whatever this query returns.
            let _answer = self.rpc_client.call(query, gone).await;
        }
        gone_is_done(outcome, code::NO_SUCH_DISK)
    }

    async fn resize(&self, id: &str, size: Option<u64>) -> Result<u64, DatapathError> {
        let resize = json!(Resize { id: id.into(), size });
        let reply = self.rpc_client.step(id, ("disk.resize", resize), |_| ()).await?;
        let reply: DiskReply = typed("disk.resize", reply)?;
        Ok(reply.geometry.size_bytes)
    }

    /// Stores the new backend of each disk, as the datapath builds it: the new image over the
    /// present backend.
    async fn snapshot(&self, disks: Vec<SnapshotDisk>) -> Result<(), DatapathError> {
        let method = "disk.snapshot";
        let params = json!({ "disks": disks });
        let note = |specs: &mut SpecStore<DiskSpec>, answer: &Result<Value, DatapathError>| {
            for SnapshotDisk { id, file, format } in disks.iter().filter(|_| answer.is_ok()) {
                specs.change(id, |spec| {
                    let (file, below) = (file.clone().into(), Some(spec.backend.clone()));
                    let over = Backend::image_over(*format, file, below);
                    spec.backend = over.unwrap_or_else(|| spec.backend.clone());
                });
            }
        };
        self.rpc_client.call(RpcCall::of_all(method, params), note).await.map(drop)
    }

    async fn replace(&self, replace: &Replace) -> Result<(), DatapathError> {
        let Replace { id, backend, .. } = replace;
        let set = |specs: &mut SpecStore<DiskSpec>| {
            specs.change(id, |spec| spec.backend = backend.clone());
        };
        let note = |specs: &mut SpecStore<DiskSpec>, answer: &Result<Value, DatapathError>| {
            if answer.is_ok() {
                set(specs);
            }
        };
        let outcome =
            self.rpc_client.call(RpcCall::step(id, "disk.replace", json!(replace)), note).await;
        let Err(error) = outcome else { return Ok(()) };
        // A worker that died after the replacement did not answer, and the disk has no longer the
        // backend that the repeated call expects.
        let has_it = |stats: &Stats| {
            stats.disks.iter().any(|disk| disk.id == *id && disk.backend == *backend)
        };
        let stats = |answer: &Value| typed::<Stats>("stats", answer.clone()).ok();
        let note = |specs: &mut SpecStore<DiskSpec>, answer: &Result<Value, DatapathError>| {
            if answer.as_ref().is_ok_and(|answer| stats(answer).is_some_and(|one| has_it(&one))) {
                set(specs);
            }
        };
        let query = RpcCall::step(id, "stats", json!({ "id": id }));
        let answer = self.rpc_client.call(query, note).await;
        let is_done = answer.is_ok_and(|answer| stats(&answer).is_some_and(|one| has_it(&one)));
        if is_done { Ok(()) } else { Err(error) }
    }

    async fn create_layer(&self, layer: ImageSnapshotCall) -> Result<(), DatapathError> {
        let rpc_call = RpcCall::of_all("image.snapshot", json!(layer));
        self.rpc_client.call(rpc_call, |_, _| ()).await.map(drop)
    }

    async fn create_image(&self, create: ImageCreate) -> Result<(), DatapathError> {
        let rpc_call = RpcCall::of_all("image.create", json!(create));
        self.rpc_client.call(rpc_call, |_, _| ()).await.map(drop)
    }

    async fn image_info(&self, query: ImageQuery) -> Result<ImageInfo, DatapathError> {
        let rpc_call = RpcCall::of_all("image.info", json!(query));
        typed("image.info", self.rpc_client.call(rpc_call, |_, _| ()).await?)
    }

    async fn resize_image(&self, resize: ImageResize) -> Result<(), DatapathError> {
        let rpc_call = RpcCall::of_all("image.resize", json!(resize));
        self.rpc_client.call(rpc_call, |_, _| ()).await.map(drop)
    }

    /// Connects for a call whose answer takes long, and that ends with its connection.
    async fn carrier(&self) -> Result<RpcConnection, DatapathError> {
        RpcConnection::connect(self.rpc_client.supervisor.control()).await
    }

    /// Carries out work with a worker, and begins it again if the worker dies. New images appear when
    /// they are complete, and streams have not begun yet, so nothing is left of the first attempt.
    async fn begun<R, F>(&self, mut attempt: impl FnMut() -> F) -> Result<R, DatapathError>
    where
        F: Future<Output = Result<R, DatapathError>>,
    {
        let supervisor = &self.rpc_client.supervisor;
        supervisor.ready(true).await?;
        let mut deaths = 0..MAX_DEATHS;
        loop {
            match attempt().await {
                // The successor of the worker accepts the next connection.
                Err(DatapathError::Broken { .. }) if deaths.next().is_some() => {}
                Err(gone @ DatapathError::NotThere { .. }) if deaths.next().is_some() => {
                    if !supervisor.ensure_running(true).await? {
                        return Err(gone);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Waits for a call that makes the image at `path`, and reports how far it is.
    async fn observe<R>(
        &self,
        path: &Path,
        call: impl Future<Output = Result<R, DatapathError>>,
        progress: &(dyn Fn(f64) + Send + Sync),
    ) -> Result<R, DatapathError> {
        let mut observer = self.carrier().await?;
        tokio::pin!(call);
        loop {
            // No event reports the progress.
            match timeout(PROGRESS_INTERVAL, &mut call).await {
                Ok(made) => return made,
                Err(_) => {
                    let reply = observer.image_progress().await?;
                    let of = reply.converting.iter().find(|one| one.path == path);
                    if let Some(of) = of {
                        progress(of.done_bytes as f64 / of.total_bytes.max(1) as f64);
                    }
                }
            }
        }
    }

    async fn caps(&self, id: &str, caps: Option<Caps>) -> Result<(), DatapathError> {
        let ask = ("disk.caps", json!({ "id": id, "caps": caps }));
        self.rpc_client.set(id, ask, |spec| spec.caps = caps).await
    }

    async fn share(&self, id: &str, share: DiskShare) -> Result<(), DatapathError> {
        let DiskShare { weight, floor_iops, floor_bytes } = share;
        let params = json!({
            "id": id,
            "weight": weight,
            "floor_iops": floor_iops,
            "floor_bytes": floor_bytes,
        });
        let stored = Some(share).filter(|share| *share != DiskShare::default());
        let ask = ("disk.weight", params);
        match self.rpc_client.set(id, ask, |spec| spec.share = stored).await {
            // A `ringway-io` of an earlier version has no shares, so the default is in effect.
            Err(error) if stored.is_none() && is(&error, code::METHOD_NOT_FOUND) => Ok(()),
            result => result,
        }
    }

    async fn poll(&self, id: &str, polling: PollSpec) -> Result<(), DatapathError> {
        let PollSpec { poll, poll_max_us, poll_idle_threshold } = polling;
        // Send unset values too: they reset the disk to the process's defaults.
        let params = json!({
            "id": id,
            "poll": poll,
            "poll_max_us": poll_max_us,
            "poll_idle_threshold": poll_idle_threshold,
        });
        let change = |spec: &mut DiskSpec| *spec = spec.clone().with_polling(polling);
        self.rpc_client.set(id, ("disk.poll", params), change).await
    }

    async fn stats(&self) -> Result<Option<Stats>, DatapathError> {
        match self.rpc_client.short("stats", json!({})).await {
            Ok(stats) => {
                let stats = typed("stats", stats)?;
                self.correct_backends(&stats);
                Ok(Some(stats))
            }
            Err(DatapathError::NotThere { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Datapath for SrDatapath {
    fn attach<'a>(&'a self, spec: &'a DiskSpec) -> BoxFuture<'a, Result<DiskReply, DatapathError>> {
        let (this, spec) = (self.clone(), spec.clone());
        task(async move { this.attach(&spec).await })
    }

    fn activate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, id) = (self.clone(), id.to_owned());
        task(async move { this.activate(&id).await })
    }

    fn deactivate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, id) = (self.clone(), id.to_owned());
        task(async move { this.deactivate(&id).await })
    }

    fn detach<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, id) = (self.clone(), id.to_owned());
        task(async move { this.detach(&id).await })
    }

    fn resize<'a>(
        &'a self,
        id: &'a str,
        bytes: Option<u64>,
    ) -> BoxFuture<'a, Result<u64, DatapathError>> {
        let (this, id) = (self.clone(), id.to_owned());
        task(async move { this.resize(&id, bytes).await })
    }

    fn resize_image<'a>(
        &'a self,
        resize: &'a ImageResize,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, resize) = (self.clone(), resize.clone());
        task(async move { this.resize_image(resize).await })
    }

    fn snapshot<'a>(
        &'a self,
        disks: &'a [SnapshotDisk],
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, disks) = (self.clone(), disks.to_vec());
        task(async move { this.snapshot(disks).await })
    }

    fn replace<'a>(&'a self, replace: &'a Replace) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, replace) = (self.clone(), replace.clone());
        task(async move { this.replace(&replace).await })
    }

    fn create_image<'a>(
        &'a self,
        create: &'a ImageCreate,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, create) = (self.clone(), create.clone());
        task(async move { this.create_image(create).await })
    }

    fn image_info<'a>(
        &'a self,
        query: &'a ImageQuery,
    ) -> BoxFuture<'a, Result<ImageInfo, DatapathError>> {
        let (this, query) = (self.clone(), query.clone());
        task(async move { this.image_info(query).await })
    }

    fn create_layer<'a>(
        &'a self,
        layer: &'a ImageSnapshotCall,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, layer) = (self.clone(), layer.clone());
        task(async move { this.create_layer(layer).await })
    }

    fn convert<'a>(
        &'a self,
        convert: &'a ImageConvert,
        progress: &'a (dyn Fn(f64) + Send + Sync),
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        let convert_once = move || async move {
            let mut carrier = self.carrier().await?;
            let call = carrier.image_convert(convert);
            self.observe(&convert.path, call, progress).await.map(drop)
        };
        Box::pin(self.begun(convert_once))
    }

    fn copy<'a>(
        &'a self,
        copy: &'a ImageCopy,
        progress: &'a (dyn Fn(f64) + Send + Sync),
    ) -> BoxFuture<'a, Result<ImageImported, DatapathError>> {
        let copy_once = move || async move {
            let mut carrier = self.carrier().await?;
            let call = carrier.image_copy(copy);
            self.observe(&copy.path, call, progress).await
        };
        Box::pin(self.begun(copy_once))
    }

    fn export<'a>(
        &'a self,
        export: &'a ImageExport,
    ) -> BoxFuture<'a, Result<ExportStream, DatapathError>> {
        Box::pin(async move {
            let control = self.rpc_client.supervisor.control();
            self.begun(|| ExportStream::open(control, export.clone())).await
        })
    }

    fn import<'a>(
        &'a self,
        import: &'a ImageImport,
    ) -> BoxFuture<'a, Result<ImportStream, DatapathError>> {
        Box::pin(async move {
            let control = self.rpc_client.supervisor.control();
            self.begun(|| ImportStream::open(control, import.clone())).await
        })
    }

    fn caps<'a>(&'a self, id: &'a str, caps: &'a Caps) -> BoxFuture<'a, Result<(), DatapathError>> {
        let caps = (*caps != Caps::default()).then_some(*caps);
        let (this, id) = (self.clone(), id.to_owned());
        task(async move { this.caps(&id, caps).await })
    }

    fn share<'a>(
        &'a self,
        id: &'a str,
        share: &'a DiskShare,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, id, share) = (self.clone(), id.to_owned(), *share);
        task(async move { this.share(&id, share).await })
    }

    fn poll<'a>(
        &'a self,
        id: &'a str,
        poll: &'a PollSpec,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, id, poll) = (self.clone(), id.to_owned(), *poll);
        task(async move { this.poll(&id, poll).await })
    }

    fn stats(&self) -> BoxFuture<'_, Result<Option<Stats>, DatapathError>> {
        let this = self.clone();
        task(async move { this.stats().await })
    }
}
