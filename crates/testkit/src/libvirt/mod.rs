//! Debian's libvirtd in a world of its own, driven by `virsh`.
//!
//! [`Libvirt`] is a daemon with its own configuration, state and sockets, in mount and process
//! namespaces that end with it: nothing of the host's libvirt is seen or touched, and no machine
//! outlives the test. QEMU runs as the user that Debian gives it (`libvirt-qemu`), so what the
//! documentation says about permissions is tested too. A [`Domain`] is a machine with the test
//! guest's console, as [`crate::guest::Guest`] is for QEMU alone.
//!
//! Needs root, for the namespaces and to change users.

mod domain;

pub use domain::{APPEND, Domain};

use std::fs::{self, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::guest::spawner;
use crate::process::{PROCESS_DEADLINE, Process, find_tool};
use crate::raw::guest::wait_readable;

/// libvirtd's settings: no question of who calls, errors on its standard error.
const LIBVIRTD_CONF: &str = "auth_unix_rw = \"none\"\nlog_outputs = \"3:stderr\"\n";
/// Those of its QEMU driver: output to files instead of virtlogd, no control groups, whose place
/// the test's host decides, and no second mount namespace.
const QEMU_CONF: &str = "stdio_handler = \"file\"\ncgroup_controllers = [ ]\nnamespaces = [ ]\n";
/// Puts our folders in the place of the host's. The shell stays, since the first process of a
/// namespace has to take over and reap the machines that libvirtd lets go.
const WORLD: &str = r#"set -e
mkdir -p /run/libvirt
mount --bind "$1/etc" /etc/libvirt
mount --bind "$1/lib" /var/lib/libvirt
mount --bind "$1/cache" /var/cache/libvirt
mount --bind "$1/log" /var/log/libvirt
mount --bind "$1/run" /run/libvirt
libvirtd --pid-file "$1/run/libvirtd.pid" &
wait"#;

/// A running libvirtd. Dropped, it and all its machines are gone.
#[derive(Debug)]
pub struct Libvirt {
    process: Process,
    dir: TempDir,
}

impl Libvirt {
    /// Starts a daemon; returns when it takes calls.
    ///
    /// # Errors
    /// [`Error::Missing`] without root or a program, [`Error::Process`] if it does not get ready.
    pub fn start() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            let next = "run the test as root: it makes namespaces".to_owned();
            return Err(Error::Missing { program: "root's power".to_owned(), next });
        }
        let dir = world()?;
        let notify = dir.path().join("notify");
        let ready = UnixDatagram::bind(&notify)
            .map_err(|e| Error::io(format!("cannot listen on {}", notify.display()), e))?;
        find_tool("libvirtd", "libvirt-daemon-system")?;
        let mut command = Command::new(find_tool("setpriv", "util-linux")?);
        command
            .args(["--pdeathsig", "KILL", "--", "unshare", "--mount", "--pid", "--mount-proc"])
            .args(["--fork", "--kill-child=KILL", "--", "sh", "-c", WORLD, "sh"])
            .arg(dir.path())
            .env("NOTIFY_SOCKET", &notify)
            .stdout(Stdio::null());
        let mut process = spawner::start(move || Process::start(&mut command))?;
        match wait_readable(&[ready.as_fd(), process.ended().as_fd()], PROCESS_DEADLINE)? {
            Some(0) => Ok(Self { process, dir }),
            Some(_) => Err(process.error("ended before it took calls")),
            None => Err(process.error("did not get ready in time")),
        }
    }

    /// A folder that QEMU can reach, for whatever the test needs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `virsh` with these arguments; gives what it printed.
    ///
    /// # Errors
    /// [`Error::Reply`] with its message if it fails.
    pub fn virsh<S: AsRef<str>>(&self, arguments: &[S]) -> Result<String> {
        let output = self.run(arguments)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let request = arguments.first().map_or("virsh", AsRef::as_ref).to_owned();
        Err(Error::Reply { request, what: message(&output) })
    }

    fn run<S: AsRef<str>>(&self, arguments: &[S]) -> Result<Output> {
        let socket = self.dir.path().join("run/libvirt-sock");
        Command::new(find_tool("virsh", "libvirt-clients")?)
            .arg("--connect")
            .arg(format!("qemu+unix:///system?socket={}", socket.display()))
            .args(arguments.iter().map(AsRef::as_ref))
            .stdin(Stdio::null())
            .env("LC_ALL", "C")
            .output()
            .map_err(|e| Error::io("cannot start virsh", e))
    }

    /// Defines a machine by XML.
    ///
    /// # Errors
    /// [`Error::Reply`] with libvirt's reason.
    pub fn define(&self, xml: &str) -> Result<()> {
        let file = self.file("define.xml", xml)?;
        self.virsh(&["define", "--validate", &file]).map(drop)
    }

    /// Writes a file that both virsh and QEMU can read; gives its path.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> Result<String> {
        let path = self.dir.path().join(name);
        fs::write(&path, content).map_err(|e| Error::io(format!("cannot write {name}"), e))?;
        Ok(path.display().to_string())
    }

    /// What libvirtd complained of.
    pub fn log(&mut self) -> String {
        self.process.stderr()
    }
}

/// The reason in virsh's words: what follows its last `error:`, which may have several lines.
fn message(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.rsplit("error: ").next().unwrap_or_default().trim().to_owned()
}

/// The daemon's folders.
fn world() -> Result<TempDir> {
    let at = |e| Error::io("cannot make libvirtd's folders", e);
    let dir = tempfile::Builder::new()
        .prefix("ringway-libvirt-")
        // QEMU runs as another user and goes through here.
        .permissions(Permissions::from_mode(0o755))
        .tempdir()
        .map_err(at)?;
    for folder in ["etc", "lib", "cache", "log", "run"] {
        fs::create_dir(dir.path().join(folder)).map_err(at)?;
    }
    fs::write(dir.path().join("etc/libvirtd.conf"), LIBVIRTD_CONF).map_err(at)?;
    fs::write(dir.path().join("etc/qemu.conf"), QEMU_CONF).map_err(at)?;
    Ok(dir)
}
