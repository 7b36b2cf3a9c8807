//! Child processes that do not outlive this process.
//!
//! Three mechanisms end a child. The first is an orderly stop by the child's own protocol. If that
//! fails, or the owner drops the value, SIGKILL ends its process group. If this process is killed,
//! the kernel's parent-death signal ends the child.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{ExitStatus, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

/// Most bytes that are kept of a child's pipe.
const PIPE_BYTES_MAX: u64 = 1 << 20;

/// Child in its own process group. Dropping the value kills the group.
#[derive(Debug)]
pub struct ChildGroup {
    child: Child,
    pid: Option<Pid>,
}

impl ChildGroup {
    /// Starts `command` in a new process group.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Self { child, pid })
    }

    /// Returns the child, for access to its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns the process id while the child runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until the child has exited. May be dropped and called again.
    ///
    /// # Errors
    /// The kernel refuses the wait.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Waits for the child's exit, and returns its status and what it wrote to its pipes. If the future
    /// is dropped, the group is killed.
    ///
    /// # Errors
    /// A pipe cannot be read, or the kernel refuses the wait.
    pub async fn output(mut self) -> io::Result<Output> {
        let (stdout, stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let (stdout, stderr) = tokio::join!(read_pipe(stdout), read_pipe(stderr));
        Ok(Output { status: self.child.wait().await?, stdout: stdout?, stderr: stderr? })
    }

    /// Waits at most `deadline` for the child's exit. Then kills the group and waits for its exit.
    ///
    /// # Errors
    /// The kernel refuses the wait.
    pub async fn wait_or_kill(&mut self, deadline: Duration) -> io::Result<ExitStatus> {
        match tokio::time::timeout(deadline, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                self.kill();
                self.child.wait().await
            }
        }
    }

    /// Sends SIGKILL to the group. Does nothing after a successful wait, because the kernel may
    /// have given the process id to another process.
    pub fn kill(&mut self) {
        if self.child.id().is_none() {
            return;
        }
        if let Some(pid) = self.pid {
            // The group may have exited just now.
            let _gone = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for ChildGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads a pipe to its end, at most [`PIPE_BYTES_MAX`]. The rest is discarded.
async fn read_pipe(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let (mut bytes, Some(mut pipe)) = (Vec::new(), pipe) else { return Ok(Vec::new()) };
    (&mut pipe).take(PIPE_BYTES_MAX).read_to_end(&mut bytes).await?;
    tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    Ok(bytes)
}

/// Executes `command`, which the kernel kills when its parent dies.
///
/// A helper mode uses this to start programs that have no such option, as QEMU before 10.2. Returns
/// only on failure.
pub fn become_bound(parent: u32, command: &[OsString]) -> io::Error {
    let Some((program, arguments)) = command.split_first() else {
        return io::Error::new(io::ErrorKind::InvalidInput, "no program to start");
    };
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // The parent may have died before the signal was set. The kernel would never send it then.
    let current = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if current.and_then(|pid| u32::try_from(pid).ok()) != Some(parent) {
        return io::Error::other("the parent is gone");
    }
    std::process::Command::new(program).args(arguments).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie has exited. Only its parent has not waited for it yet.
        !stat.is_empty() && !stat.contains(") Z ")
    }

    #[tokio::test]
    async fn past_the_deadline_the_whole_group_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        let mut group = ChildGroup::spawn(&mut command).unwrap();
        let out = group.child().stdout.take().unwrap();
        let mut lines = crate::json_lines::JsonLines::new(out, 64);
        let grandchild: u32 = lines.next_text().await.unwrap().parse().unwrap();
        assert!(alive(grandchild));
        let status = group.wait_or_kill(Duration::from_millis(1)).await.unwrap();
        assert!(!status.success());
        // The pipe closes when the grandchild, its last user, exits.
        let end = tokio::time::timeout(Duration::from_secs(10), lines.next_text()).await;
        assert!(end.unwrap().is_err());
    }

    #[test]
    fn nothing_to_become_is_refused_before_anything_changes() {
        assert_eq!(become_bound(1, &[]).kind(), io::ErrorKind::InvalidInput);
    }
}
