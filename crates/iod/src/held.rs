//! What outlives a worker: the one door through which a disk's state goes to the keeper.
//!
//! Everything about a disk that a caller was told and that a new worker must know again is in
//! [`Held`]; its descriptors go with it. Whoever changes it says so through [`Door::hold`] before
//! the caller is answered, so that an answered call is never forgotten. What was not answered is
//! either there afterwards or not, whole.
//!
//! Without a keeper the door only remembers: one that comes later is told everything.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::export::ExportSpec;
use model::spec::DiskSpec;
use serde::{Deserialize, Serialize};
use vhost_user::{Parts, Stop};

use crate::link::{FromKeeper, FromWorker, Holding, Link, Words, is_closed};

/// Longest wait for the keeper: it does nothing that takes time.
const HOLD_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for room in the link: a keeper that reads nothing is stopped or broken.
pub(crate) const SAY_DEADLINE: Duration = Duration::from_secs(5);
/// Key of the control socket; those of disks have a slash.
pub(crate) const CONTROL: &str = "control";

/// A disk as its next worker finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// As it was asked for, with all changes since.
    pub spec: DiskSpec,
    /// It holds the lock.
    pub active: bool,
    /// It serves nothing until it is resumed.
    #[serde(default)]
    pub paused: bool,
    /// It is being detached: nothing but the end of that is left to do.
    #[serde(default)]
    pub leaving: bool,
    /// Size in bytes that guests were told.
    #[serde(default)]
    pub size: Option<u64>,
    /// Which file or device the image is.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Its NBD exports.
    #[serde(default)]
    pub exports: Vec<ExportSpec>,
}

/// A file or block device, whatever path leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Number of the block device, or of the file system that the file is in.
    pub device: u64,
    /// The file's number there, 0 for a block device.
    pub inode: u64,
    /// When the file was made, in nanoseconds since 1970.
    #[serde(default)]
    pub born_ns: Option<u64>,
}

impl From<disk::Identity> for Identity {
    fn from(found: disk::Identity) -> Self {
        let disk::Identity { device, inode, born_ns } = found;
        Self { device, inode, born_ns }
    }
}

/// Descriptors of a disk that outlive a worker.
#[derive(Debug, Default)]
pub struct Kept {
    /// Where front-ends connect; none where we connect to them.
    pub listener: Option<Parts>,
    /// A memory disk's bytes.
    pub memory: Option<OwnedFd>,
    /// Where clients of its exports connect, in the order of [`Held::exports`]. A disk that
    /// connects to its front-end has none.
    pub exports: Vec<Parts>,
}

impl From<Holding> for Kept {
    fn from(holding: Holding) -> Self {
        let Holding { sockets, fds, .. } = holding;
        let mut sockets = sockets.into_iter();
        let listener = sockets.next();
        Self { listener, memory: fds.into_iter().next(), exports: sockets.collect() }
    }
}

/// The keeper does not hold what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Descriptors cannot be shared, or the link is broken in an odd way.
    #[error("cannot have it held")]
    Os(#[from] io::Error),
    /// It does not answer.
    #[error("the keeper (process {pid}) does not answer; look whether it is stopped")]
    Late {
        /// Its process id.
        pid: u32,
    },
    /// There is none.
    #[error("this process has no keeper; start ringway-io with the same --control to have it kept")]
    NoKeeper,
    /// It refused.
    #[error("the keeper refused: {0}")]
    Refused(String),
    /// Another one is faster.
    #[error("another process is just taking over; try again if it ends")]
    Adopting,
    /// It has a keeper.
    #[error("already served by process {pid}")]
    Kept {
        /// The keeper's process id.
        pid: u32,
    },
    /// The words do not fit.
    #[error("cannot be written down")]
    Words(#[from] serde_json::Error),
}

/// Way to the keeper, if there is one. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Door {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// An answer has come, or none can come any more.
    answered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    link: Option<Arc<Link>>,
    /// A new keeper is being told everything; until then nothing goes to it but that.
    adopting: bool,
    /// Of the keeper, or of the last one when `introduced` is not set.
    words: Option<Words>,
    introduced: bool,
    /// Everything that is held, for a keeper that comes later.
    holdings: BTreeMap<String, Holding>,
    next: u64,
    /// This process ends in order.
    ending: bool,
    /// Calls that wait, with what the keeper said.
    calls: BTreeMap<u64, Option<Option<String>>>,
}

/// Key of a disk.
fn key(id: &str) -> String {
    format!("disk/{id}")
}

impl Door {
    /// The way to the keeper at the other end of `link`, with what it has given back.
    pub(crate) fn open(link: Arc<Link>, words: Words, holdings: BTreeMap<String, Holding>) -> Self {
        let (link, words) = (Some(link), Some(words));
        let state = State { link, words, introduced: true, holdings, ..State::default() };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), answered: Condvar::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
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

    fn replace(&self, key: String, holding: Holding) -> Result<(), HoldError> {
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
        let key = key(id);
        let forget =
            |link: &Link, seq| link.send(&FromWorker::Forget { seq, key: key.clone() }, &[]);
        let mut state = self.exchange(forget)?;
        state.holdings.remove(&key);
        Ok(())
    }

    /// Tells the keeper and waits for its answer; tells its successor when it dies meanwhile.
    /// The lock is held from the answer on, so that a successor misses nothing.
    fn exchange(
        &self,
        send: impl Fn(&Link, u64) -> io::Result<()>,
    ) -> Result<MutexGuard<'_, State>, HoldError> {
        let mut state = self.state();
        while let Some(link) = state.link.clone() {
            let seq = state.next;
            state.next += 1;
            if let Err(error) = send(&link, seq) {
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
    fn say(&self, record: &FromWorker) {
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
        let held = self.disks().into_iter().next()?;
        let holding = self.disk(&held.spec.id)?;
        Some(holding.map(|holding| (held, Kept::from(holding))))
    }

    /// All disks that are held.
    pub(crate) fn disks(&self) -> Vec<Held> {
        let state = self.state();
        let disks = state.holdings.iter().filter(|(key, _)| key.as_str() != CONTROL);
        disks
            .filter_map(|(key, holding)| match serde_json::from_value(holding.data.clone()) {
                Ok(held) => Some(held),
                Err(error) => {
                    tracing::error!(key, "what is held for it cannot be understood: {error}");
                    None
                }
            })
            .collect()
    }

    /// Hears the keeper until its end, and gives `end` when this process is to end.
    pub(crate) fn attend(&self, link: &Arc<Link>, end: &Stop) {
        loop {
            match link.receive::<FromKeeper>() {
                Ok(Some((record, _))) => {
                    if self.heard(record) {
                        end.stop();
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::error!("the keeper cannot be understood: {error}");
                    break;
                }
            }
        }
        let mut state = self.state();
        state.lose(link);
        self.shared.answered.notify_all();
        if state.words.as_ref().is_some_and(|words| words.die_together) {
            end.stop();
        } else {
            let advice = if state.holdings.contains_key(CONTROL) {
                "start ringway-io with the same --control to keep it again"
            } else {
                "end it with SIGTERM and start it again when its guest can bear that"
            };
            tracing::warn!(
                "the keeper is gone: serving goes on, but nobody would replace this process; \
                 {advice}"
            );
        }
    }

    /// A link for a new keeper, who is told everything that is held, and what the last one knew.
    ///
    /// # Errors
    /// [`HoldError::Kept`], or no descriptors and threads.
    pub(crate) fn adopt(&self, end: &Stop) -> Result<(Words, OwnedFd), HoldError> {
        let mut state = self.state();
        if state.adopting {
            return Err(HoldError::Adopting);
        }
        if let Some(link) = state.link.clone() {
            if !link.is_closed()? {
                let pid = state.words.as_ref().map_or(0, |words| words.pid);
                return Err(HoldError::Kept { pid });
            }
            state.lose(&link);
            self.shared.answered.notify_all();
        }
        let (link, theirs) = Link::pair()?;
        link.limit_waits(SAY_DEADLINE)?;
        let (door, end) = (self.clone(), end.clone());
        let work = move || {
            if let Some(link) = door.tell_everything(link) {
                door.attend(&link, &end);
            }
        };
        std::thread::Builder::new().name("keeper".into()).spawn(work)?;
        state.adopting = true;
        Ok((state.words.clone().unwrap_or_default(), theirs))
    }

    /// Tells a new keeper everything that is held. From then on verbs go to it: what changes
    /// before is only remembered, so that nothing older is told after it. If it cannot be told,
    /// its link is closed.
    fn tell_everything(&self, link: Link) -> Option<Arc<Link>> {
        // Held until all is said.
        let mut state = self.state();
        state.adopting = false;
        let mut told = Ok(());
        for (key, holding) in &state.holdings {
            let (what, fds) = holding.written(key);
            // Its answer is not waited for; no call has this number.
            told = told.and_then(|()| link.send(&FromWorker::Hold { seq: u64::MAX, what }, &fds));
        }
        if state.ending {
            told = told.and_then(|()| link.send(&FromWorker::Ending, &[]));
        }
        if let Err(error) = told {
            tracing::error!("a new keeper could not be told what is held: {error}");
            return None;
        }
        let link = Arc::new(link);
        (state.link, state.introduced) = (Some(Arc::clone(&link)), false);
        Some(link)
    }

    /// Takes a record; true: end in order.
    fn heard(&self, record: FromKeeper) -> bool {
        match record {
            FromKeeper::Done { seq, problem } => {
                if let Some(call) = self.state().calls.get_mut(&seq) {
                    *call = Some(problem);
                }
                self.shared.answered.notify_all();
            }
            FromKeeper::Keeper(words) => {
                let mut state = self.state();
                (state.words, state.introduced) = (Some(words), true);
                drop(state);
                // It has been told everything by now.
                self.ready();
            }
            FromKeeper::Ping => self.say(&FromWorker::Pong),
            FromKeeper::Stop => return true,
            FromKeeper::Restore { .. } | FromKeeper::TakeOver | FromKeeper::Begin => {}
        }
        false
    }
}

impl State {
    /// Nobody is at the other end any more.
    fn lose(&mut self, link: &Arc<Link>) {
        if self.link.as_ref().is_some_and(|now| Arc::ptr_eq(now, link)) {
            self.link = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(data: u64) -> Holding {
        Holding { data: data.into(), ..Holding::default() }
    }

    /// A keeper that hears until something is held under `last`: what it holds then.
    fn keep(link: &Link, last: &str) -> BTreeMap<String, serde_json::Value> {
        let mut held = BTreeMap::new();
        loop {
            let (record, fds) = link.receive().unwrap().unwrap();
            let seq = match record {
                FromWorker::Hold { seq, what } => {
                    let (key, holding) = Holding::read(what, fds).unwrap();
                    held.insert(key, holding.data);
                    seq
                }
                FromWorker::Forget { seq, key } => {
                    held.remove(&key);
                    seq
                }
                other => panic!("{other:?}"),
            };
            link.send(&FromKeeper::Done { seq, problem: None }, &[]).unwrap();
            if held.contains_key(last) {
                return held;
            }
        }
    }

    #[test]
    fn an_adopting_keeper_ends_with_what_is_newest() {
        for _ in 0..20 {
            let door = Door::default();
            for key in ["disk/a", "disk/b", "disk/c"] {
                door.replace(key.into(), holding(1)).unwrap();
            }
            let end = Stop::new().unwrap();
            let (_, theirs) = door.adopt(&end).unwrap();
            let keeper = std::thread::spawn(move || keep(&Link::new(theirs), "last"));
            // Before the new keeper is told anything, most likely.
            door.replace("disk/b".into(), holding(2)).unwrap();
            door.forget("c").unwrap();
            door.replace("last".into(), holding(3)).unwrap();
            let held = keeper.join().unwrap();
            let expected = [("disk/a", 1u64), ("disk/b", 2), ("last", 3)];
            assert_eq!(held, expected.map(|(key, data)| (key.into(), data.into())).into());
        }
    }

    #[test]
    fn a_keeper_that_cannot_be_told_is_none_and_another_one_may_come() {
        let door = Door::default();
        let long = "x".repeat(crate::link::MAX_RECORD_BYTES);
        door.replace("disk/a".into(), Holding { data: long.into(), ..Holding::default() }).unwrap();
        let end = Stop::new().unwrap();
        let (_, theirs) = door.adopt(&end).unwrap();
        let theirs = Link::new(theirs);
        assert!(theirs.receive::<FromWorker>().unwrap().is_none(), "the link is closed");
        assert!(door.keeper().is_none());
        door.replace("disk/a".into(), holding(1)).unwrap();
        let (_, theirs) = door.adopt(&end).unwrap();
        assert_eq!(keep(&Link::new(theirs), "disk/a").len(), 1);
    }
}
