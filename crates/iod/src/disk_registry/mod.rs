//! Registry of the disks of a process. It decides which verb may run on which disk.
//!
//! A verb that has changed a disk preserves it (`crate::keeper_client`) before its caller gets a
//! reply.

mod attach;
mod detach;
mod detach_unserved;
mod exports;
mod fences;
mod load;
mod nics;
mod poll;
mod profile;
mod restore;
#[cfg(test)]
mod tests;
mod upgrade;
mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model::report::{DiskState, Stats};
use model::rpc::{DiskReply, FullReply, RpcError, code};
use model::spec::{DiskSpec, PollSpec};

use crate::error::failed;
use crate::keeper_client::KeeperClient;
use crate::lifecycle::{Phase, VerbRefused};
use crate::limits::{MEMORY_FILES, of_disks, of_tree};
use crate::metrics::{Source, page};
use crate::nic_registry::NicRegistry;
use crate::open_disk::reported;
use crate::pool::Pool;
use crate::served_disk::{ServedDisk, ServedDiskError};
use crate::stats::{self, StatsDetail};
use fences::OrphanedFenceWait;
use poll::Defaults;
pub(crate) use restore::RefusedDisk;

/// Reply to every verb after shutdown began.
const CLOSING: &str = "the process is shutting down";

/// All disks by id. Verbs on different disks run in parallel; verbs on one disk run one at a time.
#[derive(Debug)]
pub struct DiskRegistry {
    pool: Arc<Pool>,
    started: Instant,
    /// Limit of open files of the process.
    open_files: u64,
    keeper_client: KeeperClient,
    nics: NicRegistry,
    disks: Mutex<Disks>,
    /// Notified when a verb has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Disks {
    by_id: BTreeMap<String, DiskEntry>,
    poll: Defaults,
    waits: Vec<OrphanedFenceWait>,
    /// True once shutdown began; verbs are refused.
    closing: bool,
    /// True while another process is about to take over, and afterwards.
    upgrading: bool,
    handed_over: bool,
}

#[derive(Debug)]
struct DiskEntry {
    phase: Phase,
    queues: u16,
    /// Open files of its tree beyond those that every disk may use.
    tree_files: u64,
    /// `None` while the disk is being opened, and if it cannot be opened.
    served_disk: Option<Arc<ServedDisk>>,
    /// Set if the preserved disk cannot be reopened in the state its guest saw.
    refused: Option<Arc<RefusedDisk>>,
    /// True if the preserved record is outdated: a verb changed the disk, but could not preserve
    /// the change.
    is_record_outdated: bool,
}

impl DiskEntry {
    /// Creates the entry of a disk that is neither served nor refused.
    fn new(phase: Phase, spec: &DiskSpec) -> Self {
        let (queues, tree_files) = (spec.queues, of_tree(&spec.backend));
        let (served_disk, refused) = (None, None);
        Self { phase, queues, tree_files, served_disk, refused, is_record_outdated: false }
    }
}

impl DiskRegistry {
    /// Creates an empty registry whose disks run on `pool`, without a keeper. `open_files` is the
    /// limit of the process.
    pub fn new(pool: Arc<Pool>, open_files: u64) -> Self {
        Self::with(pool, open_files, KeeperClient::default(), PollSpec::default())
    }

    /// Creates a registry that preserves every disk with the keeper. `polling` applies to disks for
    /// which neither a caller nor a preserved setting says otherwise.
    pub fn with(
        pool: Arc<Pool>,
        open_files: u64,
        keeper_client: KeeperClient,
        polling: PollSpec,
    ) -> Self {
        let poll = Defaults::found(polling, &keeper_client);
        let spec = poll.spec();
        let disks = Mutex::new(Disks { poll, ..Disks::default() });
        let ended = Condvar::new();
        let nics = NicRegistry::new(Arc::clone(&pool), keeper_client.clone());
        nics.set_poll_defaults(spec);
        let disk_registry =
            Self { pool, started: Instant::now(), open_files, keeper_client, nics, disks, ended };
        disk_registry.limit_memory_files();
        disk_registry
    }

    /// Returns the number of open files that all devices may use, with usual guest memory.
    fn device_files(&self, disks: &Disks) -> u64 {
        let others = disks.exported_files().saturating_add(self.nics.files());
        let trees = disks.by_id.values().map(|entry| entry.tree_files);
        let others = trees.fold(others, u64::saturating_add);
        of_disks(disks.by_id.values().map(|entry| entry.queues), others)
    }

    /// Returns the number of open files that all devices may use, with the guest memory that their
    /// front-ends have.
    fn taken_files(&self, disks: &Disks) -> u64 {
        let memory = self.pool.memory_budget().files_beyond(MEMORY_FILES);
        self.device_files(disks).saturating_add(memory)
    }

    /// Limits the memory of front-ends to the open files that the devices leave. Call it when
    /// devices were added.
    fn limit_memory_files(&self) {
        let devices = self.device_files(&self.disks());
        self.pool.memory_budget().limit_files(self.open_files.saturating_sub(devices));
    }

    /// Returns the client of the keeper.
    pub(crate) fn keeper_client(&self) -> &KeeperClient {
        &self.keeper_client
    }

    /// Returns the NICs of the process.
    pub(crate) fn nics(&self) -> &NicRegistry {
        &self.nics
    }

    fn disks(&self) -> MutexGuard<'_, Disks> {
        // Entries are replaced as a whole, so a panic elsewhere cannot leave them inconsistent.
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Preserves the current state of a disk.
    fn hold(&self, served_disk: &ServedDisk) -> Result<(), ServedDiskError> {
        let _fixed = self.keeper_client.fix_sockets();
        let preserved_fds = served_disk.preserved_fds();
        let preserved_fds = preserved_fds
            .map_err(|source| ServedDiskError::Os { action: "share sockets", source })?;
        self.keeper_client.preserve_disk(&served_disk.to_preserved(), preserved_fds)?;
        served_disk.watch_sockets(&self.keeper_client);
        Ok(())
    }

    fn forget(&self, id: &str) {
        if let Err(error) = self.keeper_client.forget(id) {
            let cause = crate::error::error_chain(&error);
            tracing::error!(
                disk = id,
                "the keeper did not delete the disk's record, a new worker would find it: {cause}"
            );
        }
    }

    fn end(&self, disks: &mut Disks, id: &str, succeeded: bool) {
        if let Some(entry) = disks.by_id.get_mut(id) {
            match entry.phase.end(succeeded) {
                Some(phase) => entry.phase = phase,
                None => {
                    disks.by_id.remove(id);
                }
            }
        }
        self.ended.notify_all();
    }

    /// Returns statistics of the process, its disks and NICs, or only those of one id.
    ///
    /// # Errors
    /// No such disk or NIC.
    pub fn stats(&self, id: Option<&str>) -> Result<Stats, RpcError> {
        let detail = if id.is_some() { StatsDetail::Everything } else { StatsDetail::Counts };
        self.collect_stats(id, detail)
    }

    /// Returns the statistics, with this much detail about ports of the switch.
    fn collect_stats(&self, id: Option<&str>, of_ports: StatsDetail) -> Result<Stats, RpcError> {
        let disks = self.disks();
        let there = |id: &str| disks.by_id.contains_key(id) || self.nics.has(id);
        if let Some(id) = id.filter(|id| !there(id)) {
            return Err(no_such_disk(id));
        }
        let served_disks: Vec<_> =
            disks.by_id.values().filter_map(|one| one.served_disk.clone()).collect();
        let refused: Vec<_> = disks.by_id.values().filter_map(|one| one.refused.clone()).collect();
        let defaults = disks.poll.in_force();
        drop(disks);
        let wanted = |one: &str| id.is_none_or(|id| one == id);
        let detail = if id.is_some() { StatsDetail::Everything } else { StatsDetail::Counts };
        let mut stats = stats::process(self.started, &self.pool, &served_disks, wanted, detail);
        let refused = refused.iter().filter(|disk| wanted(&disk.preserved_disk.spec.id));
        stats.disks.extend(refused.map(|disk| stats::refused(disk)));
        stats.disks.sort_by(|one, other| one.id.cmp(&other.id));
        stats.nics = self.nics.stats(wanted);
        stats.ports = self.nics.ports(wanted, of_ports);
        if id.is_none() {
            stats.networks = self.nics.network_stats();
        }
        let adopted = self.keeper_client.adopted();
        stats.keeper =
            self.keeper_client.keeper().map(|keeper_info| stats::keeper(keeper_info, adopted));
        stats.start = self.keeper_client.start_info();
        stats.poll_defaults = Some(defaults);
        Ok(stats)
    }

    /// Returns the identity of the golden image below a disk. `None` if there is no such disk or image.
    pub(crate) fn golden_identity(&self, id: &str) -> Option<String> {
        let served_disk = self.disks().by_id.get(id)?.served_disk.clone()?;
        served_disk.cache_state().map(|state| state.identity)
    }

    /// Returns the disks that wait for space, as soon as they differ from `known` or the caller hangs
    /// up.
    ///
    /// # Errors
    /// The process ends, or another one serves the disks now.
    pub(crate) fn wait_full(
        &self,
        known: Option<&BTreeSet<String>>,
        caller: BorrowedFd<'_>,
    ) -> Result<FullReply, RpcError> {
        let disks = self.pool.full_watch().wait_full(known, caller).map_err(failed)?;
        let state = self.disks();
        if state.closing || state.handed_over {
            return Err(wrong_state("this process no longer serves the disks; connect again"));
        }
        Ok(FullReply { disks })
    }

    /// Returns all statistics in the OpenMetrics text format.
    pub fn metrics(&self) -> String {
        let disks = self.disks();
        let served_disks = disks.by_id.values().filter_map(|one| one.served_disk.clone()).collect();
        drop(disks);
        // Without an id, the call cannot fail for a missing device.
        let stats = self.collect_stats(None, StatsDetail::Everything);
        let residences = self.nics.residences();
        stats.map_or_else(
            |_| String::new(),
            |stats| page(&Source { stats, served_disks, residences }),
        )
    }
}

fn reply(served_disk: &ServedDisk) -> DiskReply {
    let geometry = reported(served_disk.geometry());
    let (id, state) = (served_disk.spec().id.clone(), state(served_disk));
    DiskReply { id, state, geometry, notes: Vec::new() }
}

/// Returns a disk's state for reports.
pub(crate) fn state(served_disk: &ServedDisk) -> DiskState {
    if served_disk.stuck().is_some() {
        return DiskState::Stuck;
    }
    match (served_disk.is_active(), served_disk.is_paused(), served_disk.waiting()) {
        (false, ..) => DiskState::Attached,
        (true, true, _) => DiskState::Paused,
        (true, false, 0) => DiskState::Active,
        (true, false, _) => DiskState::Waiting,
    }
}

fn no_such_disk(id: &str) -> RpcError {
    let message = format!("no disk {id:?} is attached; `stats` lists those that are");
    RpcError { code: code::NO_SUCH_DISK, message }
}

/// Converts a refused verb to the reply of its caller.
fn refusal(refused: VerbRefused) -> RpcError {
    match refused {
        VerbRefused::Busy(_) => busy(refused),
        refused => wrong_state(refused),
    }
}

/// Returns the error of a condition that ends by itself.
fn busy(with: impl std::fmt::Display) -> RpcError {
    RpcError { code: code::BUSY, message: with.to_string() }
}

fn wrong_state(refused: impl std::fmt::Display) -> RpcError {
    RpcError { code: code::WRONG_STATE, message: refused.to_string() }
}
