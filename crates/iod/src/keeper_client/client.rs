//! Client of the keeper, and its calls.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use model::report::WorkerStart;

use super::start_info::start_info;
use super::{PreserveError, PreservedDisk, PreservedDiskRecord, PreservedFds};
use crate::keeper_link::{KeeperInfo, Link, PreservedEntry, WorkerMessage, is_closed};
use crate::socket_watch::SocketWatch;

/// Longest wait for the keeper, which does nothing slow.
const HOLD_DEADLINE: Duration = Duration::from_secs(5);

/// Client of the keeper, if there is one. Clones share its state.
#[derive(Clone, Debug, Default)]
pub struct KeeperClient {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Notified when a reply has arrived, or when no reply can arrive any more.
    pub(super) answered: Condvar,
    /// Written while a socket is replaced.
    pub(super) sockets: RwLock<()>,
    pub(super) socket_watch: SocketWatch,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) link: Option<Arc<Link>>,
    /// True while a new keeper is being told everything. Other messages must wait.
    pub(super) adopting: bool,
    /// Information about the keeper, or about the last one if `introduced` is false.
    pub(super) keeper_info: Option<KeeperInfo>,
    pub(super) introduced: bool,
    /// Start reason of this process.
    pub(super) worker_start: Option<WorkerStart>,
    /// Time when the keeper adopted this process.
    pub(super) adopted: Option<Instant>,
    /// All preserved entries, for later keepers.
    pub(super) holdings: BTreeMap<String, PreservedEntry>,
    next: u64,
    /// True if this process is ending in order.
    pub(super) ending: bool,
    /// True if another process serves, so this one sends nothing any more.
    pub(super) retired: bool,
    /// Pending calls, with the keeper's replies.
    pub(super) calls: BTreeMap<u64, Option<Option<String>>>,
}

/// Prefix of the keys of disks. No other keys have it.
const DISK: &str = "disk/";

/// Returns the key of a disk.
fn key(id: &str) -> String {
    format!("{DISK}{id}")
}

impl KeeperClient {
    /// Creates the client for the keeper at the other end of `link`, with the entries that it
    /// restored.
    pub(crate) fn open(
        link: Arc<Link>,
        keeper_info: KeeperInfo,
        holdings: BTreeMap<String, PreservedEntry>,
        upgraded: bool,
    ) -> Self {
        let worker_start = Some(start_info(&keeper_info, upgraded));
        let (link, keeper_info) = (Some(link), Some(keeper_info));
        let state = State {
            link,
            keeper_info,
            introduced: true,
            worker_start,
            holdings,
            ..State::default()
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), ..Shared::default() }) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one insertion or removal, so a panic elsewhere cannot leave the state
        // inconsistent.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Preserves the current state of a disk. When this returns, a new worker would find this
    /// state.
    ///
    /// # Errors
    /// The keeper does not preserve it. The former entry is unchanged.
    pub fn preserve_disk(
        &self,
        preserved_disk: &PreservedDisk,
        preserved_fds: PreservedFds,
    ) -> Result<(), PreserveError> {
        self.replace(key(&preserved_disk.spec.id), preserved_fds.entry(preserved_disk)?)
    }

    /// Preserves an entry that does not belong to a disk.
    ///
    /// # Errors
    /// The keeper does not preserve it.
    pub(crate) fn preserve(
        &self,
        key: &str,
        preserved_entry: PreservedEntry,
    ) -> Result<(), PreserveError> {
        self.replace(key.into(), preserved_entry)
    }

    pub(super) fn replace(
        &self,
        key: String,
        preserved_entry: PreservedEntry,
    ) -> Result<(), PreserveError> {
        let mut state = self.exchange(|link, seq| {
            let (what, fds) = preserved_entry.written(&key);
            link.send(&WorkerMessage::Hold { seq, what }, &fds)
        })?;
        state.holdings.insert(key, preserved_entry);
        Ok(())
    }

    /// Removes the entry of a disk that is detached and whose files are removed.
    ///
    /// # Errors
    /// The keeper did not confirm the removal.
    pub fn forget(&self, id: &str) -> Result<(), PreserveError> {
        self.forget_key(&key(id))
    }

    /// Removes the entry of this key.
    ///
    /// # Errors
    /// As [`Self::forget`].
    pub(crate) fn forget_key(&self, key: &str) -> Result<(), PreserveError> {
        let forget =
            |link: &Link, seq| link.send(&WorkerMessage::Forget { seq, key: key.into() }, &[]);
        let mut state = self.exchange(forget)?;
        state.holdings.remove(key);
        Ok(())
    }

    /// Marks the entry of a disk as being detached. The rest of the entry stays, and no new
    /// descriptors are needed.
    ///
    /// # Errors
    /// The keeper does not preserve it. The former entry is unchanged.
    pub(crate) fn preserve_detaching(&self, id: &str) -> Result<(), PreserveError> {
        self.leave_key(&key(id))
    }

    /// Marks the entry of this key as being detached.
    ///
    /// # Errors
    /// As [`Self::preserve_detaching`].
    pub(crate) fn leave_key(&self, key: &str) -> Result<(), PreserveError> {
        let mut state = self.exchange_with(|state, link, seq| match state.holdings.get(key) {
            Some(preserved_entry) => {
                let (mut what, fds) = preserved_entry.written(key);
                what.mark_detaching();
                link.send(&WorkerMessage::Hold { seq, what }, &fds)
            }
            None => link.send(&WorkerMessage::Forget { seq, key: key.into() }, &[]),
        })?;
        if let Some(preserved_entry) = state.holdings.get_mut(key) {
            preserved_entry.mark_detaching();
        }
        Ok(())
    }

    /// Sends a call to the keeper and waits for the reply. If the keeper dies meanwhile, it sends
    /// the call to the next keeper. It returns with the lock locked, so that a later keeper misses
    /// nothing.
    fn exchange(
        &self,
        send: impl Fn(&Link, u64) -> io::Result<()>,
    ) -> Result<MutexGuard<'_, State>, PreserveError> {
        self.exchange_with(|_, link, seq| send(link, seq))
    }

    /// Like [`Self::exchange`], for a call that depends on the preserved entries.
    pub(super) fn exchange_with(
        &self,
        send: impl Fn(&State, &Link, u64) -> io::Result<()>,
    ) -> Result<MutexGuard<'_, State>, PreserveError> {
        let mut state = self.state();
        while let Some(link) = state.link.clone() {
            let seq = state.next;
            state.next += 1;
            if let Err(error) = send(&state, &link, seq) {
                if !is_closed(&error) {
                    return Err(error.into());
                }
                state.on_keeper_lost(&link);
                continue;
            }
            state.calls.insert(seq, None);
            let open =
                |state: &State| state.link.as_ref().is_some_and(|now| Arc::ptr_eq(now, &link));
            let pending =
                |state: &mut State| open(state) && matches!(state.calls.get(&seq), Some(None));
            let waited = self.shared.answered.wait_timeout_while(state, HOLD_DEADLINE, pending);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            match state.calls.remove(&seq).flatten() {
                Some(None) => return Ok(state),
                Some(Some(why)) => return Err(PreserveError::Refused(why)),
                None if open(&state) => {
                    let pid = state.keeper_info.as_ref().map_or(0, |keeper_info| keeper_info.pid);
                    return Err(PreserveError::Late { pid });
                }
                None => {}
            }
        }
        Ok(state)
    }

    /// Starts another worker, which takes over through `way`.
    ///
    /// # Errors
    /// There is no keeper, or it cannot start the worker.
    pub(crate) fn start_successor(
        &self,
        binary: Option<&Path>,
        way: BorrowedFd<'_>,
    ) -> Result<(), PreserveError> {
        let binary = binary.map(Path::to_path_buf);
        self.ask(|link, seq| {
            link.send(&WorkerMessage::Succeed { seq, binary: binary.clone() }, &[way])
        })
    }

    /// Reports that the other worker is about to serve in place of this one.
    ///
    /// # Errors
    /// There is no keeper, or the other worker has ended.
    pub(crate) fn yield_to_successor(&self) -> Result<(), PreserveError> {
        self.ask(|link, seq| link.send(&WorkerMessage::Yield { seq }, &[]))
    }

    /// Kills the other worker and waits for its end.
    ///
    /// # Errors
    /// There is no keeper, or it does not answer.
    pub(crate) fn abandon(&self) -> Result<(), PreserveError> {
        self.ask(|link, seq| link.send(&WorkerMessage::Abandon { seq }, &[]))
    }

    /// Sends a call that requires a keeper.
    fn ask(&self, send: impl Fn(&Link, u64) -> io::Result<()>) -> Result<(), PreserveError> {
        let state = self.exchange(send)?;
        if state.link.is_some() { Ok(()) } else { Err(PreserveError::NoKeeper) }
    }

    /// Sends a message that needs no reply.
    pub(super) fn send_no_reply(&self, record: &WorkerMessage) {
        // Send it under the lock, so that it does not overtake a replay.
        if let Some(link) = &self.state().link {
            // A keeper that is gone needs no message.
            let _ = link.send(record, &[]);
        }
    }

    /// Reports that calls or front-ends are accepted.
    pub(crate) fn ready(&self) {
        self.send_no_reply(&WorkerMessage::Ready);
    }

    /// Reports an orderly end. The keeper starts no other worker.
    pub(crate) fn ending(&self) {
        self.state().ending = true;
        self.send_no_reply(&WorkerMessage::Ending);
    }

    /// Closes the link, because another process serves in place of this one. The keeper takes the
    /// silence as the sign of that.
    pub(crate) fn retire(&self) {
        let mut state = self.state();
        state.retired = true;
        // Close sockets that no process uses any more.
        state.holdings.clear();
        if let Some(link) = state.link.take() {
            link.shut();
        }
    }

    /// Returns information about the keeper, if there is one.
    pub(crate) fn keeper(&self) -> Option<KeeperInfo> {
        let state = self.state();
        state.link.as_ref().and(state.keeper_info.clone()).filter(|_| state.introduced)
    }

    /// Returns how many workers in a row have died by their own fault before this one.
    pub(crate) fn faults(&self) -> u32 {
        self.state().keeper_info.as_ref().map_or(0, |keeper_info| keeper_info.faults)
    }

    /// Returns a copy of the entry of this key, with its own descriptors.
    pub(crate) fn entry(&self, key: &str) -> Option<io::Result<PreservedEntry>> {
        self.state().holdings.get(key).map(PreservedEntry::try_clone)
    }

    /// Returns a copy of a disk's entry.
    pub(crate) fn disk(&self, id: &str) -> Option<io::Result<PreservedEntry>> {
        self.entry(&key(id))
    }

    /// Returns the disk of a single-disk program, with its descriptors.
    pub(crate) fn only_disk(&self) -> Option<io::Result<(PreservedDisk, PreservedFds)>> {
        let preserved_disk = match self.disks().into_iter().next()? {
            PreservedDiskRecord::Known(preserved_disk) => preserved_disk,
            PreservedDiskRecord::Novel { reason, .. } => {
                return Some(Err(io::Error::other(reason)));
            }
        };
        let preserved_entry = self.disk(&preserved_disk.spec.id)?;
        let preserved_fds = preserved_entry.and_then(PreservedFds::read);
        Some(preserved_fds.map(|preserved_fds| (preserved_disk, preserved_fds)))
    }

    /// Returns all preserved disks.
    pub(crate) fn disks(&self) -> Vec<PreservedDiskRecord> {
        let state = self.state();
        let read = |(key, preserved_entry): (&String, &PreservedEntry)| {
            key.strip_prefix(DISK).map(|id| PreservedDiskRecord::read(id, &preserved_entry.data))
        };
        state.holdings.iter().filter_map(read).collect()
    }
}
