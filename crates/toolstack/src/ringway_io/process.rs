//! `ringway-io` child process.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::{DatapathError, RpcConnection};
use crate::process_group::ChildGroup;
use crate::stderr_tail::StderrTail;

/// Longest wait from its start until the control socket accepts.
const READY_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait from `shutdown` to its exit: every disk is drained and flushed.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(10);

/// `ringway-io` child process. Dropping it kills the process.
#[derive(Debug)]
pub struct IoProcess {
    group: ChildGroup,
    tail: StderrTail,
    control: PathBuf,
    ready: Option<pipe::Receiver>,
}

impl IoProcess {
    /// Starts the program. Wait for [`Self::ready`] before the first call. With `echo`, its log is
    /// copied to standard error.
    ///
    /// The process writes a byte when its socket accepts. The pipe for that is its descriptor 0.
    /// Unlike others, a standard descriptor cannot be inherited by another child by accident, and
    /// `ringway-io` reads nothing from it.
    ///
    /// # Errors
    /// [`DatapathError::Start`].
    pub fn spawn(program: &Path, control: &Path, echo: bool) -> Result<Self, DatapathError> {
        let failed = |source| DatapathError::Start { program: program.into(), source };
        let (ours, theirs): (OwnedFd, OwnedFd) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let ready = pipe::Receiver::from_owned_fd(ours).map_err(failed)?;
        let mut command = Command::new(program);
        command
            .arg("--control")
            .arg(control)
            .args(["--ready-fd", "0", "--die-with-parent"])
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut group = ChildGroup::spawn(&mut command).map_err(failed)?;
        let Some(stderr) = group.child().stderr.take() else {
            return Err(failed(std::io::Error::other("no pipe for its messages")));
        };
        let tail = StderrTail::collect(stderr, echo.then_some("ringway-io"));
        Ok(Self { group, tail, control: control.into(), ready: Some(ready) })
    }

    /// Waits until the control socket accepts, and connects.
    ///
    /// # Errors
    /// [`DatapathError::Died`] with its last output, [`DatapathError::Late`],
    /// [`DatapathError::NotThere`].
    pub async fn ready(&mut self) -> Result<RpcConnection, DatapathError> {
        if let Some(mut ready) = self.ready.take() {
            let readiness = async {
                // The pipe closed without a byte: the process is exiting.
                if ready.read_u8().await.is_err() { Err(self.died().await) } else { Ok(()) }
            };
            tokio::time::timeout(READY_DEADLINE, readiness).await.map_err(|_| {
                DatapathError::Late { what: "that it is ready".into(), deadline: READY_DEADLINE }
            })??;
        }
        RpcConnection::connect(&self.control).await
    }

    /// Returns the process id while it runs.
    pub fn id(&self) -> Option<u32> {
        self.group.id()
    }

    /// Waits for its exit without a request, and returns that as an error.
    pub async fn died(&mut self) -> DatapathError {
        match self.group.wait().await {
            Ok(status) => DatapathError::Died { status, tail: self.tail.finish().await },
            Err(source) => DatapathError::Start { program: "ringway-io".into(), source },
        }
    }

    /// Replaces the error of a call with the death of the process, if that is the cause.
    pub async fn explain(&mut self, error: DatapathError) -> DatapathError {
        /// A connection breaks just before the process exits.
        const GRACE: Duration = Duration::from_millis(500);
        if !matches!(error, DatapathError::Broken { .. } | DatapathError::NotThere { .. }) {
            return error;
        }
        tokio::time::timeout(GRACE, self.died()).await.unwrap_or(error)
    }

    /// Requests a shutdown, which detaches everything. Kills the process if it does not exit in
    /// time.
    ///
    /// # Errors
    /// The process exited in another way. Its disks may not be flushed.
    pub async fn stop(&mut self, client: &mut RpcConnection) -> Result<(), DatapathError> {
        let asked = client.shutdown(SHUTDOWN_DEADLINE).await;
        if asked.is_err() {
            self.group.kill();
        }
        let status = self.end().await?;
        match asked {
            Ok(()) if status.success() => Ok(()),
            Ok(()) => Err(DatapathError::Died { status, tail: self.tail.finish().await }),
            Err(error) => Err(error),
        }
    }

    /// Kills the process and waits for its exit.
    pub async fn kill(&mut self) {
        self.group.kill();
        // After SIGKILL only the kernel can refuse the wait.
        let _ended = self.group.wait().await;
    }

    async fn end(&mut self) -> Result<ExitStatus, DatapathError> {
        self.group
            .wait_or_kill(SHUTDOWN_DEADLINE)
            .await
            .map_err(|source| DatapathError::Start { program: "ringway-io".into(), source })
    }
}
