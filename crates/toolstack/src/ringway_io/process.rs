//! One `ringway-io` process that we start and stop.

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
/// Longest wait from `shutdown` to its end: the drain and flush of every disk.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(10);

/// A `ringway-io` of our own. Dropped, it is killed.
#[derive(Debug)]
pub struct IoProcess {
    group: ChildGroup,
    tail: StderrTail,
    control: PathBuf,
    ready: Option<pipe::Receiver>,
}

impl IoProcess {
    /// Starts the program; [`Self::ready`] says when it can be called. With `echo` its log goes
    /// to our standard error.
    ///
    /// It writes a byte when its socket accepts. The pipe for that is its descriptor 0: standard
    /// descriptors are the ones that a child can be given without any other child inheriting
    /// them by accident, and it reads nothing there.
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
    /// [`DatapathError::Died`] with its last words, [`DatapathError::Late`], [`DatapathError::NotThere`].
    pub async fn ready(&mut self) -> Result<RpcConnection, DatapathError> {
        if let Some(mut ready) = self.ready.take() {
            let told = async {
                // The pipe closed without a byte: it is ending.
                if ready.read_u8().await.is_err() { Err(self.died().await) } else { Ok(()) }
            };
            tokio::time::timeout(READY_DEADLINE, told).await.map_err(|_| {
                DatapathError::Late { what: "that it is ready".into(), deadline: READY_DEADLINE }
            })??;
        }
        RpcConnection::connect(&self.control).await
    }

    /// Process id while it runs.
    pub fn id(&self) -> Option<u32> {
        self.group.id()
    }

    /// Waits for its end, and says how it ended as an error: nobody asked it to.
    pub async fn died(&mut self) -> DatapathError {
        match self.group.wait().await {
            Ok(status) => DatapathError::Died { status, tail: self.tail.finish().await },
            Err(source) => DatapathError::Start { program: "ringway-io".into(), source },
        }
    }

    /// Makes the error of a call tell the better cause: when the process died, that.
    pub async fn explain(&mut self, error: DatapathError) -> DatapathError {
        /// A broken connection comes just before the end of the process.
        const GRACE: Duration = Duration::from_millis(500);
        if !matches!(error, DatapathError::Broken { .. } | DatapathError::NotThere { .. }) {
            return error;
        }
        tokio::time::timeout(GRACE, self.died()).await.unwrap_or(error)
    }

    /// Asks it to detach everything and end; kills it when it does not in time.
    ///
    /// # Errors
    /// When it ended in another way than asked: its disks may not have been flushed.
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

    /// Kills it and waits for its end.
    pub async fn kill(&mut self) {
        self.group.kill();
        // After SIGKILL only the kernel can refuse to say so.
        let _ended = self.group.wait().await;
    }

    async fn end(&mut self) -> Result<ExitStatus, DatapathError> {
        self.group
            .wait_or_kill(SHUTDOWN_DEADLINE)
            .await
            .map_err(|source| DatapathError::Start { program: "ringway-io".into(), source })
    }
}
