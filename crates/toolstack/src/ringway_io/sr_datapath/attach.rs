//! Attach of a disk, which may already exist.

use std::path::Path;

use model::report::{DiskState, DiskStats, Stats};
use model::rpc::{DiskReply, code};
use model::spec::{DiskSpec, PollSpec};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::SrDatapath;
use crate::ringway_io::DatapathError;
use crate::ringway_io::connection_pool::{BUSY_PAUSE, Kind};
use crate::ringway_io::rpc_client::{RpcCall, is, nonsense, typed};
use crate::ringway_io::served_devices::{retry_attach, warn_without_shares};
use crate::ringway_io::spec_store::SpecStore;

/// State of a disk that already exists at an attach.
enum ExistingDisk {
    /// The disk has the same specification.
    Same(Box<DiskStats>),
    /// The disk has another specification.
    Other,
    /// The disk is still being opened.
    Opening,
    /// The disk has been removed meanwhile.
    Gone,
}

impl SrDatapath {
    pub(super) async fn attach(&self, spec: &DiskSpec) -> Result<DiskReply, DatapathError> {
        let method = "disk.attach";
        let mut params = serde_json::to_value(spec).map_err(|error| nonsense(method, error))?;
        let until = Instant::now() + Kind::Step.deadline();
        let note = |specs: &mut SpecStore<DiskSpec>, answer: &Result<Value, DatapathError>| {
            if answer.is_ok() {
                specs.put(spec.clone());
            }
        };
        loop {
            let rpc_call = RpcCall { until, ..RpcCall::step(&spec.id, method, params.clone()) };
            let refused = match self.rpc_client.call(rpc_call, note).await {
                Ok(reply) => return typed(method, reply),
                Err(refused) if is(&refused, code::WRONG_STATE) => refused,
                Err(refused) if retry_attach(&refused, &mut params) => continue,
                Err(error) => return Err(error),
            };
            match self.there(spec).await? {
                ExistingDisk::Same(disk) => match self.adapt(spec, *disk).await {
                    // The worker that reported the disk died before it preserved it.
                    Err(error) if is(&error, code::NO_SUCH_DISK) && Instant::now() < until => {}
                    adapted => return adapted,
                },
                ExistingDisk::Opening if Instant::now() < until => sleep(BUSY_PAUSE).await,
                ExistingDisk::Gone if Instant::now() < until => {}
                _ => return Err(refused),
            }
        }
    }

    /// Compares the existing disk with the requested one.
    async fn there(&self, spec: &DiskSpec) -> Result<ExistingDisk, DatapathError> {
        let reply = match self.rpc_client.short("stats", json!({ "id": spec.id })).await {
            Ok(reply) => reply,
            Err(error) if is(&error, code::NO_SUCH_DISK) => return Ok(ExistingDisk::Gone),
            Err(error) => return Err(error),
        };
        let stats: Stats = typed("stats", reply)?;
        let Some(disk) = stats.disks.into_iter().next() else { return Ok(ExistingDisk::Opening) };
        let stats_match = disk.socket.as_deref().map(Path::new) == spec.socket.as_deref()
            && disk.backend == spec.backend
            && disk.queues == spec.queues
            && disk.cache == spec.cache
            && disk.serial == spec.serial;
        // The stored specification has more fields than the stats.
        let known = self
            .rpc_client
            .supervisor
            .specs()
            .get(&spec.id)
            .is_none_or(|known| is_same(known, spec));
        Ok(if stats_match && known {
            ExistingDisk::Same(Box::new(disk))
        } else {
            ExistingDisk::Other
        })
    }

    /// Adapts an existing disk to the requested settings.
    async fn adapt(&self, spec: &DiskSpec, disk: DiskStats) -> Result<DiskReply, DatapathError> {
        self.rpc_client
            .supervisor
            .specs()
            .put(DiskSpec { activate: disk.state != DiskState::Attached, ..spec.clone() });
        if disk.caps != spec.caps {
            self.caps(&spec.id, spec.caps).await?;
        }
        let share = spec.share.unwrap_or_default();
        if disk.share.is_none_or(|present| present.share != share) {
            match self.share(&spec.id, share).await {
                // A new disk would be attached without its share, too.
                Err(error) if is(&error, code::METHOD_NOT_FOUND) => warn_without_shares(&spec.id),
                result => result?,
            }
        }
        self.poll(&spec.id, spec.polling()).await?;
        if spec.activate {
            self.activate(&spec.id).await?;
        }
        let DiskStats { id, state, geometry, .. } = disk;
        Ok(DiskReply { id, state, geometry, notes: Vec::new() })
    }
}

/// Returns whether two specifications describe the same disk, without the values that can change
/// while it is served.
fn is_same(one: &DiskSpec, other: &DiskSpec) -> bool {
    let fixed = |spec: &DiskSpec| {
        let changing = DiskSpec { activate: true, caps: None, share: None, ..spec.clone() };
        // A served disk keeps the block size that its guest knows.
        let spec = DiskSpec { block_size: None, ..changing };
        spec.with_polling(PollSpec::default())
    };
    fixed(one) == fixed(other)
}
