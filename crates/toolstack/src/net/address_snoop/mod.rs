//! Snooping of the addresses that guests claim on their networks, for guests without an agent.
//!
//! # Model
//! Each network with a watched interface has three packet sockets on its bridge. The kernel passes
//! them only incoming ARP, IPv6 neighbour discovery and DHCP client messages. Guests broadcast
//! these before they use an address, so the bridge receives them. Other traffic between guests does
//! not reach the bridge.
//!
//! An address that a client requests by DHCP counts as its own, until it looks for another one
//! without having used it. A frame counts for the interface that has the sender's MAC address.
//!
//! The switch lets an interface with assigned addresses send only these. So a claim of another
//! address is forged, and so is a claim of an assigned address by an interface without assigned
//! ones. Between two interfaces without assigned addresses, a forged claim cannot be detected.
//!
//! # Bounds
//! A frame is hostile. It is read once, into a checked [claim](frame::AddressClaim). An interface
//! has at most [`ADDRESSES_MAX`](table::ADDRESSES_MAX) addresses of each family, and the oldest are
//! dropped first.
//!
//! After each read a socket rests for [`PACE`](socket::PACE), and the kernel drops what exceeds its
//! buffer. So a guest that floods its network costs little. But it hides simultaneous claims of
//! others on that network.

mod dhcp;
mod filter;
mod frame;
mod socket;
mod table;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::id::VifId;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::NetError;
use super::ip::Device;
use filter::KINDS;
use frame::Mac;
use table::Table;

/// Most changed interfaces that wait for the receiver. While the queue is full, the sockets wait.
const WAITING: usize = 256;

/// Watched interfaces, by bridge.
#[derive(Debug)]
pub(super) struct AddressSnooper {
    bridges: Mutex<HashMap<String, Bridge>>,
    sender: mpsc::Sender<VifId>,
    receiver: Mutex<Option<mpsc::Receiver<VifId>>>,
}

/// Bridge with its sockets, which close on drop.
#[derive(Debug)]
struct Bridge {
    /// Index of the device that had the name at the start.
    index: Option<u32>,
    table: Arc<Mutex<Table>>,
    _listening: JoinSet<()>,
}

impl Default for AddressSnooper {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        Self { bridges: Mutex::default(), sender, receiver: Mutex::new(Some(receiver)) }
    }
}

impl AddressSnooper {
    /// Watches an interface. Must be called within a runtime.
    ///
    /// # Errors
    /// The bridge does not exist, or a system call failed.
    pub(super) fn watch(
        &self,
        vif: VifId,
        bridge: &str,
        mac: &str,
        own: Option<Vec<IpAddr>>,
    ) -> Result<(), NetError> {
        let refused = |why: String| NetError::Refused {
            what: format!("listening for addresses at {bridge}"),
            why,
        };
        let device = Device::named(bridge)?;
        let mac: Mac = mac.parse().map_err(refused)?;
        self.unwatch(vif);
        let (mut bridges, index) = (lock(&self.bridges), device.index());
        let kept = bridges.remove(bridge).filter(|known| known.index == index);
        let known = match kept {
            Some(known) => known,
            None => self.listen(bridge, index).map_err(|error| refused(error.to_string()))?,
        };
        lock(&known.table).add(vif, mac, own);
        bridges.insert(bridge.to_owned(), known);
        Ok(())
    }

    /// Changes the assigned addresses of an interface. Reports interfaces that lose addresses by
    /// this.
    pub(super) fn set_assigned(&self, vif: VifId, own: &Option<Vec<IpAddr>>) {
        let bridges = lock(&self.bridges);
        let changed = bridges.values().flat_map(|bridge| lock(&bridge.table).own(vif, own));
        for vif in changed {
            // If the queue is full, the interface's next claim reports it.
            let _full = self.sender.try_send(vif);
        }
    }

    /// Removes an interface, and with the last one its bridge.
    pub(super) fn unwatch(&self, vif: VifId) {
        lock(&self.bridges).retain(|_, bridge| {
            let mut table = lock(&bridge.table);
            table.remove(vif);
            !table.is_empty()
        });
    }

    /// Returns the addresses that an interface has claimed, the latest first.
    pub(super) fn of(&self, vif: VifId) -> Vec<IpAddr> {
        let bridges = lock(&self.bridges);
        bridges.values().find_map(|bridge| lock(&bridge.table).of(vif)).unwrap_or_default()
    }

    /// Returns the receiver of interfaces with changed addresses. Only the first caller gets it.
    pub(super) fn take(&self) -> Option<mpsc::Receiver<VifId>> {
        lock(&self.receiver).take()
    }

    fn listen(&self, bridge: &str, index: Option<u32>) -> io::Result<Bridge> {
        let (table, mut listening) = (Arc::<Mutex<Table>>::default(), JoinSet::new());
        for capture_filter in KINDS {
            #[expect(
                deprecated,
                reason = "an owned descriptor stays the same and open; what replaces this is not safe"
            )]
            let socket =
                AsyncFd::with_interest(socket::open(bridge, capture_filter)?, Interest::READABLE)?;
            listening.spawn(socket::listen(
                (socket, capture_filter),
                Arc::clone(&table),
                self.sender.clone(),
            ));
        }
        Ok(Bridge { index, table, _listening: listening })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change of the table is complete before it can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
