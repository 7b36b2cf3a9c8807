//! Thread of a reactor and its loop.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::core::Core;
use crate::mailbox::Mailbox;
use crate::panic;
use crate::{Context, Handle, clock_ns};

/// Completions taken at a time.
const REAP_BATCH: usize = 256;

/// Reactor thread. Dropping it drops its pollers, waits for the operations in flight, and joins the
/// thread.
#[derive(Debug)]
pub struct Reactor {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Reactor {
    /// Starts a thread with the name `name`.
    ///
    /// # Errors
    /// Fails if the kernel grants no io_uring, no thread, or no descriptors.
    pub fn spawn(name: impl Into<String>) -> std::io::Result<Self> {
        Self::start(name.into(), Mailbox::new()?)
    }

    /// Starts a thread as [`Self::spawn`] does, with `first` as its first task: the thread runs it
    /// before it sleeps.
    ///
    /// # Errors
    /// Fails if the kernel grants no io_uring, no thread, or no descriptors.
    pub fn spawn_with(
        name: impl Into<String>,
        first: impl FnOnce(&mut Context<'_>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let mailbox = Mailbox::new()?;
        // The mailbox is new, so it cannot be closed.
        let _ = mailbox.send(Box::new(first));
        Self::start(name.into(), mailbox)
    }

    fn start(name: String, mailbox: Mailbox) -> std::io::Result<Self> {
        let mailbox = Arc::new(mailbox);
        let handle = Handle(mailbox.clone());
        let (ready, wait) = mpsc::sync_channel(1);
        panic::install();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            panic::end_process_on_panic();
            // The ring must be created by the thread that uses it.
            match Core::new(mailbox.clone()) {
                Ok(core) => {
                    let _ = ready.send(Ok(()));
                    let _close = CloseOnExit(mailbox);
                    run(core);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        })?;
        match wait.recv() {
            Ok(Ok(())) => Ok(Self { handle, thread: Some(thread) }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(std::io::Error::other("reactor thread ended before it began")),
        }
    }

    /// Returns the handle for other threads.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        let _ = self.handle.send(|context| context.stop());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Closes the mailbox however the thread ends, which reports the stop to waiting senders.
struct CloseOnExit(Arc<Mailbox>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn run(mut core: Core) {
    let mut cqe = Vec::with_capacity(REAP_BATCH);
    let mut slept = None;
    loop {
        core.ring.reap(&mut cqe);
        for one in cqe.drain(..) {
            core.deliver(one);
        }
        if core.tasks {
            core.tasks = false;
            core.woken_by_letter(slept);
            for letter in core.mailbox.take() {
                letter(&mut core.context());
            }
        }
        if core.stopping {
            break;
        }
        let worked = core.turn();
        let sleeps = core.is_idle();
        core.end_turn(!worked && !sleeps);
        slept = sleeps.then(clock_ns);
        if sleeps {
            core.mailbox.counters.add_sleep();
            core.ring.sleep();
            core.clock.slept();
        } else {
            core.ring.flush();
        }
        let syscalls = core.ring.take_syscalls();
        if syscalls > 0 {
            core.mailbox.counters.add_syscalls(syscalls);
        }
    }
    finish(core, cqe);
}

/// Waits until the kernel owns no memory of this reactor any more.
fn finish(mut core: Core, mut cqe: Vec<crate::ring::Cqe>) {
    core.mailbox.close();
    core.evict_all();
    while core.in_kernel() > 0 {
        core.ring.sleep();
        core.ring.reap(&mut cqe);
        for one in cqe.drain(..) {
            core.deliver(one);
        }
    }
}
