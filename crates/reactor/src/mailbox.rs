//! Tasks for a reactor from other threads.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use rustix::event::{EventfdFlags, eventfd};

use crate::cpus::SpinRequest;
use crate::{Context, ReactorCounters, clock_ns};

type Task = Box<dyn FnOnce(&mut Context<'_>) + Send>;

/// Error of a reactor that has stopped: it runs no task sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reactor has stopped")]
pub struct Stopped;

#[derive(Default)]
struct Inbox {
    tasks: Vec<Task>,
    closed: bool,
}

/// Number of the next reactor in this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Mailbox {
    pub(crate) number: u32,
    inbox: Mutex<Inbox>,
    /// Eventfd that is written once for each task. The reactor watches it like any other eventfd.
    bell: Arc<OwnedFd>,
    pub(crate) counters: ReactorCounters,
    pub(crate) spin_request: Arc<SpinRequest>,
    /// Time at which the eventfd was last written; 0 once the reactor has read it.
    notified_at: AtomicU64,
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (inbox, counters) = (Mutex::default(), ReactorCounters::default());
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (spin_request, rung) = (Arc::default(), AtomicU64::new(0));
        Ok(Self { number, inbox, bell: Arc::new(bell), counters, spin_request, notified_at: rung })
    }

    pub(crate) fn bell(&self) -> Arc<OwnedFd> {
        self.bell.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // A poisoned lock is usable: a sender that panicked left a whole task or none.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self) -> Vec<Task> {
        std::mem::take(&mut self.lock().tasks)
    }

    /// Returns the time of the last write to the eventfd and resets it; 0 if there was none.
    pub(crate) fn rung_at(&self) -> u64 {
        self.notified_at.swap(0, Ordering::Relaxed)
    }

    /// Rejects further tasks and drops the waiting ones, which reports the stop to their senders.
    pub(crate) fn close(&self) {
        let mut inbox = self.lock();
        inbox.closed = true;
        let letters = std::mem::take(&mut inbox.tasks);
        drop(inbox);
        drop(letters);
    }

    pub(crate) fn send(&self, letter: Task) -> Result<(), Stopped> {
        let mut inbox = self.lock();
        if inbox.closed {
            return Err(Stopped);
        }
        inbox.tasks.push(letter);
        drop(inbox);
        self.notified_at.store(clock_ns(), Ordering::Relaxed);
        // EAGAIN: the counter is full, so the eventfd is signalled already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        Ok(())
    }
}

/// Sender of tasks to a reactor. Cheap to clone; may outlive the reactor.
#[derive(Clone)]
pub struct Handle(pub(crate) Arc<Mailbox>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Handle").field(&self.0.counters).finish()
    }
}

impl Handle {
    /// Queues `letter` to run on the reactor; does not wait.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has stopped.
    pub fn send(
        &self,
        letter: impl FnOnce(&mut Context<'_>) + Send + 'static,
    ) -> Result<(), Stopped> {
        self.0.send(Box::new(letter))
    }

    /// Runs `letter` on the reactor and waits for its result. A reactor thread must never call
    /// this: it would wait for itself.
    ///
    /// # Errors
    /// [`Stopped`] if the reactor has stopped, or stops before it answers.
    pub fn call<R: Send + 'static>(
        &self,
        letter: impl FnOnce(&mut Context<'_>) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let (answer, wait) = mpsc::sync_channel(1);
        self.send(move |context| {
            // The caller waits below, so the result is always received.
            let _ = answer.send(letter(context));
        })?;
        wait.recv().map_err(|_| Stopped)
    }

    /// Returns the number of the reactor in the process. Numbers begin at 0, in order of creation.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns the time that the reactor's thread was ready to run and the host gave it no CPU, in
    /// nanoseconds. Returns `None` if the kernel does not count it, or the thread has ended. Reads a
    /// file of procfs.
    pub fn cpu_wait_ns(&self) -> Option<u64> {
        self.0.spin_request.cpu_wait_ns()
    }

    /// Returns the counters of the reactor.
    pub fn counters(&self) -> &ReactorCounters {
        &self.0.counters
    }
}
