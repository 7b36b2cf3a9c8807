//! A port between two resets.

use std::sync::atomic::{AtomicU32, Ordering};

use net::features::{AcceptedFeatures, feature};
use net::header::Offloads;
use net::port::PortId;

static NEXT_EPOCH: AtomicU32 = AtomicU32::new(1);

/// A port, and what it leaves to others and takes from them. That stays as it is for a life: a
/// driver that accepts other features begins another one. What was made for one life of a port is
/// not given to the next.
#[derive(Clone, Copy, Debug)]
pub struct PortIncarnation {
    pub(crate) port: PortId,
    /// What may be left to it.
    pub(crate) takes: Offloads,
    /// What it may leave to others.
    pub(crate) may: Offloads,
    /// A frame may be spread over several of its buffers.
    pub(crate) mergeable: bool,
    pub(crate) epoch: u32,
}

impl PortIncarnation {
    /// Of a port whose driver has accepted these features. No queue of it runs.
    pub fn driver(port: PortId, features: AcceptedFeatures) -> Self {
        let mergeable = features.has(feature::MRG_RXBUF);
        Self { mergeable, may: features.sends(), ..Self::host(port, features.receives()) }
    }

    /// Of a port that is no driver: the same may be left to it and by it. Nothing of it runs.
    pub fn host(port: PortId, offloads: Offloads) -> Self {
        let epoch = NEXT_EPOCH.fetch_add(1, Ordering::Relaxed);
        Self { port, takes: offloads, may: offloads, mergeable: true, epoch }
    }

    /// Which port it is.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// What it may leave to others: for [`crate::IngressFrame`].
    pub fn tx_offloads(&self) -> Offloads {
        self.may
    }
}
