//! Processes that outlive the daemon, and its hidden mode `--spawn` that starts them.
//!
//! Only the process itself can do some preparations before it becomes QEMU. It joins its control
//! group and requests the shortest time slices for its threads ([`sched`]). It raises its limit of
//! open files, leaves the daemon's session and writes its process id to a file.
//!
//! So the daemon starts its own program again in this mode, and the new process executes the target
//! program. Process id and standard descriptors stay the same.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use crate::cgroup::client_access;
use crate::open_files;

/// Argument that selects this mode. The arguments of [`DetachedProcess::words`] follow it.
pub const MODE: &str = "--spawn";

const GROUP: &str = "--group";
const PID_FILE: &str = "--pid-file";
const END: &str = "--";

/// Program to execute, and the preparations before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DetachedProcess {
    /// File through which the process joins a control group
    /// ([`SliceTree::join_file`](crate::cgroup::SliceTree::join_file)).
    ///
    /// If the join fails, the process reports it on standard error and continues in its present
    /// group. With a group, its threads get the shortest time slices, so that a thread of another
    /// group need not wait for a long time slice to end.
    pub group: Option<PathBuf>,
    /// File that receives the process id before the program runs.
    pub pid_file: Option<PathBuf>,
    /// Program and its arguments.
    pub command: Vec<OsString>,
}

impl DetachedProcess {
    /// Returns the arguments that encode this value, to follow [`MODE`].
    pub fn words(&self) -> Vec<OsString> {
        let mut words = Vec::with_capacity(self.command.len() + 5);
        let mut option = |name: &str, path: &Option<PathBuf>| {
            words.extend(path.iter().flat_map(|path| [name.into(), path.into()]));
        };
        option(GROUP, &self.group);
        option(PID_FILE, &self.pid_file);
        words.push(END.into());
        words.extend(self.command.iter().cloned());
        words
    }

    /// Parses the arguments of [`Self::words`]. Returns `None` if they name no program.
    pub fn parse(words: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let (mut detached_process, mut words) = (Self::default(), words.into_iter());
        loop {
            let word = words.next()?;
            if word == OsStr::new(END) {
                detached_process.command = words.collect();
                return (!detached_process.command.is_empty()).then_some(detached_process);
            } else if word == OsStr::new(GROUP) {
                detached_process.group = Some(words.next()?.into());
            } else if word == OsStr::new(PID_FILE) {
                detached_process.pid_file = Some(words.next()?.into());
            } else {
                return None;
            }
        }
    }

    /// Prepares this process and executes the program. Returns only on failure.
    pub fn exec(&self) -> io::Error {
        let Some((program, arguments)) = self.command.split_first() else {
            return io::Error::new(io::ErrorKind::InvalidInput, "no program to start");
        };
        match self.prepare() {
            Ok(()) => named(
                &format!("cannot start {}", Path::new(program).display()),
                std::process::Command::new(program).args(arguments).exec(),
            ),
            Err(error) => error,
        }
    }

    fn prepare(&self) -> io::Result<()> {
        if let Some(group) = &self.group {
            if let Err(error) = client_access::enter(group) {
                let group = group.display();
                report(&format!("outside of its control group: cannot write {group}: {error}"));
            }
            if let Err(error) = sched::set_slice(None, sched::MIN_SLICE) {
                report(&format!("its threads keep the default slice: {error}"));
            }
        }
        open_files::raise_open_files().map_err(|error| named("cannot take open files", error))?;
        rustix::process::setsid().map_err(|error| named("cannot leave the session", error))?;
        if let Some(file) = &self.pid_file {
            let doing = format!("cannot write {}", file.display());
            let pid = std::process::id().to_string();
            std::fs::write(file, pid).map_err(|error| named(&doing, error))?;
        }
        Ok(())
    }
}

/// Executes the program that the arguments after [`MODE`] name. Returns only on failure.
///
/// The caller prints the error to standard error, which the starting process reads, and exits.
pub fn become_spawned(words: impl IntoIterator<Item = OsString>) -> io::Error {
    match DetachedProcess::parse(words) {
        Some(detached_process) => detached_process.exec(),
        None => io::Error::new(io::ErrorKind::InvalidInput, "the arguments name no program"),
    }
}

/// Writes a line to standard error, if that is possible.
fn report(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn named(doing: &str, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{doing}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn what_is_said_is_understood() {
        let command = words("qemu -S -- --group x");
        for (group, pid_file) in [(None, None), (Some("/g/cgroup.procs"), Some("/r/pid"))] {
            let (group, pid_file) = (group.map(PathBuf::from), pid_file.map(PathBuf::from));
            let detached_process = DetachedProcess { group, pid_file, command: command.clone() };
            assert_eq!(DetachedProcess::parse(detached_process.words()), Some(detached_process));
        }
    }

    #[test]
    fn what_names_no_program_is_refused() {
        for bad in ["", "--", "qemu", "--group", "--group /g", "--group /g --", "--files 7 -- qemu"]
        {
            assert_eq!(DetachedProcess::parse(words(bad)), None, "{bad}");
            let error = become_spawned(words(bad));
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{bad}");
        }
    }
}
