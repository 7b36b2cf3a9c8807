//! Daemon of the demo: a `ringwayd` with its own directories. With `--keep` it outlives the demo.

use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::time::timeout;
use toolstack::binaries;
use toolstack::json_lines::JsonLines;
use toolstack::run::scratch_of_user;

use super::machine::Api;
use super::process_exit;

/// Name of the daemon's program.
const RINGWAYD: &str = "ringwayd";
/// Longest wait until the daemon serves.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// Longest wait until its machines have ended and no process serves a disk.
const EMPTY_DEADLINE: Duration = Duration::from_secs(90);
/// Longest wait for the end of the daemon.
const END_DEADLINE: Duration = Duration::from_secs(20);
/// Longest line that reports readiness, in bytes.
const READY_BYTES: usize = 4096;
/// Maximum part of the log in an error, in bytes.
const LOG_TAIL_BYTES: usize = 2048;

/// Subdirectory for the daemon's persistent state, including images.
const STATE: &str = "state";
/// Symbolic link to the directory of its sockets, whose paths must be short.
const RUN: &str = "run";
/// Name of its configuration file.
const CONFIG: &str = "ringwayd.toml";
/// Name of its log.
const LOG: &str = "ringwayd.log";
/// Name of its API socket in the directory of its sockets.
const SOCKET: &str = "ringwayd.sock";

/// The daemon and its directories.
#[derive(Clone, Debug)]
pub(super) struct Host {
    dir: PathBuf,
    run: PathBuf,
}

impl Host {
    /// Creates the directories in the empty `dir`. Machines boot from `guest`.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn prepare(dir: &Path, guest: &Path) -> anyhow::Result<Self> {
        let scratch = scratch_of_user();
        let run = tempfile::Builder::new()
            .prefix("rw-demo-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(&scratch)
            .with_context(|| format!("cannot make a directory under {}", scratch.display()))?
            .keep();
        let host = Self { dir: dir.to_owned(), run };
        if let Err(error) = host.describe(guest) {
            let _stays = fs::remove_dir(&host.run);
            return Err(error);
        }
        Ok(host)
    }

    fn describe(&self, guest: &Path) -> anyhow::Result<()> {
        let failed = || format!("cannot write to {}", self.dir.display());
        symlink(&self.run, self.dir.join(RUN)).with_context(failed)?;
        let guest = fs::canonicalize(guest).context("the test guest does not exist any more")?;
        let guest = serde_json::Value::from(guest.to_string_lossy());
        // Only this user can reach the daemon, through its socket. A JSON string is a TOML string.
        // The daemon leaves the host's control groups unchanged.
        let config =
            format!("listen = []\n\n[boot]\ndirectories = [{guest}]\n\n[slices]\nmode = \"off\"\n");
        fs::write(self.dir.join(CONFIG), config).with_context(failed)
    }

    /// Finds the daemon that an earlier demo left running in `dir`.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn found(dir: &Path) -> anyhow::Result<Self> {
        let run = fs::read_link(dir.join(RUN));
        let none = || format!("{} is not the directory of a kept demo", dir.display());
        Ok(Self { dir: dir.to_owned(), run: run.with_context(none)? })
    }

    /// Returns the path of its API socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.run.join(SOCKET)
    }

    /// Returns the directory of its sockets.
    pub(super) fn run(&self) -> &Path {
        &self.run
    }

    /// Starts the daemon and waits until it serves. With `echo`, its log goes to standard error.
    ///
    /// # Errors
    /// The program does not exist, or does not serve; then the error has the end of its log.
    pub(super) async fn start(&self, echo: bool) -> anyhow::Result<()> {
        let log = self.dir.join(LOG);
        let stderr = match echo {
            true => Stdio::inherit(),
            false => File::create(&log).context("cannot make the daemon's log")?.into(),
        };
        let mut command = Command::new(binaries::ours(RINGWAYD)?);
        command.arg("--state").arg(self.dir.join(STATE)).arg("--run").arg(&self.run);
        command.arg("--socket").arg(self.socket()).arg("--config").arg(self.dir.join(CONFIG));
        // Ctrl-C at the terminal signals only this process.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().context("cannot start ringwayd")?;
        let stdout = child.stdout.take().context("ringwayd has no output")?;
        // The runtime waits for the child as long as this process lives.
        drop(child);
        match timeout(READY_DEADLINE, JsonLines::new(stdout, READY_BYTES).next_text()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => bail!("ringwayd ended before it served: {}", tail(&log)),
            Err(_) => bail!("ringwayd does not serve after {} s", READY_DEADLINE.as_secs()),
        }
    }

    /// Ends the daemon with everything that it has started, and removes its directories. Continues
    /// after errors and returns them as texts.
    pub(super) async fn end(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        let daemon = self.daemon().await;
        if let Some(daemon) = daemon {
            let socket = self.socket();
            let empty = tokio::task::spawn_blocking(move || Api::open(&socket)?.end());
            match timeout(EMPTY_DEADLINE, empty).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) => troubles.push(format!("the machines: {error:#}")),
                Ok(Err(error)) => troubles.push(error.to_string()),
                Err(_) => troubles.push("the machines did not end in time".into()),
            }
            if let Err(error) = ended(daemon).await {
                troubles.push(format!("ringwayd: {error:#}"));
            }
        }
        // A daemon that does not answer has left processes behind.
        let killed = process_exit::kill(&self.run).await;
        troubles.extend(killed.into_iter().map(|one| format!("had to be killed: {one}")));
        for path in [&self.run, &self.dir] {
            if let Err(error) = fs::remove_dir_all(path) {
                troubles.push(format!("cannot remove {}: {error}", path.display()));
            }
        }
        troubles
    }

    /// Returns the daemon's process; `None` if no process answers calls.
    async fn daemon(&self) -> Option<OwnedFd> {
        let stream = UnixStream::connect(self.socket()).await.ok()?;
        let pid = stream.peer_cred().ok()?.pid()?;
        pidfd_open(Pid::from_raw(pid)?, PidfdFlags::NONBLOCK).ok()
    }
}

/// Asks a process to end, then kills it.
async fn ended(process: OwnedFd) -> anyhow::Result<()> {
    let end = process_exit::ExitingProcess::of(process)?;
    end.signal(Signal::TERM);
    if end.within(END_DEADLINE).await {
        return Ok(());
    }
    end.signal(Signal::KILL);
    end.within(END_DEADLINE).await;
    bail!("the process did not end within {} s and was killed", END_DEADLINE.as_secs())
}

/// Returns the end of a log on one line.
fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = text.get(text.len().saturating_sub(LOG_TAIL_BYTES)..).unwrap_or_default();
    String::from_utf8_lossy(text).trim().replace('\n', "; ")
}
