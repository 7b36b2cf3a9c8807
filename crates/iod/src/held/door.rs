//! The way to the keeper, and what goes through it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::report::WorkerStart;

use super::began::began;
use super::{Found, Held, HoldError, Kept};
use crate::link::{FromWorker, Holding, Link, Words, is_closed};

/// Longest wait for the keeper: it does nothing that takes time.
const HOLD_DEADLINE: Duration = Duration::from_secs(5);

/// Way to the keeper, if there is one. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Door {
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
    pub(super) words: Option<Words>,
    pub(super) introduced: bool,
    /// How this process came to serve.
    pub(super) began: Option<WorkerStart>,
    /// When the keeper found it serving.
    pub(super) adopted: Option<Instant>,
    /// Everything that is held, for a keeper that comes later.
    pub(super) holdings: BTreeMap<String, Holding>,
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

impl Door {
    /// The way to the keeper at the other end of `link`, with what it has given back.
    pub(crate) fn open(
        link: Arc<Link>,
        words: Words,
        holdings: BTreeMap<String, Holding>,
        upgraded: bool,
    ) -> Self {
        let began = Some(began(&words, upgraded));
        let (link, words) = (Some(link), Some(words));
        let state = State { link, words, introduced: true, began, holdings, ..State::default() };
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
    pub fn hold(&self, held: &Held, kept: Kept) -> Result<(), HoldError> {
        let data = serde_json::to_value(held)?;
        let Kept { listener, memory, exports } = kept;
        let sockets = listener.into_iter().chain(exports).collect();
        let stop_ms = held.spec.stop_deadline_ms;
        self.replace(
            key(&held.spec.id),
            Holding { sockets, data, fds: memory.into_iter().collect(), stop_ms },
        )
    }

    /// Has something held that is no disk's.
    ///
    /// # Errors
    /// The keeper does not hold it.
    pub(crate) fn hold_as(&self, key: &str, holding: Holding) -> Result<(), HoldError> {
        self.replace(key.into(), holding)
    }

    pub(super) fn replace(&self, key: String, holding: Holding) -> Result<(), HoldError> {
        let mut state = self.exchange(|link, seq| {
            let (what, fds) = holding.written(&key);
            link.send(&FromWorker::Hold { seq, what }, &fds)
        })?;
        state.holdings.insert(key, holding);
        Ok(())
    }

    /// The disk is gone, its files are removed: nobody need know of it any more.
    ///
    /// # Errors
    /// The keeper did not say that it has forgotten it.
    pub fn forget(&self, id: &str) -> Result<(), HoldError> {
        self.forget_key(&key(id))
    }

    /// The same of whatever is held under this key.
    ///
    /// # Errors
    /// As [`Self::forget`].
    pub(crate) fn forget_key(&self, key: &str) -> Result<(), HoldError> {
        let forget =
            |link: &Link, seq| link.send(&FromWorker::Forget { seq, key: key.into() }, &[]);
        let mut state = self.exchange(forget)?;
        state.holdings.remove(key);
        Ok(())
    }

    /// Has a disk held as one that is being detached, with whatever is held of it already: that needs
    /// no descriptor more.
    ///
    /// # Errors
    /// The keeper does not hold it; what it held before is unchanged.
    pub(crate) fn leave(&self, id: &str) -> Result<(), HoldError> {
        self.leave_key(&key(id))
    }

    /// The same of whatever is held under this key.
    ///
    /// # Errors
    /// As [`Self::leave`].
    pub(crate) fn leave_key(&self, key: &str) -> Result<(), HoldError> {
        let mut state = self.exchange_with(|state, link, seq| match state.holdings.get(key) {
            Some(holding) => {
                let (mut what, fds) = holding.written(key);
                what.leave();
                link.send(&FromWorker::Hold { seq, what }, &fds)
            }
            None => link.send(&FromWorker::Forget { seq, key: key.into() }, &[]),
        })?;
        if let Some(holding) = state.holdings.get_mut(key) {
            holding.leave();
        }
        Ok(())
    }

    /// Tells the keeper and waits for its answer; tells its successor when it dies meanwhile.
    /// The lock is held from the answer on, so that a successor misses nothing.
    fn exchange(
        &self,
        send: impl Fn(&Link, u64) -> io::Result<()>,
    ) -> Result<MutexGuard<'_, State>, HoldError> {
        self.exchange_with(|_, link, seq| send(link, seq))
    }

    /// The same for what is made of what is held.
    fn exchange_with(
        &self,
        send: impl Fn(&State, &Link, u64) -> io::Result<()>,
    ) -> Result<MutexGuard<'_, State>, HoldError> {
        let mut state = self.state();
        while let Some(link) = state.link.clone() {
            let seq = state.next;
            state.next += 1;
            if let Err(error) = send(&state, &link, seq) {
                if !is_closed(&error) {
                    return Err(error.into());
                }
                state.lose(&link);
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
                Some(Some(why)) => return Err(HoldError::Refused(why)),
                None if open(&state) => {
                    let pid = state.words.as_ref().map_or(0, |words| words.pid);
                    return Err(HoldError::Late { pid });
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
    pub(crate) fn succeed(
        &self,
        binary: Option<&Path>,
        way: BorrowedFd<'_>,
    ) -> Result<(), HoldError> {
        let binary = binary.map(Path::to_path_buf);
        self.ask(|link, seq| {
            link.send(&FromWorker::Succeed { seq, binary: binary.clone() }, &[way])
        })
    }

    /// Tells that the other worker is about to go on in place of this one.
    ///
    /// # Errors
    /// There is no keeper, or that worker has ended.
    pub(crate) fn give_way(&self) -> Result<(), HoldError> {
        self.ask(|link, seq| link.send(&FromWorker::Yield { seq }, &[]))
    }

    /// Has the other worker killed, and waits for its end.
    ///
    /// # Errors
    /// There is no keeper, or it does not answer.
    pub(crate) fn abandon(&self) -> Result<(), HoldError> {
        self.ask(|link, seq| link.send(&FromWorker::Abandon { seq }, &[]))
    }

    /// Has something done that only a keeper can do.
    fn ask(&self, send: impl Fn(&Link, u64) -> io::Result<()>) -> Result<(), HoldError> {
        let state = self.exchange(send)?;
        if state.link.is_some() { Ok(()) } else { Err(HoldError::NoKeeper) }
    }

    /// Says something that needs no answer.
    pub(super) fn say(&self, record: &FromWorker) {
        // Under the lock, so that it does not overtake what is being replayed.
        if let Some(link) = &self.state().link {
            // A keeper that is gone need not know.
            let _ = link.send(record, &[]);
        }
    }

    /// Calls or front-ends are taken.
    pub(crate) fn ready(&self) {
        self.say(&FromWorker::Ready);
    }

    /// From here on this process ends in order: the keeper starts no other.
    pub(crate) fn ending(&self) {
        self.state().ending = true;
        self.say(&FromWorker::Ending);
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
    pub(crate) fn keeper(&self) -> Option<Words> {
        let state = self.state();
        state.link.as_ref().and(state.words.clone()).filter(|_| state.introduced)
    }

    /// What is held for this key, with descriptors of its own.
    pub(crate) fn holding(&self, key: &str) -> Option<io::Result<Holding>> {
        self.state().holdings.get(key).map(Holding::twin)
    }

    /// A disk's holding.
    pub(crate) fn disk(&self, id: &str) -> Option<io::Result<Holding>> {
        self.holding(&key(id))
    }

    /// The disk of a program that has but one, with what goes with it.
    pub(crate) fn only_disk(&self) -> Option<io::Result<(Held, Kept)>> {
        let held = match self.disks().into_iter().next()? {
            Found::Known(held) => held,
            Found::Novel { reason, .. } => return Some(Err(io::Error::other(reason))),
        };
        let holding = self.disk(&held.spec.id)?;
        Some(holding.map(|holding| (held, Kept::from(holding))))
    }

    /// All disks that are held.
    pub(crate) fn disks(&self) -> Vec<Found> {
        let state = self.state();
        let read = |(key, holding): (&String, &Holding)| {
            key.strip_prefix(DISK).map(|id| Found::read(id, &holding.data))
        };
        state.holdings.iter().filter_map(read).collect()
    }
}
