//! The NICs of a process and the networks that they are in, by name, and who may do what to which
//! of them now.
//!
//! # Words
//! - **Entry**: a NIC as callers know it. While it is attached or detached it is *busy*, and every
//!   other verb on it is refused.
//! - **Network**: made by the first NIC in it, gone with the last, and its uplink with it
//!   (`networks`).
//!
//! # Model
//! ```text
//! caller -> control -> table -> nics -+- networks -> crate::nic::Lan, one switch for all
//!                                     +- entries  -> crate::nic::Nic, one control thread each
//! ```
//!
//! # Invariants
//! - An attach that is told again does nothing and succeeds; with other parameters it is refused.
//! - The keeper holds a NIC before its attach is answered, and forgets it when its socket is gone
//!   (`held`): a new worker listens on the same sockets, and front-ends that connect again go on
//!   with their rings.
//! - Ports of the switch are given out and taken back under the lock of the networks, and a number
//!   is free again only when no reactor knows its port any more.
//! - Locks are taken in this order: networks, entries. Nothing that takes time is done under that of
//!   the entries.
//! - An upgrade loses no frame that a guest has got rid of (`upgrade`), but those for which their receiver
//!   has posted no buffers until then.

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
pub(crate) use handover_state::{NIC_FORMAT, NetworkHandoverState, NicHandoverState};
pub(crate) use incoming::IncomingNics;
use networks::Networks;
pub(crate) use upgrade::QuiescedNics;

/// All NICs by id.
#[derive(Debug)]
pub(crate) struct NicRegistry {
    keeper_client: KeeperClient,
    networks: Mutex<Networks>,
    state: Mutex<State>,
    /// A verb has ended.
    ended: Condvar,
    /// Open files of all uplinks.
    uplink_files: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    by_id: BTreeMap<String, NicEntry>,
    /// How those are polled of which nothing else is asked.
    polling: PollSpec,
    /// All NICs go, and callers may do nothing to them any more.
    closing: bool,
    /// Another process is about to go on with all disks.
    upgrading: bool,
}

#[derive(Debug)]
struct NicEntry {
    /// As it was asked for; the MTU is that of its network.
    spec: NicSpec,
    /// What is being done to it, as a participle.
    busy: Option<&'static str>,
    /// Absent while it is being attached, and where it cannot be served.
    nic: Option<Arc<ServedNic>>,
    nic_session_thread: Option<NicSessionThread>,
    /// Held, and not to be had again as it was.
    refused: Option<String>,
}

impl NicRegistry {
    /// None, on the reactors of `pool`; the keeper behind `door` is told of all that come.
    pub(crate) fn new(pool: Arc<Pool>, keeper_client: KeeperClient) -> Self {
        let networks = Mutex::new(Networks::new(pool));
        let (state, ended) = (Mutex::default(), Condvar::new());
        Self { keeper_client, networks, state, ended, uplink_files: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Entries are changed whole: a panic elsewhere leaves them whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn networks(&self) -> MutexGuard<'_, Networks> {
        // Nobody panics while a network is half there.
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a NIC of this id.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.state().by_id.contains_key(id)
    }

    /// Open files that all of them may take.
    pub(crate) fn files(&self) -> u64 {
        let state = self.state();
        let nics = state.by_id.values().map(|entry| of_nic(entry.spec.queues));
        nics.fold(self.uplink_files.load(Ordering::Relaxed), u64::saturating_add)
    }

    /// Brings the host to a network, or takes it away.
    ///
    /// # Errors
    /// No such network; a device that cannot be had; another uplink is there.
    pub(crate) fn uplink(&self, spec: &UplinkSpec) -> Result<(), RpcError> {
        let mut networks = self.networks();
        // Looked at under that lock: an upgrade that begins waits for it.
        self.state().open()?;
        self.set_uplink(&mut networks, spec)
    }

    fn set_uplink(&self, networks: &mut Networks, spec: &UplinkSpec) -> Result<(), RpcError> {
        networks.set_uplink(&spec.network, spec.tap.as_deref())?;
        self.count_uplinks(networks);
        // Under the lock, so that what is told last is what is so.
        Ok(self.hold_uplink(spec)?)
    }

    /// Open files of uplinks are taken, or not any more.
    fn count_uplinks(&self, networks: &Networks) {
        let files = networks.uplinks().map(|uplink| of_uplink(uplink.queues())).sum();
        self.uplink_files.store(files, Ordering::Relaxed);
    }
}

impl State {
    /// Verbs are carried out now.
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

/// A verb is at work on a NIC.
fn busy(participle: &str) -> RpcError {
    let message = format!("the NIC is being {participle}; try again when that has ended");
    RpcError { code: code::BUSY, message }
}

fn no_such_nic(id: &str) -> RpcError {
    let message = format!("no NIC {id:?} is attached; `stats` lists those that are");
    RpcError { code: code::NO_SUCH_NIC, message }
}
