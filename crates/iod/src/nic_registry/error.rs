//! Errors of NICs and uplinks.

use model::rpc::{RpcError, code};
use net::port::{AddressLockError, VlanError};
use net::switch::{NETWORKS_MAX, PORTS_MAX};
use vhost_user::SocketError;

use crate::error::error_chain;
use crate::keeper_client::PreserveError;
use crate::served_nic::NicError;

/// Reason why a NIC or an uplink is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum NicsError {
    /// Error of the switch, the socket or the system.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// Invalid addresses.
    #[error(transparent)]
    Lock(#[from] AddressLockError),
    /// Invalid VLAN.
    #[error(transparent)]
    Vlan(#[from] VlanError),
    /// The keeper does not preserve it.
    #[error(transparent)]
    Hold(#[from] PreserveError),
    /// No port number is free.
    #[error("all {PORTS_MAX} ports are taken; detach a NIC, or start another ringway-io")]
    NoPort,
    /// No network number is free.
    #[error(
        "there are {NETWORKS_MAX} networks; detach all NICs of one, or start another ringway-io"
    )]
    NoNetwork,
    /// The network has another MTU. All its NICs share one.
    #[error(
        "network {network:?} has an MTU of {has} bytes; request that or none, or detach all its \
         NICs to change it"
    )]
    Mtu {
        /// Name of the network.
        network: String,
        /// MTU of the network.
        has: u16,
    },
    /// No NIC of this network is attached.
    #[error("no NIC of network {0:?} is attached; a network exists only with a NIC")]
    NoSuchNetwork(String),
    /// The network has an uplink already.
    #[error(
        "network {network:?} has the uplink {tap:?}; remove that first (network.uplink without \
         \"tap\")"
    )]
    HasUplink {
        /// Name of the network.
        network: String,
        /// TAP device of its uplink.
        tap: String,
    },
    /// Another network uses the TAP device.
    #[error("TAP device {tap:?} is the uplink of network {network:?}")]
    TapTaken {
        /// Name of the TAP device.
        tap: String,
        /// Network that uses it.
        network: String,
    },
}

impl From<SocketError> for NicsError {
    fn from(error: SocketError) -> Self {
        Self::Nic(error.into())
    }
}

impl From<NicsError> for RpcError {
    fn from(error: NicsError) -> Self {
        let code = match &error {
            NicsError::NoSuchNetwork(_) => code::NO_SUCH_NETWORK,
            NicsError::Mtu { .. } | NicsError::HasUplink { .. } | NicsError::TapTaken { .. } => {
                code::WRONG_STATE
            }
            _ => code::FAILED,
        };
        Self { code, message: error_chain(&error) }
    }
}
