//! Directory of a domain: its sockets, its record, and the output of its process.
//!
//! ```text
//! RUN/vm/UUID/domain.json    number and CPUs, written before the process is started
//!             stderr         pipe for the output of the process, which locks it while it lives
//!             messages       this output, at most 64 KiB
//!             trace          QEMU's trace of its run states
//!             pid            its id, which it writes itself before it becomes QEMU
//!             frozen         exists while the guest's file systems may be frozen
//!             qmp.sock console.sock agent.sock
//! ```
//! The lock shows whether a process exists, without the use of a process id. No process can appear
//! between this check and the action that follows: a process inherits the lock when it starts.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use model::id::{Domid, Uuid, VmId};
use model::spec::MAX_SOCKET_PATH_BYTES;
use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};

use super::process_output::{self, ProcessOutput};
use super::reset_trace;

/// Lines of the process's output that an error contains.
const TAIL_LINES: usize = 20;

/// Stored data of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DomainRecord {
    domid: u32,
    /// CPUs of the guest. They limit the queues of a disk.
    pub(super) vcpus: u16,
}

impl DomainRecord {
    pub(super) fn new(domid: Domid, vcpus: u16) -> Self {
        Self { domid: domid.0, vcpus }
    }

    pub(super) fn domid(&self) -> Domid {
        Domid(self.domid)
    }
}

/// Directory of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunDir(PathBuf);

impl RunDir {
    /// Returns the directory of a machine, below the daemon's `run` directory.
    pub(super) fn of(run: &Path, vm: VmId) -> Self {
        Self(all(run).join(vm.to_string()))
    }

    /// Lists the machines that have a directory.
    pub(super) fn list(run: &Path) -> io::Result<Vec<VmId>> {
        let entries = match fs::read_dir(all(run)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            found.extend(name.to_str().and_then(|name| name.parse::<Uuid>().ok()).map(VmId));
        }
        Ok(found)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.is_dir()
    }

    pub(super) fn qmp(&self) -> PathBuf {
        self.0.join("qmp.sock")
    }

    pub(super) fn console(&self) -> PathBuf {
        self.0.join("console.sock")
    }

    pub(super) fn agent(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    fn frozen(&self) -> PathBuf {
        self.0.join("frozen")
    }

    /// Records that the guest's file systems may be frozen.
    pub(super) fn mark_frozen(&self) -> io::Result<()> {
        File::create(self.frozen()).map(drop)
    }

    /// Records that the guest's file systems are not frozen.
    pub(super) fn unmark_frozen(&self) -> io::Result<()> {
        match fs::remove_file(self.frozen()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns whether the guest's file systems may be frozen.
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen().exists()
    }

    pub(super) fn pid_file(&self) -> PathBuf {
        self.0.join("pid")
    }

    pub(super) fn trace(&self) -> PathBuf {
        self.0.join("trace")
    }

    /// Returns the output of the process.
    pub(super) fn output(&self) -> ProcessOutput {
        ProcessOutput::at(self.0.join("stderr"), self.0.join("messages"))
    }

    fn record(&self) -> PathBuf {
        self.0.join("domain.json")
    }

    /// Creates the directory, empty.
    pub(super) fn make(&self) -> io::Result<()> {
        self.remove()?;
        let longest = self.console();
        let bytes = longest.as_os_str().len();
        if bytes > MAX_SOCKET_PATH_BYTES {
            let why = format!(
                "{} has {bytes} bytes, a socket's path has {MAX_SOCKET_PATH_BYTES} at most: \
                 configure a shorter run directory",
                longest.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)
    }

    /// Removes the directory and its content.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    pub(super) fn register(&self, record: &DomainRecord) -> io::Result<()> {
        // Replace the file atomically.
        let temporary = self.0.join("domain.json.tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(&temporary, self.record())
    }

    /// Returns the stored record; `None` if the start did not write it, or if it is damaged.
    pub(super) fn kept(&self) -> Option<DomainRecord> {
        serde_json::from_slice(&fs::read(self.record()).ok()?).ok()
    }

    /// Creates the pipe for the output, with a lock that the process inherits.
    pub(super) fn lock(&self) -> io::Result<File> {
        let file = self.output().create()?;
        // The pipe is new, so others lock it only for a short check.
        retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(file)
    }

    /// Returns whether a process uses the directory, or is about to.
    pub(super) fn in_use(&self) -> io::Result<bool> {
        let file = match self.output().open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            outcome => Ok(outcome.map(|()| false)?),
        }
    }

    /// Returns the process id, if the process has written it.
    pub(super) fn pid(&self) -> Option<u32> {
        fs::read_to_string(self.pid_file()).ok()?.trim().parse().ok()
    }

    /// Listens on a socket in the directory.
    pub(super) fn listen(&self, socket: &Path) -> io::Result<UnixListener> {
        UnixListener::bind(socket)
    }

    /// Returns the last lines of the process's output.
    pub(super) fn last_output(&self) -> String {
        let text = self.output().tail();
        let lines: Vec<_> = text.lines().collect();
        lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("\n")
    }

    /// Returns whether the guest ended by a reset.
    pub(super) fn has_reset(&self) -> bool {
        let trace = self.trace();
        // The QEMU of an older daemon has its trace in its output.
        let text = if trace.exists() { process_output::tail(&trace) } else { self.output().tail() };
        reset_trace::is_reset(&text)
    }
}

fn all(run: &Path) -> PathBuf {
    run.join("vm")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rundir() -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp").unwrap();
        let rundir = RunDir::of(dir.path(), VmId(Uuid::default()));
        (dir, rundir)
    }

    #[test]
    fn it_is_found_by_its_machine_and_keeps_what_it_was_given() {
        let (run, dir) = rundir();
        assert_eq!(RunDir::list(run.path()).unwrap(), []);
        dir.make().unwrap();
        assert_eq!(RunDir::list(run.path()).unwrap(), [VmId(Uuid::default())]);
        assert_eq!(dir.kept(), None);
        let record = DomainRecord::new(Domid(7), 2);
        dir.register(&record).unwrap();
        assert_eq!(dir.kept(), Some(record));
        fs::write(dir.record(), "{").unwrap();
        assert_eq!(dir.kept(), None);
        dir.remove().unwrap();
        dir.remove().unwrap();
        assert!(!dir.is_there());
    }

    #[test]
    fn a_process_is_there_for_as_long_as_one_holds_its_file() {
        let (_run, dir) = rundir();
        dir.make().unwrap();
        assert!(!dir.in_use().unwrap());
        let file = dir.lock().unwrap();
        assert!(dir.in_use().unwrap());
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("1000").stderr(file).spawn().unwrap();
        // The command keeps the file open until it is dropped.
        drop(command);
        assert!(dir.in_use().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!dir.in_use().unwrap());
    }

    #[test]
    fn a_path_that_no_socket_can_have_says_what_to_do() {
        let (run, _) = rundir();
        let dir = RunDir::of(&run.path().join("x".repeat(60)), VmId(Uuid::default()));
        let error = dir.make().unwrap_err().to_string();
        assert!(error.contains("107 at most") && error.contains("run directory"), "{error}");
    }

    #[test]
    fn the_last_lines_are_told() {
        let (_run, dir) = rundir();
        assert_eq!(dir.last_output(), "");
        dir.make().unwrap();
        let mut stderr = dir.lock().unwrap();
        for number in 0..3000 {
            writeln!(stderr, "line {number}").unwrap();
        }
        let output = dir.last_output();
        assert_eq!(output.lines().count(), TAIL_LINES);
        assert!(output.starts_with("line 2980\n") && output.ends_with("line 2999"), "{output}");
    }

    #[test]
    fn a_reset_is_found_in_what_the_process_said() {
        let (_run, dir) = rundir();
        assert!(!dir.has_reset());
        dir.make().unwrap();
        let reset = "runstate_set current_run_state 9 (running) new_state 11 (shutdown)\n";
        fs::write(dir.trace(), "").unwrap();
        assert!(!dir.has_reset());
        fs::write(dir.trace(), reset).unwrap();
        assert!(dir.has_reset());
        // The QEMU of an older daemon writes both into one file.
        dir.make().unwrap();
        fs::write(dir.path().join("stderr"), "a warning\n".repeat(3000) + reset).unwrap();
        assert!(dir.has_reset() && !dir.in_use().unwrap());
    }
}
