//! QEMU process, from start to exit.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::broadcast;

use super::command::{QemuSpec, arguments};
use super::qmp::{Event, Qmp};
use super::{QemuError, qmp};
use crate::process_group::ChildGroup;
use crate::stderr_tail::StderrTail;

/// Longest wait for QEMU's exit after `quit`.
const QUIT_DEADLINE: Duration = Duration::from_secs(5);
/// Longest wait for the last events after QEMU's exit.
const DRAIN_DEADLINE: Duration = Duration::from_secs(1);

/// Reason of QEMU's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QemuExit {
    /// The guest powered off.
    PoweredOff,
    /// The guest reset: it rebooted, or its kernel panicked.
    Reset,
    /// The guest reported a panic to QEMU.
    Panicked,
    /// The host ended QEMU: this program, or a signal.
    Asked,
}

/// QEMU child process. Dropping it kills QEMU.
#[derive(Debug)]
pub struct Machine {
    group: ChildGroup,
    tail: StderrTail,
    control: Option<UnixStream>,
    console: Option<UnixStream>,
    qmp: Option<(Qmp, broadcast::Receiver<Event>)>,
}

impl Machine {
    /// Starts `program` for `spec`.
    ///
    /// `launcher` precedes the command. It is empty, or a program that kills its successor when
    /// this process dies ([`crate::process_group::become_bound`]). With `echo`, QEMU's standard
    /// error is copied to that of this process.
    ///
    /// # Errors
    /// [`QemuError::Start`].
    pub fn spawn(
        launcher: &[OsString],
        program: &Path,
        spec: &QemuSpec,
        echo: bool,
    ) -> Result<Self, QemuError> {
        let failed = |source| QemuError::Start { program: program.into(), source };
        let (control, qemu_control) = socket_pair().map_err(failed)?;
        let (console, qemu_console) = socket_pair().map_err(failed)?;
        let mut words: Vec<OsString> = launcher.to_vec();
        words.push(program.into());
        words.extend(arguments(spec));
        let (first, rest) =
            words.split_first().ok_or_else(|| failed(std::io::ErrorKind::InvalidInput.into()))?;
        let mut command = Command::new(first);
        command.args(rest).stdin(qemu_control).stdout(qemu_console).stderr(Stdio::piped());
        let mut group = ChildGroup::spawn(&mut command).map_err(failed)?;
        let Some(stderr) = group.child().stderr.take() else {
            return Err(failed(std::io::Error::other("no pipe for its messages")));
        };
        let tail = StderrTail::collect(stderr, echo.then_some("qemu"));
        let (control, console) = (Some(control), Some(console));
        Ok(Self { group, tail, control, console, qmp: None })
    }

    /// Waits until QEMU has opened every device and started the guest.
    ///
    /// # Errors
    /// [`QemuError::Died`] with its last output, or an error of [`Qmp::handshake`].
    pub async fn ready(&mut self) -> Result<(), QemuError> {
        let control = self.control.take().ok_or(QemuError::Closed)?;
        match Qmp::handshake(control).await {
            Ok(pair) => {
                self.qmp = Some(pair);
                Ok(())
            }
            Err(error @ (QemuError::Broken(_) | QemuError::Closed)) => {
                Err(self.died(DRAIN_DEADLINE).await.unwrap_or(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the guest's console. Only the first caller gets it.
    pub fn take_console(&mut self) -> Option<UnixStream> {
        self.console.take()
    }

    /// Returns the control connection after [`Self::ready`].
    pub fn qmp(&self) -> Option<&Qmp> {
        self.qmp.as_ref().map(|(qmp, _)| qmp)
    }

    /// Returns the process id while QEMU runs.
    pub fn id(&self) -> Option<u32> {
        self.group.id()
    }

    /// Waits until the machine has ended. May be dropped and called again.
    ///
    /// # Errors
    /// [`QemuError::Died`] if neither the guest nor the host requested the end.
    pub async fn wait(&mut self) -> Result<QemuExit, QemuError> {
        let status = self.group.wait().await.map_err(|_| QemuError::Closed)?;
        self.end(status).await
    }

    /// Ends the machine at once, like a power cut: by `quit`, else by SIGKILL.
    ///
    /// # Errors
    /// The kernel refuses the wait.
    pub async fn quit(&mut self) -> Result<ExitStatus, QemuError> {
        if let Some((qmp, _)) = &self.qmp {
            let asked = qmp.execute("quit", Value::Null, QUIT_DEADLINE).await;
            // QEMU may exit before it answers.
            if !matches!(asked, Ok(_) | Err(QemuError::Closed)) {
                self.group.kill();
            }
        } else {
            self.group.kill();
        }
        self.group.wait_or_kill(QUIT_DEADLINE).await.map_err(|_| QemuError::Closed)
    }

    /// Presses the guest's power button.
    ///
    /// # Errors
    /// The errors of [`Qmp::execute`].
    pub async fn power_button(&self) -> Result<(), QemuError> {
        let qmp = self.qmp().ok_or(QemuError::Closed)?;
        qmp.execute("system_powerdown", Value::Null, qmp::COMMAND_DEADLINE).await.map(drop)
    }

    async fn died(&mut self, deadline: Duration) -> Option<QemuError> {
        let status = tokio::time::timeout(deadline, self.group.wait()).await.ok()?.ok()?;
        Some(QemuError::Died { status, tail: self.tail.finish().await })
    }

    /// Derives the reason from the last events.
    async fn end(&mut self, status: ExitStatus) -> Result<QemuExit, QemuError> {
        let mut qemu_exit = None;
        if let Some((qmp, events)) = &mut self.qmp {
            // A process that inherited the descriptor may keep the connection open.
            let _late = tokio::time::timeout(DRAIN_DEADLINE, qmp.closed()).await;
            loop {
                match events.try_recv() {
                    Ok(event) => qemu_exit = reason(&event).or(qemu_exit),
                    Err(broadcast::error::TryRecvError::Lagged(_)) => {}
                    Err(_) => break,
                }
            }
        }
        match qemu_exit {
            Some(qemu_exit) if status.success() => Ok(qemu_exit),
            _ => Err(QemuError::Died { status, tail: self.tail.finish().await }),
        }
    }
}

/// Returns the exit reason that an event reports.
fn reason(event: &Event) -> Option<QemuExit> {
    match event.name.as_str() {
        "SHUTDOWN" => match event.data.get("reason").and_then(Value::as_str) {
            Some("guest-shutdown") => Some(QemuExit::PoweredOff),
            Some("guest-reset") => Some(QemuExit::Reset),
            Some("guest-panic") => Some(QemuExit::Panicked),
            _ => Some(QemuExit::Asked),
        },
        "GUEST_PANICKED" => Some(QemuExit::Panicked),
        _ => None,
    }
}

/// Creates a socket pair: one end for this process, one for a child's standard descriptor.
fn socket_pair() -> std::io::Result<(UnixStream, Stdio)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, Stdio::from(OwnedFd::from(theirs))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ends_are_told_apart() {
        let event = |reason: &str| Event {
            name: "SHUTDOWN".into(),
            data: json!({"guest": true, "reason": reason}),
        };
        assert_eq!(reason(&event("guest-shutdown")), Some(QemuExit::PoweredOff));
        assert_eq!(reason(&event("guest-reset")), Some(QemuExit::Reset));
        assert_eq!(reason(&event("guest-panic")), Some(QemuExit::Panicked));
        assert_eq!(reason(&event("host-signal")), Some(QemuExit::Asked));
        let other = Event { name: "STOP".into(), data: Value::Null };
        assert_eq!(reason(&other), None);
    }
}
