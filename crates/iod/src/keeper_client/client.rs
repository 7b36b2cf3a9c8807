//! The way to the keeper, and what goes through it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::report::WorkerStart;

use super::start_info::start_info;
use super::{PreserveError, PreservedDisk, PreservedDiskRecord, PreservedFds};
use crate::keeper_link::{KeeperInfo, Link, PreservedEntry, WorkerMessage, is_closed};

/// Longest wait for the keeper: it does nothing that takes time.
const HOLD_DEADLINE: Duration = Duration::from_secs(5);

/// Way to the keeper, if there is one. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct KeeperClient {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// An answer has come, or none can come any more.
    pub(super) answered: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) link: Option<Arc<Link>>,
    /// A new keeper is being told everything; until then nothing goes to it but that.
    pub(super) adopting: bool,
    /// Of the keeper, or of the last one when `introduced` is not set.
    pub(super) keeper_info: Option<KeeperInfo>,
    pub(super) introduced: bool,
    /// How this process came to serve.
    pub(super) worker_start: Option<WorkerStart>,
    /// When the keeper found it serving.
    pub(super) adopted: Option<Instant>,
    /// Everything that is held, for a keeper that comes later.
    pub(super) holdings: BTreeMap<String, PreservedEntry>,
    next: u64,
    /// This process ends in order.
    pub(super) ending: bool,
    /// It has nothing to say any more: another one serves.
    pub(super) retired: bool,
    /// Calls that wait, with what the keeper said.
    pub(super) calls: BTreeMap<u64, Option<Option<String>>>,
}

/// What keys of disks begin with, and no others.
const DISK: &str = "disk/";

/// Key of a disk.
fn key(id: &str) -> String {
    format!("{DISK}{id}")
}

impl KeeperClient {
    /// The way to the keeper at the other end of `link`, with what it has given back.
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
        Self { shared: Arc::new(Shared { state: Mutex::new(state), answered: Condvar::new() }) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // Every change is one insertion or removal: a panic elsewhere leaves it whole.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a disk held as it is now. When this returns, a new worker would find it so.
    ///
    /// # Errors
    /// The keeper does not hold it; what it held before is unchanged.
    pub fn preserve_disk(
        &self,
        preserved_disk: &PreservedDisk,
        preserved_fds: PreservedFds,
    ) -> Result<(), PreserveError> {
        let data = serde_json::to_value(preserved_disk)?;
        let PreservedFds { listener, memory, exports } = preserved_fds;
        let sockets = listener.into_iter().chain(exports).collect();
        let stop_ms = preserved_disk.spec.stop_deadline_ms;
        self.replace(
            key(&preserved_disk.spec.id),
            PreservedEntry { sockets, data, fds: memory.into_iter().collect(), stop_ms },
        )
    }

    /// Has something held that is no disk's.
    ///
    /// # Errors
    /// The keeper does not hold it.
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

    /// The disk is gone, its files are removed: nobody need know of it any more.
    ///
    /// # Errors
    /// The keeper did not say that it has forgotten it.
    pub fn forget(&self, id: &str) -> Result<(), PreserveError> {
        self.forget_key(&key(id))
    }

    /// The same of whatever is held under this key.
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

    /// Has a disk held as one that is being detached, with whatever is held of it already: that needs
    /// no descriptor more.
    ///
    /// # Errors
    /// The keeper does not hold it; what it held before is unchanged.
    pub(crate) fn preserve_detaching(&self, id: &str) -> Result<(), PreserveError> {
        self.leave_key(&key(id))
    }

    /// The same of whatever is held under this key.
    ///
    /// # Errors
    /// As [`Self::leave`].
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

    /// Tells the keeper and waits for its answer; tells its successor when it dies meanwhile.
    /// The lock is held from the answer on, so that a successor misses nothing.
    fn exchange(
        &self,
        send: impl Fn(&Link, u64) -> io::Result<()>,
    ) -> Result<MutexGuard<'_, State>, PreserveError> {
        self.exchange_with(|_, link, seq| send(link, seq))
    }

    /// The same for what is made of what is held.
    fn exchange_with(
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

    /// Has another worker started, which takes over by `way`.
    ///
    /// # Errors
    /// There is no keeper, or it cannot.
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

    /// Tells that the other worker is about to go on in place of this one.
    ///
    /// # Errors
    /// There is no keeper, or that worker has ended.
    pub(crate) fn yield_to_successor(&self) -> Result<(), PreserveError> {
        self.ask(|link, seq| link.send(&WorkerMessage::Yield { seq }, &[]))
    }

    /// Has the other worker killed, and waits for its end.
    ///
    /// # Errors
    /// There is no keeper, or it does not answer.
    pub(crate) fn abandon(&self) -> Result<(), PreserveError> {
        self.ask(|link, seq| link.send(&WorkerMessage::Abandon { seq }, &[]))
    }

    /// Has something done that only a keeper can do.
    fn ask(&self, send: impl Fn(&Link, u64) -> io::Result<()>) -> Result<(), PreserveError> {
        let state = self.exchange(send)?;
        if state.link.is_some() { Ok(()) } else { Err(PreserveError::NoKeeper) }
    }

    /// Says something that needs no answer.
    pub(super) fn send_no_reply(&self, record: &WorkerMessage) {
        // Under the lock, so that it does not overtake what is being replayed.
        if let Some(link) = &self.state().link {
            // A keeper that is gone need not know.
            let _ = link.send(record, &[]);
        }
    }

    /// Calls or front-ends are taken.
    pub(crate) fn ready(&self) {
        self.send_no_reply(&WorkerMessage::Ready);
    }

    /// From here on this process ends in order: the keeper starts no other.
    pub(crate) fn ending(&self) {
        self.state().ending = true;
        self.send_no_reply(&WorkerMessage::Ending);
    }

    /// Another process serves in place of this one: the keeper hears no more of it, by which it
    /// knows.
    pub(crate) fn retire(&self) {
        let mut state = self.state();
        state.retired = true;
        // Sockets that are nobody's any more must not live on here.
        state.holdings.clear();
        if let Some(link) = state.link.take() {
            link.shut();
        }
    }

    /// Who keeps this process, if anybody does.
    pub(crate) fn keeper(&self) -> Option<KeeperInfo> {
        let state = self.state();
        state.link.as_ref().and(state.keeper_info.clone()).filter(|_| state.introduced)
    }

    /// What is held for this key, with descriptors of its own.
    pub(crate) fn entry(&self, key: &str) -> Option<io::Result<PreservedEntry>> {
        self.state().holdings.get(key).map(PreservedEntry::try_clone)
    }

    /// A disk's holding.
    pub(crate) fn disk(&self, id: &str) -> Option<io::Result<PreservedEntry>> {
        self.entry(&key(id))
    }

    /// The disk of a program that has but one, with what goes with it.
    pub(crate) fn only_disk(&self) -> Option<io::Result<(PreservedDisk, PreservedFds)>> {
        let preserved_disk = match self.disks().into_iter().next()? {
            PreservedDiskRecord::Known(preserved_disk) => preserved_disk,
            PreservedDiskRecord::Novel { reason, .. } => {
                return Some(Err(io::Error::other(reason)));
            }
        };
        let preserved_entry = self.disk(&preserved_disk.spec.id)?;
        Some(
            preserved_entry
                .map(|preserved_entry| (preserved_disk, PreservedFds::from(preserved_entry))),
        )
    }

    /// All disks that are held.
    pub(crate) fn disks(&self) -> Vec<PreservedDiskRecord> {
        let state = self.state();
        let read = |(key, preserved_entry): (&String, &PreservedEntry)| {
            key.strip_prefix(DISK).map(|id| PreservedDiskRecord::read(id, &preserved_entry.data))
        };
        state.holdings.iter().filter_map(read).collect()
    }
}
