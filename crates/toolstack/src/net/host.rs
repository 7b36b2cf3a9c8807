//! Networks of this host, by `ip`.

use std::net::IpAddr;
use std::path::PathBuf;

use model::id::VifId;
use tokio::sync::{mpsc, watch};

use super::address_snoop::AddressSnooper;
use super::{HostAddress, HostNic, Net, NetError, bridge, host_address, host_nic, rtnetlink, tap};
use crate::boxed_future::BoxFuture;

/// Driver of networks on this host.
#[derive(Debug)]
pub struct HostNet {
    ip: PathBuf,
    /// Alias that marks devices of this instance, so that two instances on a host do not use each
    /// other's.
    alias: String,
    address_snooper: AddressSnooper,
}

impl HostNet {
    /// Creates a driver that runs this `ip` for the instance `instance`.
    pub fn new(ip: PathBuf, instance: &str) -> Self {
        Self {
            ip,
            alias: format!("ringway {instance}"),
            address_snooper: AddressSnooper::default(),
        }
    }
}

impl Net for HostNet {
    fn create_bridge<'a>(
        &'a self,
        bridge: &'a str,
        mtu: u32,
    ) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(bridge::create(&self.ip, bridge, mtu, &self.alias))
    }

    fn check_bridge(&self, bridge: &str) -> Result<(), NetError> {
        bridge::check(bridge)
    }

    fn remove_bridge<'a>(&'a self, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(bridge::remove(&self.ip, bridge, &self.alias))
    }

    fn create_tap<'a>(
        &'a self,
        tap: &'a str,
        bridge: &'a str,
        mtu: u32,
    ) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(tap::create(&self.ip, tap, bridge, mtu, &self.alias))
    }

    fn remove_tap<'a>(&'a self, tap: &'a str) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(tap::remove(&self.ip, tap))
    }

    fn cards(&self) -> BoxFuture<'_, Result<Vec<HostNic>, NetError>> {
        Box::pin(host_nic::all())
    }

    fn with_address(
        &self,
        address: IpAddr,
    ) -> BoxFuture<'_, Result<Option<HostAddress>, NetError>> {
        Box::pin(host_address::of(address))
    }

    fn changes(&self) -> watch::Receiver<()> {
        rtnetlink::subscribe()
    }

    fn join<'a>(&'a self, card: &'a str, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(host_nic::join(&self.ip, card, bridge))
    }

    fn leave<'a>(&'a self, card: &'a str, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(host_nic::leave(&self.ip, card, bridge))
    }

    fn taps(&self) -> BoxFuture<'_, Result<Vec<String>, NetError>> {
        Box::pin(async { tap::all(&self.alias) })
    }

    fn watch<'a>(
        &'a self,
        vif: VifId,
        bridge: &'a str,
        mac: &'a str,
        own: Option<Vec<IpAddr>>,
    ) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(async move { self.address_snooper.watch(vif, bridge, mac, own) })
    }

    fn own(&self, vif: VifId, own: Option<Vec<IpAddr>>) {
        self.address_snooper.set_assigned(vif, &own);
    }

    fn unwatch(&self, vif: VifId) {
        self.address_snooper.unwatch(vif);
    }

    fn addresses(&self, vif: VifId) -> Vec<IpAddr> {
        self.address_snooper.of(vif)
    }

    fn claims(&self) -> Option<mpsc::Receiver<VifId>> {
        self.address_snooper.take()
    }
}
