//! What the interfaces of all guests are plugged into.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use model::nic::{NicLimits, NicSpec};
use model::report::Stats;
use model::rpc::code;
use serde_json::{Value, json};

use super::IoError;
use super::items::{Owner, Port};
use super::keep::{IoLaunch, Keep};
use super::line::{Ask, Line, gone_is_done, is, nonsense, task, typed};
use super::specs::Specs;
use crate::fut::Fut;
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
    fn attach<'a>(&'a self, nic: &'a NicSpec, uplink: &'a str) -> Fut<'a, Result<(), IoError>>;
    /// Has a NIC do what it may from now on. One that is not there gets its limits when it comes.
    fn limit<'a>(&'a self, id: &'a str, limits: &'a NicLimits) -> Fut<'a, Result<(), IoError>>;
    /// Removes the NIC and its socket, and its network if it was the last there.
    fn detach<'a>(&'a self, id: &'a str) -> Fut<'a, Result<(), IoError>>;
    /// What is there; nothing while nobody serves.
    fn stats(&self) -> Fut<'_, Result<Option<Stats>, IoError>>;
}

/// By one `ringway-io` for all networks of the host: interfaces of one network are on one switch.
#[derive(Clone, Debug)]
pub struct IoSwitch {
    line: Line<Port>,
}

impl IoSwitch {
    /// The one whose sockets are in a folder of `run`. One that runs there already is found when it
    /// is asked for.
    ///
    /// # Errors
    /// [`IoError::Folder`].
    pub fn new(run: &Path, launch: IoLaunch) -> Result<Self, IoError> {
        let folder = machines::ports(run);
        let keep = Keep::new(Owner::Networks, folder.clone(), Arc::new(launch));
        let keep = keep.map_err(|source| IoError::Folder { folder, source })?;
        Ok(Self { line: Line { keep } })
    }

    async fn attach(&self, mut port: Port) -> Result<(), IoError> {
        let stats = self.stats().await?;
        let networks = stats.map(|stats| stats.networks).unwrap_or_default();
        if let Some(there) = networks.iter().find(|one| one.name == port.nic.network) {
            port.nic.mtu = Some(there.mtu);
        }
        let write = |method| move |error| nonsense(method, error);
        let nic = serde_json::to_value(&port.nic).map_err(write("nic.attach"))?;
        let uplink = port.uplink().map_err(write("network.uplink"))?;
        let note = |specs: &mut Specs<Port>, answer: &Result<Value, IoError>| {
            if answer.is_ok() {
                specs.put(port.clone());
            }
        };
        let id = port.nic.id.as_str();
        self.line.call(Ask::step(id, "nic.attach", nic), note).await?;
        self.line.call(Ask::step(id, "network.uplink", uplink), |_, _| ()).await.map(drop)
    }

    async fn limit(&self, id: &str, limits: NicLimits) -> Result<(), IoError> {
        let params = json!({ "id": id, "limits": limits });
        let change = |port: &mut Port| port.nic = port.nic.clone().with_limits(limits.clone());
        match self.line.set(id, ("nic.limits", params), change).await {
            Err(error) if error.is_not_served() => Ok(()),
            done => done,
        }
    }

    async fn detach(&self, id: &str) -> Result<(), IoError> {
        let note = |specs: &mut Specs<Port>, answer: &Result<Value, IoError>| match answer {
            Err(error) if !is(error, code::NO_SUCH_NIC) => {}
            _ => specs.remove(id),
        };
        let ask = Ask::step(id, "nic.detach", json!({ "id": id }));
        gone_is_done(self.line.call(ask, note).await, code::NO_SUCH_NIC)
    }

    async fn stats(&self) -> Result<Option<Stats>, IoError> {
        match self.line.short("stats", json!({})).await {
            Ok(stats) => typed("stats", stats).map(Some),
            Err(IoError::NotThere { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Switch for IoSwitch {
    fn attach<'a>(&'a self, nic: &'a NicSpec, uplink: &'a str) -> Fut<'a, Result<(), IoError>> {
        let (this, port) = (self.clone(), Port { nic: nic.clone(), uplink: uplink.to_owned() });
        task(async move { this.attach(port).await })
    }

    fn limit<'a>(&'a self, id: &'a str, limits: &'a NicLimits) -> Fut<'a, Result<(), IoError>> {
        let (this, id, limits) = (self.clone(), id.to_owned(), limits.clone());
        task(async move { this.limit(&id, limits).await })
    }

    fn detach<'a>(&'a self, id: &'a str) -> Fut<'a, Result<(), IoError>> {
        let (this, id) = (self.clone(), id.to_owned());
        task(async move { this.detach(&id).await })
    }

    fn stats(&self) -> Fut<'_, Result<Option<Stats>, IoError>> {
        let this = self.clone();
        task(async move { this.stats().await })
    }
}
