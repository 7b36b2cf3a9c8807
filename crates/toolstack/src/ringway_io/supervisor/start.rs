//! Start of a `ringway-io` that outlives the daemon.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::time::timeout;

use super::{Supervisor, ended};
use crate::cgroup::SliceTree;
use crate::detached_process::DetachedProcess;
use crate::helper_command::HelperCommand;
use crate::ringway_io::DatapathError;
use crate::ringway_io::served_devices::ServedDevice;

/// Environment variables of the service manager for the daemon. `ringway-io` must not inherit them.
const NOT_ITS: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];
/// Log file of this process and the one before it.
const LOG: &str = "log";
/// Largest size of the log file, in bytes.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Longest part of the log that an error contains, in bytes.
const TAIL_BYTES: u64 = 2048;
/// Longest wait from its start until it takes calls.
const READY_DEADLINE: Duration = Duration::from_secs(10);

/// Parameters for starting a `ringway-io`.
#[derive(Clone, Debug)]
pub struct IoLaunch {
    /// Path of the program.
    pub program: PathBuf,
    /// Options beside those for its sockets.
    pub options: Vec<OsString>,
    /// Command that becomes `ringway-io`: the daemon's program in the mode
    /// [`detached_process::MODE`](crate::detached_process::MODE).
    pub helper: HelperCommand,
    /// Control groups. Without them the process stays in the daemon's.
    pub tree: Option<SliceTree>,
}

impl<T: ServedDevice> Supervisor<T> {
    /// Starts a process, and waits until it takes calls.
    pub(super) async fn start(self: &Arc<Self>) -> Result<(), DatapathError> {
        let failed = |source| DatapathError::Start { program: self.launch.program.clone(), source };
        let (ours, theirs): (OwnedFd, OwnedFd) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let mut ready = pipe::Receiver::from_owned_fd(ours).map_err(failed)?;
        let log = File::options().append(true).create(true).mode(0o600).open(self.folder.join(LOG));
        let log = log.map_err(failed)?;
        let log_offset = log.metadata().map_or(0, |log| log.len());
        let mut command = self.launch.helper.command();
        command.args(self.spawn().words()).current_dir("/");
        // Otherwise it would notify the daemon's service manager that it is ready.
        for name in NOT_ITS {
            command.env_remove(name);
        }
        command.env(logging::LIMIT, LOG_BYTES_MAX.to_string());
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::from(log));
        let mut child = command.spawn().map_err(failed)?;
        // The command has a copy of the pipe's other end. Drop it, so that the pipe closes when the
        // process exits.
        drop(command);
        let pid = child.id().unwrap_or_default();
        let ended = ended(pid).ok_or_else(|| failed(rustix::io::Errno::SRCH.into()))?;
        match timeout(READY_DEADLINE, ready.read_u8()).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Err(self.died(&mut child, log_offset).await),
            Err(_) => {
                // The process may have exited already.
                let _gone = pidfd_send_signal(&ended, Signal::KILL);
                let (what, deadline) = ("that it is ready".into(), READY_DEADLINE);
                return Err(DatapathError::Late { what, deadline });
            }
        }
        tracing::info!(of = %self.owner, pid, "ringway-io started");
        self.place([pid]);
        tokio::spawn(async move { child.wait().await });
        self.watch(pid, ended);
        Ok(())
    }

    fn spawn(&self) -> DetachedProcess {
        let group = self.entrance();
        let IoLaunch { program, options, .. } = &*self.launch;
        let mut command: Vec<OsString> = vec![program.into(), "--control".into()];
        command.push(self.control.clone().into());
        command.extend(["--ready-fd", "0"].map(OsString::from));
        command.extend(options.iter().cloned());
        DetachedProcess { group, command, ..DetachedProcess::default() }
    }

    /// Returns the error of a process that closed the pipe without a byte: it is exiting.
    async fn died(&self, child: &mut Child, log_offset: u64) -> DatapathError {
        let status = match timeout(READY_DEADLINE, child.wait()).await {
            Ok(Ok(status)) => status,
            Ok(Err(source)) => {
                return DatapathError::Start { program: self.launch.program.clone(), source };
            }
            Err(_) => {
                let (what, deadline) = ("its end".into(), READY_DEADLINE);
                return DatapathError::Late { what, deadline };
            }
        };
        DatapathError::Died { status, tail: log_since(&self.folder.join(LOG), log_offset) }
    }
}

fn log_since(log: &Path, offset: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut log = File::open(log)?;
        let end = log.metadata()?.len();
        log.seek(SeekFrom::Start(offset.max(end.saturating_sub(TAIL_BYTES))))?;
        let mut output = Vec::new();
        log.take(TAIL_BYTES).read_to_end(&mut output)?;
        Ok(String::from_utf8_lossy(&output).trim_end().to_owned())
    };
    read().unwrap_or_default()
}
