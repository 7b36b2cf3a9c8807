//! What the interfaces of all guests are plugged into.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use model::nic::{NicLimits, NicSpec};
use model::report::Stats;
use model::rpc::code;
use serde_json::{Value, json};

use super::DatapathError;
use super::rpc_client::{RpcCall, RpcClient, gone_is_done, is, nonsense, task, typed};
use super::served_devices::{DatapathOwner, SwitchNic};
use super::spec_store::SpecStore;
use super::supervisor::{IoLaunch, Supervisor};
use crate::boxed_future::BoxFuture;
use crate::machines;

/// Serves NICs, each in a network. A call whose goal is reached does nothing and ends well; NICs
/// outlive the daemon.
///
/// A network is there from its first NIC to its last. Whoever calls sees to it that NICs of one
/// network come and go one after the other.
pub trait Switch: fmt::Debug + Send + Sync {
    /// Makes a NIC that listens at its socket, and brings the host to its network by this TAP device. One
    /// that is there already with the same spec is left as it is. The MTU counts for the first NIC of a
    /// network; others get that of the network.
    fn attach<'a>(
        &'a self,
        nic: &'a NicSpec,
        uplink: &'a str,
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Has a NIC do what it may from now on. One that is not there gets its limits when it comes.
    fn limit<'a>(
        &'a self,
        id: &'a str,
        limits: &'a NicLimits,
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Removes the NIC and its socket, and its network if it was the last there.
    fn detach<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// What is there; nothing while nobody serves.
    fn stats(&self) -> BoxFuture<'_, Result<Option<Stats>, DatapathError>>;
}

/// By one `ringway-io` for all networks of the host: interfaces of one network are on one switch.
#[derive(Clone, Debug)]
pub struct IoSwitch {
    rpc_client: RpcClient<SwitchNic>,
}

impl IoSwitch {
    /// The one whose sockets are in a folder of `run`. One that runs there already is found when it
    /// is asked for.
    ///
    /// # Errors
    /// [`DatapathError::SrDirectory`].
    pub fn new(run: &Path, launch: IoLaunch) -> Result<Self, DatapathError> {
        let folder = machines::ports(run);
        let supervisor = Supervisor::new(DatapathOwner::Networks, folder.clone(), Arc::new(launch));
        let supervisor = supervisor.map_err(|source| DatapathError::Folder { folder, source })?;
        Ok(Self { rpc_client: RpcClient { supervisor } })
    }

    async fn attach(&self, mut port: SwitchNic) -> Result<(), DatapathError> {
        let stats = self.stats().await?;
        let networks = stats.map(|stats| stats.networks).unwrap_or_default();
        if let Some(there) = networks.iter().find(|one| one.name == port.nic.network) {
            port.nic.mtu = Some(there.mtu);
        }
        let write = |method| move |error| nonsense(method, error);
        let nic = serde_json::to_value(&port.nic).map_err(write("nic.attach"))?;
        let uplink = port.uplink().map_err(write("network.uplink"))?;
        let note = |specs: &mut SpecStore<SwitchNic>, answer: &Result<Value, DatapathError>| {
            if answer.is_ok() {
                specs.put(port.clone());
            }
        };
        let id = port.nic.id.as_str();
        self.rpc_client.call(RpcCall::step(id, "nic.attach", nic), note).await?;
        self.rpc_client.call(RpcCall::step(id, "network.uplink", uplink), |_, _| ()).await.map(drop)
    }

    async fn limit(&self, id: &str, limits: NicLimits) -> Result<(), DatapathError> {
        let params = json!({ "id": id, "limits": limits });
        let change = |port: &mut SwitchNic| port.nic = port.nic.clone().with_limits(limits.clone());
        match self.rpc_client.set(id, ("nic.limits", params), change).await {
            Err(error) if error.is_not_served() => Ok(()),
            done => done,
        }
    }

    async fn detach(&self, id: &str) -> Result<(), DatapathError> {
        let note = |specs: &mut SpecStore<SwitchNic>, answer: &Result<Value, DatapathError>| {
            match answer {
                Err(error) if !is(error, code::NO_SUCH_NIC) => {}
                _ => specs.remove(id),
            }
        };
        let rpc_call = RpcCall::step(id, "nic.detach", json!({ "id": id }));
        gone_is_done(self.rpc_client.call(rpc_call, note).await, code::NO_SUCH_NIC)
    }

    async fn stats(&self) -> Result<Option<Stats>, DatapathError> {
        match self.rpc_client.short("stats", json!({})).await {
            Ok(stats) => typed("stats", stats).map(Some),
            Err(DatapathError::NotThere { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Switch for IoSwitch {
    fn attach<'a>(
        &'a self,
        nic: &'a NicSpec,
        uplink: &'a str,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, port) =
            (self.clone(), SwitchNic { nic: nic.clone(), uplink: uplink.to_owned() });
        task(async move { this.attach(port).await })
    }

    fn limit<'a>(
        &'a self,
        id: &'a str,
        limits: &'a NicLimits,
    ) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, id, limits) = (self.clone(), id.to_owned(), limits.clone());
        task(async move { this.limit(&id, limits).await })
    }

    fn detach<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>> {
        let (this, id) = (self.clone(), id.to_owned());
        task(async move { this.detach(&id).await })
    }

    fn stats(&self) -> BoxFuture<'_, Result<Option<Stats>, DatapathError>> {
        let this = self.clone();
        task(async move { this.stats().await })
    }
}
