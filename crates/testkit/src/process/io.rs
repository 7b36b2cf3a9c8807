//! A `ringway-io` under test. The `ringway` command calls it, as for users.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::backend::wait_ready_byte;
use super::{Process, Target, find_binary};
use crate::error::{Error, Result};

/// Returns options of a `ringway-io` that shares storages with no other process of this host, unless
/// `options` name a folder for that.
#[must_use]
pub fn sharing_alone(options: &[&str]) -> &'static [&'static str] {
    const OPTION: &str = "--share-folder";
    if options.contains(&OPTION) { &[] } else { &[OPTION, "none"] }
}

/// A running `ringway-io`. Its control socket and the sockets of its disks are in a folder of the
/// caller.
#[derive(Debug)]
pub struct RingwayIo {
    /// Started process, the keeper. Its child, the worker, serves.
    pub process: Process,
    control: PathBuf,
    dir: PathBuf,
}

impl RingwayIo {
    /// Starts `ringway-io` with the given options besides `--control` and `--ready-fd`. Returns
    /// when it accepts calls. The keeper replaces a worker that dies at once, however often.
    ///
    /// # Errors
    /// [`Error::Missing`] if it is not built, [`Error::Process`] with its message if it ends.
    pub fn start(dir: &Path, options: &[&str]) -> Result<Self> {
        let control = dir.join("io.sock");
        let mut command = Command::new(find_binary("ringway-io")?);
        command.arg("--control").arg(&control).args(["--restart-pause-max", "0"]).args(options);
        command.args(sharing_alone(options));
        command.args(["--ready-fd", "1", "--die-with-parent"]).stdout(Stdio::piped());
        let mut process = Process::start(&mut command)?;
        wait_ready_byte(&mut process)?;
        Ok(Self { process, control, dir: dir.to_owned() })
    }

    /// Returns the folder of its sockets.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the socket of disk `id`.
    #[must_use]
    pub fn socket(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.sock"))
    }

    /// Runs `ringway` with `--control` after the first word. Returns its output.
    ///
    /// # Errors
    /// [`Error::Reply`] with its message if it fails, or warns.
    pub fn ringway(&self, words: &[&str]) -> Result<String> {
        self.run(words, false)
    }

    fn run(&self, words: &[&str], may_warn: bool) -> Result<String> {
        let (first, rest) = words.split_first().unwrap_or((&"io", &[]));
        let mut command = Command::new(find_binary("ringway")?);
        command.arg(first).arg("--control").arg(&self.control).args(rest);
        let output = command.output().map_err(|e| Error::io("cannot start ringway", e))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        if output.status.success() && (may_warn || stderr.is_empty()) {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Error::Reply { request: words.join(" "), what: stderr.into_owned() })
    }

    /// Attaches a raw image as disk `id` on [`RingwayIo::socket`]. `more` are further parameters.
    ///
    /// # Errors
    /// As [`RingwayIo::ringway`].
    pub fn attach(&self, id: &str, image: &Path, more: &[&str]) -> Result<()> {
        self.attach_target(id, &Target::File(image.to_owned()), more)
    }

    /// Attaches any storage as disk `id` on [`RingwayIo::socket`]. `more` are further parameters.
    ///
    /// # Errors
    /// As [`RingwayIo::ringway`].
    pub fn attach_target(&self, id: &str, target: &Target, more: &[&str]) -> Result<()> {
        self.attach_with(id, target, more, false)
    }

    /// As [`RingwayIo::attach_target`]. The attach may tell notes.
    ///
    /// # Errors
    /// [`Error::Reply`] with its message if it fails.
    pub fn attach_noted(&self, id: &str, target: &Target, more: &[&str]) -> Result<()> {
        self.attach_with(id, target, more, true)
    }

    fn attach_with(&self, id: &str, target: &Target, more: &[&str], may_warn: bool) -> Result<()> {
        let backend = format!("backend={}", target.backend());
        let socket = format!("socket={}", self.socket(id).display());
        let words = ["io", "disk.attach", &format!("id={id}"), &socket, &backend];
        self.run(&[&words[..], more].concat(), may_warn).map(drop)
    }

    /// Kills the worker with SIGKILL. Returns when its successor has started.
    ///
    /// # Errors
    /// [`Error::Process`] if there is no successor before the deadline.
    pub fn kill_worker(&mut self) -> Result<()> {
        let Some(worker) = self.process.worker()? else {
            return Err(self.process.error("has no worker"));
        };
        worker.kill()?;
        self.process.next_worker(Some(worker.id())).map(drop)
    }
}
