//! Networks of this host, by `ip`.

use std::net::IpAddr;
use std::path::PathBuf;

use model::id::VifId;
use tokio::sync::{mpsc, watch};

use super::claims::Claims;
use super::{Card, Net, NetError, bridge, card, changes, tap};
use crate::fut::Fut;

/// Makes networks on this host.
#[derive(Debug)]
pub struct HostNet {
    ip: PathBuf,
    /// What our devices are marked with: two instances on a host do not take each other's.
    alias: String,
    claims: Claims,
}

impl HostNet {
    /// Makes networks with this `ip` for the instance of this name.
    pub fn new(ip: PathBuf, instance: &str) -> Self {
        Self { ip, alias: format!("ringway {instance}"), claims: Claims::default() }
    }
}

impl Net for HostNet {
    fn create_bridge<'a>(&'a self, bridge: &'a str, mtu: u32) -> Fut<'a, Result<(), NetError>> {
        Box::pin(bridge::create(&self.ip, bridge, mtu, &self.alias))
    }

    fn remove_bridge<'a>(&'a self, bridge: &'a str) -> Fut<'a, Result<(), NetError>> {
        Box::pin(bridge::remove(&self.ip, bridge, &self.alias))
    }

    fn create_tap<'a>(
        &'a self,
        tap: &'a str,
        bridge: &'a str,
        mtu: u32,
    ) -> Fut<'a, Result<(), NetError>> {
        Box::pin(tap::create(&self.ip, tap, bridge, mtu, &self.alias))
    }

    fn remove_tap<'a>(&'a self, tap: &'a str) -> Fut<'a, Result<(), NetError>> {
        Box::pin(tap::remove(&self.ip, tap))
    }

    fn cards(&self) -> Fut<'_, Result<Vec<Card>, NetError>> {
        Box::pin(card::all())
    }

    fn changes(&self) -> watch::Receiver<()> {
        changes::told()
    }

    fn join<'a>(&'a self, card: &'a str, bridge: &'a str) -> Fut<'a, Result<(), NetError>> {
        Box::pin(card::join(&self.ip, card, bridge))
    }

    fn leave<'a>(&'a self, card: &'a str, bridge: &'a str) -> Fut<'a, Result<(), NetError>> {
        Box::pin(card::leave(&self.ip, card, bridge))
    }

    fn taps(&self) -> Fut<'_, Result<Vec<String>, NetError>> {
        Box::pin(async { tap::all(&self.alias) })
    }

    fn watch<'a>(
        &'a self,
        vif: VifId,
        bridge: &'a str,
        mac: &'a str,
        own: Option<Vec<IpAddr>>,
    ) -> Fut<'a, Result<(), NetError>> {
        Box::pin(async move { self.claims.watch(vif, bridge, mac, own) })
    }

    fn own(&self, vif: VifId, own: Option<Vec<IpAddr>>) {
        self.claims.own(vif, &own);
    }

    fn unwatch(&self, vif: VifId) {
        self.claims.unwatch(vif);
    }

    fn addresses(&self, vif: VifId) -> Vec<IpAddr> {
        self.claims.of(vif)
    }

    fn claims(&self) -> Option<mpsc::Receiver<VifId>> {
        self.claims.take()
    }
}
