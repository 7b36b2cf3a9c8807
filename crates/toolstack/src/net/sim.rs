//! Simulated network without frames.

use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;

use model::id::VifId;
use tokio::sync::{mpsc, watch};

use super::{HostAddress, HostNic, Net, NetError};
use crate::boxed_future::BoxFuture;
use crate::sim::{Call, CallKind, Sim, State};

/// Device that every host has.
const LOOPBACK: &str = "lo";

/// Network of a simulated host.
#[derive(Clone, Debug)]
pub struct SimNet(pub(crate) Arc<Sim>);

fn refused(call_kind: CallKind, why: String) -> NetError {
    NetError::Refused { what: format!("{call_kind:?}"), why }
}

fn card(name: &str) -> HostNic {
    HostNic {
        name: name.to_owned(),
        mac: "02:00:00:00:00:01".into(),
        mtu: 1500,
        physical: true,
        carrier: true,
        ..HostNic::default()
    }
}

impl SimNet {
    async fn call(
        &self,
        call_kind: CallKind,
        work: impl FnOnce(&mut State) -> Result<(), NetError>,
    ) -> Result<(), NetError> {
        self.0.call(Call::new(call_kind), work, |why| refused(call_kind, why)).await
    }
}

impl Net for SimNet {
    fn create_bridge<'a>(
        &'a self,
        bridge: &'a str,
        _mtu: u32,
    ) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(self.call(CallKind::CreateBridge, move |state| {
            state.bridges.insert(bridge.into());
            state.keep_bridge(bridge);
            Ok(())
        }))
    }

    fn check_bridge(&self, bridge: &str) -> Result<(), NetError> {
        let state = self.0.state();
        let other = bridge == LOOPBACK || state.cards.contains_key(bridge);
        if other || state.taps.contains_key(bridge) {
            return Err(refused(CallKind::CreateBridge, format!("{bridge} is no bridge")));
        }
        Ok(())
    }

    fn remove_bridge<'a>(&'a self, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(self.call(CallKind::RemoveBridge, move |state| {
            if state.taps.values().any(|of| of == bridge) {
                state.broke(format!("bridge {bridge} is removed and in use"));
            }
            state.bridges.remove(bridge);
            state.keep_bridge(bridge);
            Ok(())
        }))
    }

    fn create_tap<'a>(
        &'a self,
        tap: &'a str,
        bridge: &'a str,
        _mtu: u32,
    ) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(self.call(CallKind::CreateTap, move |state| {
            if !state.bridges.contains(bridge) {
                let why = state.broke(format!("there is no bridge {bridge}"));
                return Err(refused(CallKind::CreateTap, why));
            }
            state.taps.insert(tap.into(), bridge.into());
            state.keep_tap(tap);
            Ok(())
        }))
    }

    fn remove_tap<'a>(&'a self, tap: &'a str) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(self.call(CallKind::RemoveTap, move |state| {
            if state.ports.values().any(|port| port.uplink == tap) {
                state.broke(format!("{tap} is removed and a network has it"));
            }
            state.taps.remove(tap);
            state.keep_tap(tap);
            Ok(())
        }))
    }

    fn cards(&self) -> BoxFuture<'_, Result<Vec<HostNic>, NetError>> {
        let state = self.0.state();
        let all = state.cards.keys().map(|name| card(name)).collect();
        Box::pin(ready(Ok(all)))
    }

    /// Any NIC with an address of the host is that of every address.
    fn with_address(&self, _: IpAddr) -> BoxFuture<'_, Result<Option<HostAddress>, NetError>> {
        let state = self.0.state();
        let found = state.reached.keys().next().map(|name| HostAddress {
            host_nic: card(name),
            bridge: state.bridges.contains(name),
            netmask: "255.255.255.0".into(),
            gateway: "192.0.2.1".into(),
            name_servers: vec!["192.0.2.53".into()],
        });
        Box::pin(ready(Ok(found)))
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.0.state().cards_changed.subscribe()
    }

    fn join<'a>(&'a self, card: &'a str, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(self.call(CallKind::Join, move |state| {
            if !state.bridges.contains(bridge) {
                let why = state.broke(format!("there is no bridge {bridge}"));
                return Err(refused(CallKind::Join, why));
            }
            let there = state.cards.get_mut(card);
            let there = there.ok_or_else(|| NetError::NotThere(card.into()))?;
            if let Some(address) = state.reached.get(card) {
                return Err(NetError::Reached { card: card.into(), address: *address });
            }
            *there = Some(bridge.into());
            Ok(())
        }))
    }

    fn leave<'a>(&'a self, card: &'a str, bridge: &'a str) -> BoxFuture<'a, Result<(), NetError>> {
        Box::pin(self.call(CallKind::Leave, move |state| {
            if let Some(there) = state.cards.get_mut(card)
                && there.as_deref() == Some(bridge)
            {
                *there = None;
            }
            Ok(())
        }))
    }

    fn taps(&self) -> BoxFuture<'_, Result<Vec<String>, NetError>> {
        let taps = self.0.state().taps.keys().cloned().collect();
        Box::pin(async move { Ok(taps) })
    }

    // The test sets the addresses that simulated guests claim.
    fn watch<'a>(
        &'a self,
        vif: VifId,
        _bridge: &'a str,
        _mac: &'a str,
        _own: Option<Vec<IpAddr>>,
    ) -> BoxFuture<'a, Result<(), NetError>> {
        self.0.state().claimed.insert(vif, Vec::new());
        Box::pin(std::future::ready(Ok(())))
    }

    fn own(&self, _vif: VifId, _own: Option<Vec<IpAddr>>) {}

    fn unwatch(&self, vif: VifId) {
        self.0.state().claimed.remove(&vif);
    }

    fn addresses(&self, vif: VifId) -> Vec<IpAddr> {
        self.0.state().claimed.get(&vif).cloned().unwrap_or_default()
    }

    fn claims(&self) -> Option<mpsc::Receiver<VifId>> {
        self.0.take_claims()
    }
}
