//! Real guests behind one small interface: start one, run a script, read its result, stop it.
//!
//! # Words
//! - **Kind**: [`Kind::Qemu`] is Debian's kernel and Ringway's initramfs under emulation, which
//!   takes about 6 s to boot. [`Kind::Uml`] is User-Mode Linux on the host's file system,
//!   read-only. It takes about 2 s to boot and runs at near native speed.
//! - **Machine**: the guest's hardware: disks on vhost-user sockets, memory, CPUs.
//! - **Script**: shell text that both kinds run once booted, as root, in an empty directory. `disk
//!   SERIAL` in it prints the device node of a disk. `guest/README.md` has the rest.
//!
//! # Model
//! One boot runs one script. [`Guest::start`] returns while the guest boots. [`Guest::finish`]
//! waits for its end and returns the script's exit code and output. In between, a test may wait for
//! text on the console, send QMP commands, or kill the guest.
//!
//! ```no_run
//! # use std::{path::Path, time::Duration};
//! # use testkit::guest::{Guest, Kind, Machine};
//! # fn main() -> testkit::Result<()> {
//! let machine = Machine::with_disk(Path::new("/run/disk.sock"));
//! let guest = Guest::start(Kind::Uml, &machine, "dd if=$(disk S1) bs=1M count=1 of=/dev/null")?;
//! assert_eq!(guest.finish(Duration::from_secs(60))?.code, 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//! [`crate::Error`]. Errors about a running guest contain the end of its console. A script that
//! fails is an [`Outcome`], not an error.
//!
//! # Invariants
//! A guest does not outlive its [`Guest`], nor the test process, even if that is killed. Its
//! sockets and files are in a temporary directory that is removed with it.
//!
//! # How to test
//! `tests/guests/guest_*.rs` boot both kinds, also against an independent backend.

mod artifacts;
pub(crate) mod console;
mod machine;
mod preload;
mod qemu;
mod qmp;
pub(crate) mod spawner;
mod uml;

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::process::{PROCESS_DEADLINE, Process};
use crate::raw::guest::wait_readable;
use console::{Console, Seen};

pub use artifacts::{Artifacts, artifacts, boot_config, small_initramfs};
pub use console::Outcome;
pub use machine::{Image, Kind, Machine, UML_NIC, VhostDisk};
pub(crate) use qemu::{SCRIPT_SERIAL, whole_sectors};
pub use qmp::Qmp;

/// Kernel arguments of the QEMU guest.
///
/// The kernel checks that timer interrupts arrive within ten of its milliseconds, and panics if
/// not. These are real milliseconds, and on a busy host QEMU raises the interrupts later, so the
/// kernel must not check. The arguments after that skip work that only takes time in a translated
/// guest.
pub const KERNEL_ARGS: &str = "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off \
                               cryptomgr.notests tsc=reliable nokaslr \
                               initcall_blacklist=crypto_kdf108_init,init_kprobe_trace";

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    kind: Kind,
    process: Process,
    console: Console,
    monitor: Option<Monitor>,
    dir: TempDir,
}

/// QEMU's monitor. It connects at start; its greeting stays unread until a test needs the monitor.
#[derive(Debug)]
enum Monitor {
    Waiting(UnixListener),
    Open(Qmp),
}

impl Guest {
    /// Starts a guest that will run `script`. Returns while it boots.
    ///
    /// # Errors
    /// [`Error::Missing`] if a program is not installed, or if this kind of guest does not support
    /// the machine. [`Error::Process`] if the guest ends at once or its kernel cannot be built.
    pub fn start(kind: Kind, machine: &Machine, script: &str) -> Result<Self> {
        match kind {
            Kind::Qemu => qemu::start(machine, Some(script)),
            Kind::Uml => uml::start(machine, script),
        }
    }

    /// Starts a QEMU guest with a shell on its console instead of a script.
    ///
    /// # Errors
    /// As [`Guest::start`].
    pub fn shell(machine: &Machine) -> Result<Self> {
        qemu::start(machine, None)
    }

    /// Returns the process id of QEMU, or of the parent of User-Mode Linux's processes.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the directory of this guest's sockets and files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns all console output so far.
    #[must_use]
    pub fn console(&self) -> String {
        self.console.text()
    }

    /// Waits until `text` appears on the console, after the text that an earlier call found.
    ///
    /// # Errors
    /// [`Error::Process`] if the guest ends without it, or the deadline passes.
    pub fn wait_for(&mut self, text: &str, deadline: Duration) -> Result<()> {
        match self.console.wait_for(text, deadline) {
            Seen::Yes => Ok(()),
            Seen::Closed => Err(self.error(&format!("ended without printing '{text}'"))),
            Seen::Late => {
                let ms = deadline.as_millis();
                Err(self.error(&format!("did not print '{text}' in {ms} ms")))
            }
        }
    }

    /// Skips the console output so far. Later waits check only new output.
    pub fn skip(&mut self) {
        self.console.skip();
    }

    /// Types text on the console; a newline is the enter key. QEMU only.
    ///
    /// # Errors
    /// [`Error::Io`] if the guest has ended, [`Error::Missing`] for User-Mode Linux.
    pub fn type_in(&mut self, text: &str) -> Result<()> {
        let Some(input) = self.console.input() else {
            return Err(qemu_only("a keyboard"));
        };
        input
            .write_all(text.as_bytes())
            .map_err(|e| Error::io("cannot type on the guest's console", e))
    }

    /// Returns QEMU's monitor, ready for commands.
    ///
    /// # Errors
    /// [`Error::Process`] if QEMU does not reply, [`Error::Missing`] for User-Mode Linux.
    pub fn qmp(&mut self) -> Result<&mut Qmp> {
        let qmp = match self.monitor.take() {
            None => return Err(qemu_only("a monitor")),
            Some(Monitor::Open(qmp)) => qmp,
            Some(Monitor::Waiting(listener)) => {
                Qmp::new(accept(&listener, &mut self.process)?, PROCESS_DEADLINE)?
            }
        };
        match self.monitor.insert(Monitor::Open(qmp)) {
            Monitor::Open(qmp) => Ok(qmp),
            Monitor::Waiting(_) => unreachable!("an open monitor was just inserted"),
        }
    }

    /// Waits for the guest to power off and returns the result of its script.
    ///
    /// # Errors
    /// [`Error::Process`] if it does not end before the deadline (it is killed), or ends without
    /// having run the script.
    pub fn finish(mut self, deadline: Duration) -> Result<Outcome> {
        let until = Instant::now() + deadline;
        if wait_readable(&[self.process.ended().as_fd()], deadline)?.is_none() {
            let error = self.error(&format!("did not power off in {} ms", deadline.as_millis()));
            self.stop()?;
            return Err(error);
        }
        self.stop()?;
        let left = until.saturating_duration_since(Instant::now());
        self.console.wait_closed(left.max(PROCESS_DEADLINE));
        match self.console.outcome() {
            Some(outcome) => Ok(outcome),
            None => Err(self.error("ended before its script did")),
        }
    }

    /// Waits only for the end of the script, and then kills the guest. A guest of User-Mode Linux
    /// may hang when it powers off, which does not matter for a measurement.
    ///
    /// # Errors
    /// [`Error::Process`] if the script does not end before the deadline, or the guest ends without
    /// having run it.
    pub fn finish_script(mut self, deadline: Duration) -> Result<Outcome> {
        let outcome = self.console.wait_outcome(deadline);
        self.stop()?;
        outcome.map_err(|seen| match seen {
            Seen::Late => {
                self.error(&format!("did not end its script in {} ms", deadline.as_millis()))
            }
            _ => self.error("ended before its script did"),
        })
    }

    /// Kills the guest with SIGKILL and waits until all its processes are gone. Returns the console
    /// output.
    ///
    /// # Errors
    /// [`Error::Process`] if it survives.
    pub fn kill(mut self) -> Result<String> {
        self.stop()?;
        self.console.wait_closed(PROCESS_DEADLINE);
        Ok(self.console.text())
    }

    fn stop(&mut self) -> Result<()> {
        if self.kind == Kind::Uml && uml::kill(&self.process) {
            // The parent ends after it has reaped the guest. Only then no process remains.
            return self.process.wait(PROCESS_DEADLINE).map(drop);
        }
        self.process.kill().map(drop)
    }

    /// Returns an error with the end of the guest's output.
    fn error(&mut self, what: &str) -> Error {
        let console = self.console.tail();
        let stderr = self.process.stderr();
        let program = match self.kind {
            Kind::Qemu => "the QEMU guest",
            Kind::Uml => "the User-Mode Linux guest",
        };
        let stderr = if stderr.is_empty() { console } else { format!("{console}\n{stderr}") };
        Error::Process { program: program.to_owned(), what: what.to_owned(), stderr }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Errors are ignored: a test that checks the end of a guest calls `kill`.
        let _ = self.stop();
    }
}

/// Waits until the process connects to a socket of the test.
fn accept(listener: &UnixListener, process: &mut Process) -> Result<UnixStream> {
    match wait_readable(&[listener.as_fd(), process.ended().as_fd()], PROCESS_DEADLINE)? {
        Some(0) => listener
            .accept()
            .map(|(stream, _)| stream)
            .map_err(|e| Error::io("cannot accept the guest's connection", e)),
        Some(_) => {
            let status = process.wait(PROCESS_DEADLINE)?;
            Err(process.error(format!("ended at once ({status})")))
        }
        None => Err(process.error("did not connect to its console")),
    }
}

fn temporary_dir() -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("ringway-guest-").tempdir();
    dir.map_err(|e| Error::io("cannot create a temporary directory", e))
}

fn qemu_only(what: &str) -> Error {
    Error::Missing {
        program: format!("{what} of a User-Mode Linux guest"),
        next: "use a QEMU guest".to_owned(),
    }
}
