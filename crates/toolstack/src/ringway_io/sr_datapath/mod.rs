//! [`Datapath`] through a `ringway-io`.

mod attach;

use std::sync::Arc;

use model::report::Stats;
use model::rpc::{DiskReply, code};
use model::spec::{Caps, DiskShare, DiskSpec, PollSpec};
use serde_json::{Value, json};

use super::rpc_client::{RpcCall, RpcClient, gone_is_done, is, task, typed};
use super::spec_store::SpecStore;
use super::supervisor::Supervisor;
use super::{Datapath, DatapathError};
use crate::boxed_future::BoxFuture;

/// Datapath of one SR.
#[derive(Clone, Debug)]
pub(super) struct SrDatapath {
    rpc_client: RpcClient<DiskSpec>,
}

impl SrDatapath {
    pub(super) fn new(supervisor: Arc<Supervisor<DiskSpec>>) -> Self {
        Self { rpc_client: RpcClient { supervisor } }
    }

    /// Returns the supervisor of its `ringway-io`.
    pub(super) fn supervisor(&self) -> Arc<Supervisor<DiskSpec>> {
        Arc::clone(&self.rpc_client.supervisor)
    }

    /// Ends the `ringway-io`.
    pub(super) async fn end(&self) -> Result<(), DatapathError> {
        self.rpc_client.supervisor.end().await
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

    async fn resize(&self, id: &str) -> Result<u64, DatapathError> {
        let reply = self.rpc_client.step(id, ("disk.resize", json!({ "id": id })), |_| ()).await?;
        let reply: DiskReply = typed("disk.resize", reply)?;
        Ok(reply.geometry.size_bytes)
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
            Ok(stats) => typed("stats", stats).map(Some),
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

    fn resize<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<u64, DatapathError>> {
        let (this, id) = (self.clone(), id.to_owned());
        task(async move { this.resize(&id).await })
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
