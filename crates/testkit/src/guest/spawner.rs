//! A thread that lives as long as the test process and starts the guests.
//!
//! Guests ask the kernel to kill them when their parent dies (`setpriv --pdeathsig`). The kernel
//! takes the *thread* that started them for the parent. A test's own thread may end before its
//! guest.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::error::{Error, Result};
use crate::process::Process;

type Job = Box<dyn FnOnce() + Send>;

static JOBS: OnceLock<Sender<Job>> = OnceLock::new();

/// Runs `start` on the spawner thread and returns its result.
pub(crate) fn start(start: impl FnOnce() -> Result<Process> + Send + 'static) -> Result<Process> {
    let (answer, answered) = channel();
    let job: Job = Box::new(move || {
        // Fails only if the caller's thread is gone, and the process with it.
        let _ = answer.send(start());
    });
    let jobs = JOBS.get_or_init(|| {
        let (jobs, queue) = channel::<Job>();
        thread::spawn(move || queue.into_iter().for_each(|job| job()));
        jobs
    });
    let gone = || Error::Full { what: "the thread that starts guests, which has ended".into() };
    jobs.send(job).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}
