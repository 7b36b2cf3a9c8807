//! Addresses that guests claim on their networks, seen where nobody in the guest tells of them.
//!
//! # Model
//! Each network with an interface that is watched has three sockets at its bridge, which the kernel
//! gives ARP frames, neighbour discovery of IPv6 and what clients of DHCP say that come in there, and
//! nothing else. Guests send those to everybody before they use an address, so the bridge gets them
//! too; what guests send each other otherwise passes nobody here. What a client asks a server for is
//! its address until it looks for another one without having used it. A frame counts for the interface
//! that has its sender's hardware address. The switch lets an interface that is locked send as its own
//! addresses only: so a claim of any other one, or of one of those by somebody who is not locked, was
//! forged by somebody who is not. Of two that are not locked nobody can tell.
//!
//! # Bounds
//! A frame is hostile: it is read once, into a checked [claim](frame::AddressClaim). An interface has at
//! most [`ADDRESSES_MAX`](table::ADDRESSES_MAX) addresses of each kind, the oldest give way. After a
//! look a socket is left alone for [`PACE`](socket::PACE), and the kernel drops what does not fit
//! into it meanwhile: a guest that floods its network costs little, and hides what others on
//! that network claim at the same time.

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

/// Interfaces with something new that wait for whoever listens; a full queue keeps the networks
/// waiting.
const WAITING: usize = 256;

/// Interfaces that are watched, by bridge.
#[derive(Debug)]
pub(super) struct AddressSnooper {
    bridges: Mutex<HashMap<String, Bridge>>,
    tell: mpsc::Sender<VifId>,
    told: Mutex<Option<mpsc::Receiver<VifId>>>,
}

/// A bridge at which is listened, until this is dropped.
#[derive(Debug)]
struct Bridge {
    /// Which device had the name then.
    index: Option<u32>,
    table: Arc<Mutex<Table>>,
    _listening: JoinSet<()>,
}

impl Default for AddressSnooper {
    fn default() -> Self {
        let (tell, told) = mpsc::channel(WAITING);
        Self { bridges: Mutex::default(), tell, told: Mutex::new(Some(told)) }
    }
}

impl AddressSnooper {
    /// Watches an interface. Called within a runtime.
    ///
    /// # Errors
    /// There is no such bridge, or the system refuses.
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

    /// An interface has these addresses for its own from now on. Whoever has lost some by that is
    /// told.
    pub(super) fn set_assigned(&self, vif: VifId, own: &Option<Vec<IpAddr>>) {
        let bridges = lock(&self.bridges);
        let changed = bridges.values().flat_map(|bridge| lock(&bridge.table).own(vif, own));
        for vif in changed {
            // Where many wait to be told, this one is looked at with its next claim.
            let _full = self.tell.try_send(vif);
        }
    }

    /// Forgets an interface, and its bridge with the last.
    pub(super) fn unwatch(&self, vif: VifId) {
        lock(&self.bridges).retain(|_, bridge| {
            let mut table = lock(&bridge.table);
            table.remove(vif);
            !table.is_empty()
        });
    }

    /// What an interface has claimed, the latest first.
    pub(super) fn of(&self, vif: VifId) -> Vec<IpAddr> {
        let bridges = lock(&self.bridges);
        bridges.values().find_map(|bridge| lock(&bridge.table).of(vif)).unwrap_or_default()
    }

    /// Interfaces that have claimed something new; the first caller gets it.
    pub(super) fn take(&self) -> Option<mpsc::Receiver<VifId>> {
        lock(&self.told).take()
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
                self.tell.clone(),
            ));
        }
        Ok(Bridge { index, table, _listening: listening })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Entries are changed whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
