//! Guest drivers for queue pairs, against hubs on real reactors.
#![allow(dead_code, unused_imports)] // Each test binary uses its own part.

mod frames;
mod ring;

use std::sync::Arc;

use net::features::{AcceptedFeatures, OfferedFeatures, feature};
use net::header::HEADER_BYTES;
use net::port::{PortId, PortPolicy};
use net::switch::{NetworkId, NetworkPolicy};
use nic::{Fabric, PortCounts, PortIncarnation};
use reactor::Reactor;

pub(crate) use frames::*;
pub(crate) use ring::{Got, RING, Ring};

/// The only network.
pub(crate) const LAN: NetworkId = NetworkId(0);
/// Header that requests no offload.
pub(crate) const NOTHING: [u8; HEADER_BYTES] = [0; HEADER_BYTES];

const OFFER: OfferedFeatures =
    OfferedFeatures { offloads: true, mergeable: true, pairs: 1, control: false, mtu: true };

/// Returns all features that a port offers.
pub(crate) fn all() -> u64 {
    OFFER.bits()
}

/// Features of a driver without offloads, which accepts a frame in one buffer only.
pub(crate) const BARE: u64 = feature::VERSION_1 | feature::EVENT_IDX;

/// Hubs on some reactors.
pub(crate) struct Lan {
    pub(crate) reactors: Vec<Reactor>,
    pub(crate) fabric: Arc<Fabric>,
}

impl Lan {
    pub(crate) fn new(reactors: usize) -> Self {
        let reactors: Vec<_> = (0..reactors).map(|_| Reactor::spawn("lan").unwrap()).collect();
        let fabric = Fabric::new(reactors.iter().map(Reactor::handle)).unwrap();
        fabric.set_network(LAN, NetworkPolicy::default()).unwrap();
        Self { reactors, fabric }
    }

    pub(crate) fn counts(&self, port: u16) -> PortCounts {
        self.fabric.counts(PortId(port))
    }

    /// Waits until all work begun on the reactors has ended.
    pub(crate) fn settle(&self) {
        for reactor in self.reactors.iter().chain(&self.reactors) {
            reactor.handle().call(|_| ()).unwrap();
        }
    }
}

/// Guest with one queue pair.
pub(crate) struct Guest {
    pub(crate) features: AcceptedFeatures,
    pub(crate) port_incarnation: PortIncarnation,
    pub(crate) rx: Ring,
    pub(crate) tx: Ring,
}

impl Guest {
    /// Creates a guest at a port without limits, served on that reactor, with a driver that has
    /// accepted these features.
    pub(crate) fn new(lan: &Lan, port: u16, reactor: usize, bits: u64) -> Self {
        Self::with(lan, port, reactor, bits, &PortPolicy::open(LAN))
    }

    pub(crate) fn with(
        lan: &Lan,
        port: u16,
        reactor: usize,
        bits: u64,
        policy: &PortPolicy,
    ) -> Self {
        let features = OFFER.accept(bits).unwrap();
        lan.fabric.set_port(PortId(port), policy).unwrap();
        let port_incarnation = PortIncarnation::driver(PortId(port), features);
        let event_idx = features.has(feature::EVENT_IDX);
        let [mut rx, mut tx] = [0, 1].map(|index| Ring::new(index, event_idx));
        rx.start(lan, reactor, port_incarnation);
        tx.start(lan, reactor, port_incarnation);
        Self { features, port_incarnation, rx, tx }
    }

    /// Sends a frame, and waits until it has left.
    pub(crate) fn send(&mut self, header: [u8; HEADER_BYTES], frame: &[u8]) {
        self.tx.put(&[&header, frame].concat(), &[HEADER_BYTES]);
        self.tx.publish();
        self.tx.left(1);
    }
}
