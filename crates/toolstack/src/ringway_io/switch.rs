//! Interface of the switch for the interfaces of all guests.

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

/// Driver that serves NICs, each in a network. A call whose goal is already reached does nothing
/// and succeeds. NICs outlive the daemon.
///
/// A network exists from its first NIC to its last. The caller must attach and detach the NICs of
/// one network one after the other.
pub trait Switch: fmt::Debug + Send + Sync {
    /// Attaches a NIC, which then listens on its socket, and connects the host to its network
    /// through this TAP device.
    ///
    /// Does nothing if the NIC exists with the same specification. The first NIC of a network sets
    /// the MTU, and others get that of the network.
    fn attach<'a>(
        &'a self,
        nic: &'a NicSpec,
        uplink: &'a str,
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Changes the limits of a NIC. If it does not exist, they apply when it is attached.
    fn limit<'a>(
        &'a self,
        id: &'a str,
        limits: &'a NicLimits,
    ) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Removes the NIC and its socket. The last NIC of a network removes the network too.
    fn detach<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), DatapathError>>;
    /// Returns the stats; `None` while no process serves the networks.
    fn stats(&self) -> BoxFuture<'_, Result<Option<Stats>, DatapathError>>;
}

/// Switch by one `ringway-io` for all networks of the host, so that interfaces of one network share
/// a switch.
#[derive(Clone, Debug)]
pub struct IoSwitch {
    rpc_client: RpcClient<SwitchNic>,
}

impl IoSwitch {
    /// Creates the client. Sockets are in a subdirectory of `run`. A running process is discovered
    /// on the first query.
    ///
    /// # Errors
    /// [`DatapathError::Folder`].
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
