//! Processes of a daemon that is gone.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

/// Longest wait for the end of one that was killed.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// How the names of programs begin that a daemon starts.
const PROGRAMS: [&str; 2] = ["ringway", "qemu-system"];

/// A process whose end is waited for.
#[derive(Debug)]
pub(super) struct ExitingProcess(AsyncFd<OwnedFd>);

impl ExitingProcess {
    /// Of this process.
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

    /// Sends it a signal. One that has ended takes none.
    pub(super) fn signal(&self, signal: Signal) {
        let _gone = pidfd_send_signal(self.0.get_ref(), signal);
    }

    /// Whether it has ended within this time.
    pub(super) async fn within(&self, deadline: Duration) -> bool {
        timeout(deadline, self.0.readable()).await.is_ok()
    }
}

/// Kills what was started with this run directory; says what it was.
pub(super) async fn kill(run: &Path) -> Vec<String> {
    let mut killed = Vec::new();
    // One that is killed may have started another just before.
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
            // First the descriptor, then the look: the number may belong to another by then.
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
