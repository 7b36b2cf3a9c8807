//! A libvirt domain with the test guest's console.

use std::fs::Permissions;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use super::Libvirt;
use crate::error::{Error, Result};
use crate::guest::console::{Console, Seen};
use crate::guest::{Outcome, SCRIPT_SERIAL, whole_sectors};
use crate::process::PROCESS_DEADLINE;
use crate::raw::guest::wait_readable;

/// Kernel parameters that make the test guest run the script. It uses one of its CPUs, because
/// several may hang a boot without QEMU's `thread=single`, which libvirt cannot set. Disks count
/// all CPUs.
pub const APPEND: &str = "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off cryptomgr.notests tsc=reliable \
     nokaslr maxcpus=1 ringway.script=ringway-script";

/// A started domain. Drop destroys it.
#[derive(Debug)]
pub struct Domain<'a> {
    libvirt: &'a Libvirt,
    name: String,
    console: Console,
}

impl Libvirt {
    /// Defines and starts the domain `name` of `xml`, which boots the test guest with [`APPEND`].
    /// Adds a disk with `script` and a console to the test. Returns while it boots.
    ///
    /// # Errors
    /// [`Error::Reply`] with libvirt's reason.
    pub fn boot(&self, name: &str, xml: &str, script: &str) -> Result<Domain<'_>> {
        let socket = self.dir().join(format!("{name}.console"));
        let at = |e| Error::io(format!("cannot listen on {}", socket.display()), e);
        let listener = UnixListener::bind(&socket).map_err(at)?;
        std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).map_err(at)?;
        let script = self.file(&format!("{name}.script"), whole_sectors(script))?;
        let serial = format!(
            "<disk type='file' device='disk'><driver name='qemu' type='raw'/>\
             <source file='{script}'/><target dev='vdz' bus='virtio'/>\
             <serial>{SCRIPT_SERIAL}</serial></disk><serial type='unix'>\
             <source mode='connect' path='{}'/><target port='0'/></serial></devices>",
            socket.display()
        );
        // The domain's own console would go to a terminal; the test reads a socket.
        let (before, rest) = xml.split_once("<console").ok_or_else(|| foreign("<console"))?;
        let (_, after) = rest.split_once("</console>").ok_or_else(|| foreign("</console>"))?;
        self.define(&format!("{before}{after}").replace("</devices>", &serial))?;
        self.virsh(&["start", name])?;
        let stream = match wait_readable(&[listener.as_fd()], PROCESS_DEADLINE)? {
            Some(_) => listener.accept().map_err(at)?.0,
            None => return Err(late("QEMU's connection", PROCESS_DEADLINE)),
        };
        let input = stream.try_clone().map_err(|e| Error::io("cannot share the console", e))?;
        let console = Console::new(stream, Some(input));
        Ok(Domain { libvirt: self, name: name.to_owned(), console })
    }
}

impl Domain<'_> {
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

    /// Types text on the console; a newline is the enter key.
    ///
    /// # Errors
    /// [`Error::Io`] if the guest has ended.
    pub fn type_in(&mut self, text: &str) -> Result<()> {
        let Some(input) = self.console.input() else { return Ok(()) };
        let at = |e| Error::io("cannot type on the guest's console", e);
        input.write_all(text.as_bytes()).map_err(at)
    }

    /// Returns all console output so far.
    #[must_use]
    pub fn console(&self) -> String {
        self.console.text()
    }

    /// Waits for the domain to end and returns the result of its script.
    ///
    /// # Errors
    /// [`Error::Process`] if it does not end before the deadline, or ends without having run the
    /// script.
    pub fn finish(self, deadline: Duration) -> Result<Outcome> {
        if !self.console.wait_closed(deadline) {
            let ms = deadline.as_millis();
            return Err(self.error(&format!("did not power off in {ms} ms")));
        }
        self.console.outcome().ok_or_else(|| self.error("ended before its script did"))
    }

    fn error(&self, what: &str) -> Error {
        Error::Process {
            program: format!("libvirt's machine {}", self.name),
            what: what.to_owned(),
            stderr: self.console.tail(),
        }
    }
}

impl Drop for Domain<'_> {
    fn drop(&mut self) {
        // The domain may have ended by itself. If not, it ends with the daemon.
        let _ = self.libvirt.virsh(&["destroy", &self.name]);
    }
}

fn late(what: &str, after: Duration) -> Error {
    Error::Timeout { what: what.to_owned(), after_ms: after.as_millis() }
}

fn foreign(part: &str) -> Error {
    Error::Reply { request: "the machine's XML".to_owned(), what: format!("it has no {part}") }
}
