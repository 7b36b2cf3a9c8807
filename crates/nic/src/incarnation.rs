//! Incarnation of a port: its time between two resets.

use std::sync::atomic::{AtomicU32, Ordering};

use net::features::{AcceptedFeatures, feature};
use net::header::Offloads;
use net::port::PortId;

static NEXT_EPOCH: AtomicU32 = AtomicU32::new(1);

/// Incarnation of a port, with the offloads that it uses and accepts. They stay the same for an
/// incarnation: if the driver accepts other features, a new one begins. Frames prepared for one
/// incarnation are not delivered to the next.
#[derive(Clone, Copy, Debug)]
pub struct PortIncarnation {
    pub(crate) port: PortId,
    /// Offloads that the port accepts.
    pub(crate) takes: Offloads,
    /// Offloads that the port may use when it sends.
    pub(crate) may: Offloads,
    /// True if a frame may be spread over several of its buffers.
    pub(crate) mergeable: bool,
    pub(crate) epoch: u32,
}

impl PortIncarnation {
    /// Begins an incarnation of a port whose driver has accepted these features. No queue of the
    /// port may run.
    pub fn driver(port: PortId, features: AcceptedFeatures) -> Self {
        let mergeable = features.has(feature::MRG_RXBUF);
        Self { mergeable, may: features.sends(), ..Self::host(port, features.receives()) }
    }

    /// Begins an incarnation of a port without a driver, which uses and accepts the same offloads.
    /// No queue of the port may run.
    pub fn host(port: PortId, offloads: Offloads) -> Self {
        let epoch = NEXT_EPOCH.fetch_add(1, Ordering::Relaxed);
        Self { port, takes: offloads, may: offloads, mergeable: true, epoch }
    }

    /// Returns the port.
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Returns the offloads that the port may use when it sends: for [`crate::IngressFrame`].
    pub fn tx_offloads(&self) -> Offloads {
        self.may
    }
}
