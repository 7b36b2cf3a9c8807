//! Registry of the NICs of a process and their networks. It decides which verb may run on which
//! NIC.
//!
//! # Words
//! - **Entry**: a NIC as callers know it. While it is attached or detached it is *busy*, and every
//!   other verb on it is refused.
//! - **Network**: created by its first NIC. It ends with its last NIC, and its uplink with it
//!   (`networks`).
//!
//! # Model
//! ```text
//! caller -> control -> disk_registry -> nic_registry
//!   nic_registry -+- networks -> SwitchNetwork, one switch for all
//!                 +- entries  -> ServedNic, one session thread each
//! ```
//!
//! # Invariants
//! - A repeated attach with the same parameters does nothing and succeeds; with others it is
//!   refused.
//! - The keeper preserves a NIC before its attach is answered, and forgets it when its socket is
//!   removed (`preserved`). So a new worker listens on the same sockets, and front-ends that
//!   reconnect continue with their rings.
//! - Port numbers are taken and released under the lock of the networks. A number is free again
//!   only when no reactor uses its port any more.
//! - Lock order: networks, then entries. Nothing slow runs under the lock of the entries.
//! - An upgrade loses no frame that a guest has sent (`upgrade`), except frames for which the
//!   receiver has posted no buffers in time.

mod attach;
mod detach;
mod error;
mod handover_state;
mod incoming;
mod limits;
mod networks;
mod poll;
mod preserved;
mod stats;
#[cfg(test)]
mod tests;
mod upgrade;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use model::nic::{NicSpec, UplinkSpec};
use model::rpc::{RpcError, code};
use model::spec::PollSpec;

use crate::keeper_client::KeeperClient;
use crate::limits::{of_nic, of_uplink};
use crate::pool::Pool;
use crate::served_nic::{NicSessionThread, ServedNic};
pub(crate) use handover_state::{NIC_FORMAT, NetworkHandoverState, NicFormats, NicHandoverState};
pub(crate) use incoming::IncomingNics;
use networks::Networks;
pub(crate) use upgrade::QuiescedNics;

/// All NICs by id.
#[derive(Debug)]
pub(crate) struct NicRegistry {
    keeper_client: KeeperClient,
    networks: Mutex<Networks>,
    state: Mutex<State>,
    /// Notified when a verb has ended.
    ended: Condvar,
    /// Number of open files of all uplinks.
    uplink_files: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    by_id: BTreeMap<String, NicEntry>,
    /// Polling of NICs without settings of their own.
    polling: PollSpec,
    /// True once shutdown began; verbs are refused.
    closing: bool,
    /// True while another process is about to take over all devices.
    upgrading: bool,
}

#[derive(Debug)]
struct NicEntry {
    /// Spec as requested, with the MTU of its network.
    spec: NicSpec,
    /// Running verb, as a participle.
    busy: Option<&'static str>,
    /// `None` while the NIC is being attached, and if it cannot be served.
    nic: Option<Arc<ServedNic>>,
    nic_session_thread: Option<NicSessionThread>,
    /// Reason, if the preserved NIC cannot be served as its guest saw it.
    refused: Option<String>,
}

impl NicRegistry {
    /// Creates an empty registry on the reactors of `pool`, which preserves all NICs with the
    /// keeper.
    pub(crate) fn new(pool: Arc<Pool>, keeper_client: KeeperClient) -> Self {
        let networks = Mutex::new(Networks::new(pool));
        let (state, ended) = (Mutex::default(), Condvar::new());
        Self { keeper_client, networks, state, ended, uplink_files: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Entries are replaced as a whole, so a panic elsewhere cannot leave them inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn networks(&self) -> MutexGuard<'_, Networks> {
        // No code panics while a network is incomplete.
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a NIC of this id exists.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.state().by_id.contains_key(id)
    }

    /// Returns the number of open files that all NICs and uplinks may use.
    pub(crate) fn files(&self) -> u64 {
        let state = self.state();
        let nics = state.by_id.values().map(|entry| of_nic(entry.spec.queues));
        nics.fold(self.uplink_files.load(Ordering::Relaxed), u64::saturating_add)
    }

    /// Connects the host to a network, or disconnects it.
    ///
    /// # Errors
    /// No such network, the device is unavailable, or the network has another uplink.
    pub(crate) fn uplink(&self, spec: &UplinkSpec) -> Result<(), RpcError> {
        let mut networks = self.networks();
        // Check under the lock of the networks: an upgrade that begins waits for it.
        self.state().open()?;
        self.set_uplink(&mut networks, spec)
    }

    fn set_uplink(&self, networks: &mut Networks, spec: &UplinkSpec) -> Result<(), RpcError> {
        networks.set_uplink(&spec.network, spec.tap.as_deref())?;
        self.count_uplinks(networks);
        // Under the lock, so that the last preserved record is the current one.
        Ok(self.hold_uplink(spec)?)
    }

    /// Updates the number of open files of uplinks.
    fn count_uplinks(&self, networks: &Networks) {
        let files = networks.uplinks().map(|uplink| of_uplink(uplink.queues())).sum();
        self.uplink_files.store(files, Ordering::Relaxed);
    }
}

impl State {
    /// Checks that verbs may run now.
    fn open(&self) -> Result<(), RpcError> {
        if self.closing {
            return Err(wrong_state("the process is shutting down"));
        }
        if self.upgrading {
            let message = "an upgrade is under way; try again when it has ended".into();
            return Err(RpcError { code: code::BUSY, message });
        }
        Ok(())
    }
}

fn wrong_state(message: impl Into<String>) -> RpcError {
    RpcError { code: code::WRONG_STATE, message: message.into() }
}

/// Returns the error of a NIC on which a verb is running.
fn busy(participle: &str) -> RpcError {
    let message = format!("the NIC is being {participle}; try again when that has ended");
    RpcError { code: code::BUSY, message }
}

fn no_such_nic(id: &str) -> RpcError {
    let message = format!("no NIC {id:?} is attached; `stats` lists those that are");
    RpcError { code: code::NO_SUCH_NIC, message }
}
