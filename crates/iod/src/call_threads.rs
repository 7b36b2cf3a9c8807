//! Threads of calls that work on storage without a disk.
//!
//! The caller waits until the deadline of its call, or until the process ends or the caller hangs up.
//! Then the work stops at its next step. A thread that the storage holds keeps its permit, so hung
//! storage cannot collect threads.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use model::rpc::{RpcError, code};
use rustix::net::{RecvFlags, recv};
use serde::Serialize;
use serde_json::Value;
use vhost_user::{StopSignal, Woken};

use crate::error::{error_chain, failed};

/// Longest wait for work that was told to stop.
const CLEANUP: Duration = Duration::from_secs(2);

/// Threads of the calls of one kind that are running.
#[derive(Debug)]
pub(crate) struct CallThreads {
    /// Name of a call, in messages.
    name: &'static str,
    limit: usize,
    running: Arc<AtomicUsize>,
}

/// Permit of a running call, returned on drop.
struct CallPermit(Arc<AtomicUsize>);

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CallThreads {
    /// Creates the threads of at most `limit` calls at a time.
    pub(crate) fn new(name: &'static str, limit: usize) -> Self {
        Self { name, limit, running: Arc::default() }
    }

    fn permit(&self) -> Result<CallPermit, RpcError> {
        let permit = CallPermit(Arc::clone(&self.running));
        if permit.0.fetch_add(1, Ordering::Relaxed) < self.limit {
            return Ok(permit);
        }
        let message = format!(
            "this process runs at most {} of this call at a time: {}; try again when one has ended",
            self.limit, self.name
        );
        Err(RpcError { code: code::BUSY, message })
    }

    /// Runs `work` on a thread of its own until `deadline_s`. `caller` is the caller's connection.
    ///
    /// # Errors
    /// The work failed or did not end in time, or too many calls are running.
    pub(crate) fn run<R: Serialize + Send + 'static, E: std::error::Error + Send + 'static>(
        &self,
        deadline_s: u32,
        caller: BorrowedFd<'_>,
        work: impl FnOnce(&Arc<AtomicBool>) -> Result<R, E> + Send + 'static,
    ) -> Result<Value, RpcError> {
        let permit = self.permit()?;
        let ended = StopSignal::new().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (send, receive) = sync_channel(1);
        let (signal, flag) = (ended.clone(), Arc::clone(&stop));
        let thread = move || {
            // The caller may have stopped waiting.
            let _ = send.send(work(&flag));
            drop(permit);
            signal.stop();
        };
        std::thread::Builder::new().name("storage-call".into()).spawn(thread).map_err(failed)?;
        let until = Instant::now() + Duration::from_secs(deadline_s.into());
        let why = wait(&ended, caller, until).map_err(failed)?;
        stop.store(true, Ordering::Relaxed);
        if why != WaitEnd::Ended {
            // It may have a file to remove.
            ended.wait(None, Some(CLEANUP)).map_err(failed)?;
        }
        let late = || RpcError { code: code::FAILED, message: why.text(self.name, deadline_s) };
        let result = match why {
            WaitEnd::Ended => receive.recv().map_err(|_| late())?,
            WaitEnd::Late | WaitEnd::CallerLeft => return Err(late()),
        };
        let value = result
            .map_err(|error| RpcError { code: code::FAILED, message: error_chain(&error) })?;
        serde_json::to_value(value).map_err(failed)
    }
}

/// End of the wait for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Ended,
    Late,
    CallerLeft,
}

impl WaitEnd {
    fn text(self, name: &str, deadline_s: u32) -> String {
        match self {
            Self::Ended => format!("{name} failed inside; the log has the cause"),
            Self::Late => format!(
                "{name} did not end within {deadline_s} s; give it more time, or check its storage"
            ),
            Self::CallerLeft => "the caller hung up, or this process ends".into(),
        }
    }
}

/// Waits until the work ends, the deadline passes, or the caller's side is closed. The end of the
/// process closes it, too.
fn wait(ended: &StopSignal, caller: BorrowedFd<'_>, until: Instant) -> std::io::Result<WaitEnd> {
    let mut watched = Some(caller);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match ended.wait(watched, Some(left))? {
            Woken::Stopped => return Ok(WaitEnd::Ended),
            Woken::TimedOut => return Ok(WaitEnd::Late),
            Woken::Readable => {
                let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                match recv(caller, &mut [0; 1], flags) {
                    Ok((_, 0)) | Err(_) => return Ok(WaitEnd::CallerLeft),
                    // The next call waits for the reply to this one.
                    Ok(_) => watched = None,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn wait_from(caller: &UnixStream, ended: &StopSignal, until: Instant) -> WaitEnd {
        wait(ended, caller.as_fd(), until).unwrap()
    }

    #[test]
    fn a_wait_ends_with_the_work_the_caller_or_the_time() {
        let far = Instant::now() + Duration::from_secs(600);
        let ended = StopSignal::new().unwrap();
        let (caller, other) = UnixStream::pair().unwrap();
        assert_eq!(wait_from(&caller, &ended, Instant::now()), WaitEnd::Late);
        drop(other);
        assert_eq!(wait_from(&caller, &ended, far), WaitEnd::CallerLeft);
        ended.stop();
        assert_eq!(wait_from(&caller, &ended, far), WaitEnd::Ended);
    }

    #[test]
    fn a_caller_that_sends_its_next_call_still_waits() {
        let ended = StopSignal::new().unwrap();
        let (caller, mut other) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut other, b"{}\n").unwrap();
        assert_eq!(wait_from(&caller, &ended, Instant::now()), WaitEnd::Late);
    }

    #[test]
    fn calls_beyond_the_permits_are_told_to_try_again() {
        let threads = CallThreads::new("a call", 4);
        let permits: Vec<_> = (0..4).map(|_| threads.permit().unwrap()).collect();
        assert_eq!(threads.permit().err().unwrap().code, code::BUSY);
        drop(permits);
        assert!(threads.permit().is_ok());
    }

    #[test]
    fn work_that_is_late_is_told_to_stop() {
        let threads = CallThreads::new("a call", 4);
        let (caller, _other) = UnixStream::pair().unwrap();
        let (stopped, wait) = sync_channel(1);
        let refused = threads.run(0, caller.as_fd(), move |stop| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            stopped.send(()).unwrap();
            Ok::<_, std::fmt::Error>(())
        });
        assert!(refused.unwrap_err().message.contains("a call did not end within 0 s"));
        wait.recv().unwrap();
    }
}
