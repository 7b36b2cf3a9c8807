//! Work on storage that may never complete.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Instant;

/// Work that continues on its thread after its caller stopped waiting.
#[derive(Debug)]
pub(crate) struct OverdueWork<R>(Receiver<R>);

impl<R> OverdueWork<R> {
    /// Waits until the work ends, without a deadline. Returns `None` if it panicked; the panic has
    /// been reported.
    pub(crate) fn wait(self) -> Option<R> {
        self.0.recv().ok()
    }
}

/// Runs `work` on its own thread and waits for it until `deadline`. A system call on hung storage
/// cannot be interrupted, so only its thread can be abandoned.
///
/// # Errors
/// [`OverdueWork`]: the work has not ended yet.
pub(crate) fn run_with_deadline<R: Send + 'static, W: FnOnce() -> R + Send + 'static>(
    deadline: Instant,
    work: W,
) -> Result<R, OverdueWork<R>> {
    let (answer, wait) = sync_channel(1);
    // Pass the work to the thread. If no thread can be started, run it here: late is better than
    // never.
    let (give, take) = sync_channel::<W>(1);
    let run = move || {
        if let Ok(work) = take.recv() {
            // The caller may have stopped waiting.
            let _ = answer.send(work());
        }
    };
    let Ok(_) = std::thread::Builder::new().name("storage".into()).spawn(run) else {
        return Ok(work());
    };
    // The thread exists, so it receives this.
    let _ = give.send(work);
    let left = deadline.saturating_duration_since(Instant::now());
    match wait.recv_timeout(left) {
        Ok(result) => Ok(result),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(OverdueWork(wait)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_is_waited_for_until_the_deadline() {
        let soon = Instant::now() + Duration::from_secs(60);
        assert_eq!(run_with_deadline(soon, || 7).unwrap(), 7);
        let (go, wait) = sync_channel(1);
        let overdue_work =
            run_with_deadline(Instant::now(), move || wait.recv().unwrap()).unwrap_err();
        go.send(8).unwrap();
        assert_eq!(overdue_work.wait(), Some(8));
    }
}
