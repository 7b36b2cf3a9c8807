//! Why a NIC or an uplink is not served.

use model::rpc::{RpcError, code};
use net::port::{AddressLockError, VlanError};
use net::switch::{NETWORKS_MAX, PORTS_MAX};
use vhost_user::SocketError;

use crate::error::error_chain;
use crate::keeper_client::PreserveError;
use crate::served_nic::NicError;

/// Why a NIC or an uplink is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum NicsError {
    /// The switch, the socket or the system.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// Its addresses.
    #[error(transparent)]
    Lock(#[from] AddressLockError),
    /// Its VLAN.
    #[error(transparent)]
    Vlan(#[from] VlanError),
    /// The keeper does not hold it.
    #[error(transparent)]
    Hold(#[from] PreserveError),
    /// No number is free.
    #[error("all {PORTS_MAX} ports are taken; detach a NIC, or start another ringway-io")]
    NoPort,
    /// No number is free.
    #[error(
        "there are {NETWORKS_MAX} networks; detach all NICs of one, or start another ringway-io"
    )]
    NoNetwork,
    /// A network has one MTU.
    #[error(
        "network {network:?} has an MTU of {has} bytes; ask for that, or for none, or detach all \
         its NICs to have another"
    )]
    Mtu {
        /// Which network.
        network: String,
        /// What it has.
        has: u16,
    },
    /// None of its NICs is attached.
    #[error("no NIC of network {0:?} is attached; a network is there as long as one is")]
    NoSuchNetwork(String),
    /// A network has one uplink.
    #[error(
        "network {network:?} has the uplink {tap:?}; take that away first (network.uplink without \
         \"tap\")"
    )]
    HasUplink {
        /// Which network.
        network: String,
        /// What it has.
        tap: String,
    },
    /// A device is in one network.
    #[error("TAP device {tap:?} is the uplink of network {network:?}")]
    TapTaken {
        /// The device.
        tap: String,
        /// Where it is.
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
