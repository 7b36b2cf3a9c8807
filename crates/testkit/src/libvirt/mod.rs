//! Debian's libvirtd, isolated from the host's, driven by `virsh`.
//!
//! [`Libvirt`] is a daemon with its own configuration, state and sockets, in mount and process
//! namespaces that end with it. It does not see or touch the host's libvirt, and no domain outlives
//! the test. QEMU runs as the user that Debian gives it (`libvirt-qemu`), so the tests cover the
//! permissions in the documentation too. A [`Domain`] has the test guest's console, like
//! [`crate::guest::Guest`] for QEMU alone.
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

/// Settings of libvirtd: no authentication, errors on standard error.
const LIBVIRTD_CONF: &str = "auth_unix_rw = \"none\"\nlog_outputs = \"3:stderr\"\n";
/// Settings of libvirtd's QEMU driver: output to files instead of virtlogd, no second mount
/// namespace, and no control groups, because they depend on the test's host.
const QEMU_CONF: &str = "stdio_handler = \"file\"\ncgroup_controllers = [ ]\nnamespaces = [ ]\n";
/// Script that mounts the test's folders over the host's. The shell stays, because the first
/// process of a namespace must reap the QEMU processes that libvirtd detaches.
const WORLD: &str = r#"set -e
mkdir -p /run/libvirt
mount --bind "$1/etc" /etc/libvirt
mount --bind "$1/lib" /var/lib/libvirt
mount --bind "$1/cache" /var/cache/libvirt
mount --bind "$1/log" /var/log/libvirt
mount --bind "$1/run" /run/libvirt
libvirtd --pid-file "$1/run/libvirtd.pid" &
wait"#;

/// A running libvirtd. Drop ends it and all its domains.
#[derive(Debug)]
pub struct Libvirt {
    process: Process,
    dir: TempDir,
}

impl Libvirt {
    /// Starts a daemon. Returns when it accepts calls.
    ///
    /// # Errors
    /// [`Error::Missing`] without root or a program, [`Error::Process`] if it does not become
    /// ready.
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
            Some(_) => Err(process.error("ended before it accepted calls")),
            None => Err(process.error("did not get ready in time")),
        }
    }

    /// Returns a folder that QEMU can access, for files of the test.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `virsh` with these arguments and returns its output.
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

    /// Defines a domain by XML.
    ///
    /// # Errors
    /// [`Error::Reply`] with libvirt's reason.
    pub fn define(&self, xml: &str) -> Result<()> {
        let file = self.file("define.xml", xml)?;
        self.virsh(&["define", "--validate", &file]).map(drop)
    }

    /// Writes a file that both virsh and QEMU can read. Returns its path.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> Result<String> {
        let path = self.dir.path().join(name);
        fs::write(&path, content).map_err(|e| Error::io(format!("cannot write {name}"), e))?;
        Ok(path.display().to_string())
    }

    /// Returns the errors that libvirtd logged.
    pub fn log(&mut self) -> String {
        self.process.stderr()
    }
}

/// Returns virsh's reason: the text after its last `error:`, which may have several lines.
fn message(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.rsplit("error: ").next().unwrap_or_default().trim().to_owned()
}

/// Creates the daemon's folders.
fn world() -> Result<TempDir> {
    let at = |e| Error::io("cannot make libvirtd's folders", e);
    let dir = tempfile::Builder::new()
        .prefix("ringway-libvirt-")
        // QEMU runs as another user and must traverse this folder.
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
