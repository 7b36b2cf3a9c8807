//! Ends processes that a daemon has left behind.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

/// Longest wait for the end of a killed process.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// Name prefixes of the programs that a daemon starts.
const PROGRAMS: [&str; 2] = ["ringway", "qemu-system"];

/// A process that is expected to end.
#[derive(Debug)]
pub(super) struct ExitingProcess(AsyncFd<OwnedFd>);

impl ExitingProcess {
    /// Watches this process.
    ///
    /// # Errors
    /// The system refuses.
    #[allow(
        deprecated,
        reason = "what replaces it asks for a promise that only other types than OwnedFd need"
    )]
    pub(super) fn of(process: OwnedFd) -> anyhow::Result<Self> {
        let registered = AsyncFd::with_interest(process, Interest::READABLE);
        Ok(Self(registered.context("cannot wait for a process")?))
    }

    /// Sends a signal. A process that has ended ignores it.
    pub(super) fn signal(&self, signal: Signal) {
        let _gone = pidfd_send_signal(self.0.get_ref(), signal);
    }

    /// Waits for the end. Returns whether the process has ended within `deadline`.
    pub(super) async fn within(&self, deadline: Duration) -> bool {
        timeout(deadline, self.0.readable()).await.is_ok()
    }
}

/// Kills all processes that were started with this run directory, and returns their names.
pub(super) async fn kill(run: &Path) -> Vec<String> {
    let mut killed = Vec::new();
    // A killed process may have started another one just before.
    loop {
        let found = processes(run);
        if found.is_empty() {
            return killed;
        }
        for (process, words) in found {
            let Ok(end) = ExitingProcess::of(process) else { return killed };
            end.signal(Signal::KILL);
            killed.push(words);
            if !end.within(KILL_DEADLINE).await {
                return killed;
            }
        }
    }
}

fn processes(run: &Path) -> Vec<(OwnedFd, String)> {
    let name = run.display().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let others = pids.filter(|pid| u32::try_from(*pid) != Ok(std::process::id()));
    others
        .filter_map(|pid| {
            // Open the descriptor before the check: the pid may be reused at any time.
            let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::NONBLOCK).ok()?;
            let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let words = String::from_utf8_lossy(&words).replace('\0', " ");
            let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            let program = program.file_name()?.to_str()?;
            let ours = PROGRAMS.iter().any(|ours| program.starts_with(ours));
            (ours && words.contains(&name)).then_some((process, words))
        })
        .collect()
}
