//! Work for a reactor from other threads.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use rustix::event::{EventfdFlags, eventfd};

use crate::cpus::SpinRequest;
use crate::{Context, ReactorCounters, clock_ns};

type Task = Box<dyn FnOnce(&mut Context<'_>) + Send>;

/// The reactor has ended; nothing that is sent to it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reactor has stopped")]
pub struct Stopped;

#[derive(Default)]
struct Inbox {
    letters: Vec<Task>,
    closed: bool,
}

/// Numbers of the reactors of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Mailbox {
    pub(crate) number: u32,
    inbox: Mutex<Inbox>,
    /// Written once a letter; the reactor watches it like any other eventfd.
    bell: Arc<OwnedFd>,
    pub(crate) counters: ReactorCounters,
    pub(crate) spin_request: Arc<SpinRequest>,
    /// When the bell was rung last, if the reactor has not looked since.
    rung: AtomicU64,
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (inbox, counters) = (Mutex::default(), ReactorCounters::default());
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (spin_request, rung) = (Arc::default(), AtomicU64::new(0));
        Ok(Self { number, inbox, bell: Arc::new(bell), counters, spin_request, rung })
    }

    pub(crate) fn bell(&self) -> Arc<OwnedFd> {
        self.bell.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // A sender that panicked left a whole letter or none.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self) -> Vec<Task> {
        std::mem::take(&mut self.lock().letters)
    }

    /// When the bell was rung, once; 0 if it was not.
    pub(crate) fn rung_at(&self) -> u64 {
        self.rung.swap(0, Ordering::Relaxed)
    }

    /// Refuses further letters and drops the waiting ones, which tells their senders.
    pub(crate) fn close(&self) {
        let mut inbox = self.lock();
        inbox.closed = true;
        let letters = std::mem::take(&mut inbox.letters);
        drop(inbox);
        drop(letters);
    }

    pub(crate) fn send(&self, letter: Task) -> Result<(), Stopped> {
        let mut inbox = self.lock();
        if inbox.closed {
            return Err(Stopped);
        }
        inbox.letters.push(letter);
        drop(inbox);
        self.rung.store(clock_ns(), Ordering::Relaxed);
        // EAGAIN: the counter is full, so the bell has been rung already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        Ok(())
    }
}

/// Sends work to a reactor. Cheap to clone; outlives the reactor harmlessly.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<Mailbox>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Handle").field(&self.0.counters).finish()
    }
}

impl Handle {
    /// Runs `letter` on the reactor soon; does not wait.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn send(
        &self,
        letter: impl FnOnce(&mut Context<'_>) + Send + 'static,
    ) -> Result<(), Stopped> {
        self.0.send(Box::new(letter))
    }

    /// Runs `letter` on the reactor and waits for what it returns. Never from a reactor thread:
    /// it would wait for itself.
    ///
    /// # Errors
    /// [`Stopped`], also when the reactor ends before it answers.
    pub fn call<R: Send + 'static>(
        &self,
        letter: impl FnOnce(&mut Context<'_>) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let (answer, wait) = mpsc::sync_channel(1);
        self.send(move |context| {
            // The caller waits below, so the answer is always taken.
            let _ = answer.send(letter(context));
        })?;
        wait.recv().map_err(|_| Stopped)
    }

    /// Which reactor of the process it is, from 0 on in the order in which they were made.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// What the reactor has counted.
    pub fn counters(&self) -> &ReactorCounters {
        &self.0.counters
    }
}
