//! Storage that hangs on command, slow storage, storage with chosen sectors or with partitions, and profiles
//! of storage.
//!
//! - [`Hanging`], a file system: processes that write to it sleep in the kernel.
//! - [`Stalling`], a block device: its requests, also reads, stay in the kernel.
//! - [`SlowStorage`], a file system of which few bytes a second are read.
//! - [`LoopDevice`], a block device with sectors of a chosen size.
//! - [`Partitions`], two file systems on partitions of one device.
//!
//! Without cleanup these would outlive the test, together with every process that uses them. So a
//! shell lets the storage continue and removes it when the test's end of its input closes. The
//! kernel closes it however the test ends. [`cpus`](crate::cpus) are restored in the same way.

mod hanging;
mod io_group;
mod loop_device;
mod partitions;
mod profile;
mod slow;
mod stalling;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::error::{Error, Result};

pub use hanging::Hanging;
pub use loop_device::LoopDevice;
pub use partitions::Partitions;
pub use profile::store_profile;
pub use slow::SlowStorage;
pub use stalling::Stalling;

/// Shell that removes the storage when this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
    /// Input of the shell, which cleans up when this closes.
    hold: Option<ChildStdin>,
}

impl Guard {
    /// Runs `script` with `words` as its parameters. It prepares, prints one line, reads its input
    /// to the end, and cleans up. Returns the guard and that line.
    pub(crate) fn start<S: AsRef<OsStr>>(
        script: &str,
        words: &[S],
        needs: &str,
    ) -> Result<(Self, String)> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "guard"]).args(words);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut shell = shell.spawn().map_err(|error| Error::io("cannot start a shell", error))?;
        let hold = shell.stdin.take();
        let out = shell.stdout.take().map(BufReader::new);
        let mut guard = Self { shell, hold };
        match out.and_then(|out| out.lines().next()) {
            Some(Ok(line)) => Ok((guard, line)),
            _ => {
                let stderr = guard.shell.stderr.take().map(std::io::read_to_string);
                let stderr = stderr.and_then(std::io::Result::ok).unwrap_or_default();
                Err(Error::io(needs, std::io::Error::other(stderr)))
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.hold.take());
        // The shell has read the end of its input. It does not wait for hanging storage any more.
        let _ = self.shell.wait();
    }
}

/// Runs a command. Returns its output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let what = format!("cannot run {command:?}");
    let output = command.output().map_err(|error| Error::io(what.clone(), error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::io(what, std::io::Error::other(stderr)))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    use super::*;

    /// Runs `work` while the storage hangs, and checks that it ends after `answer` and not before.
    fn hangs_until(work: impl FnOnce() + Send + 'static, answer: impl FnOnce()) {
        let (done, wait) = std::sync::mpsc::channel();
        let worker = std::thread::spawn(move || {
            work();
            done.send(()).unwrap();
        });
        let early = wait.recv_timeout(Duration::from_millis(200));
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "it does not hang");
        answer();
        wait.recv().unwrap();
        worker.join().unwrap();
    }

    #[test]
    fn a_write_to_a_file_system_hangs_until_it_is_answered() {
        let hanging = Hanging::new().unwrap();
        let path = hanging.image("a", 4096).unwrap();
        hanging.hang().unwrap();
        let write = move || std::fs::write(path, [1; 4096]).unwrap();
        hangs_until(write, || hanging.answer().unwrap());
    }

    #[test]
    fn requests_to_a_block_device_hang_until_they_are_answered_for_those_enclosed() {
        let Some(stalling) = Stalling::new(1 << 20, 0xcc).unwrap() else { return };
        stalling.hang().unwrap();
        let (device, group) = (stalling.device().to_owned(), stalling.group().to_owned());
        let copy = |enclosed: Option<PathBuf>, from: &str, to: &str| {
            let enclose =
                enclosed.map(|group| format!("echo $$ >{}/cgroup.procs;", group.display()));
            let dd = format!("exec dd if={from} of={to} bs=64k count=1 status=none");
            let script = format!("{} {dd}", enclose.unwrap_or_default());
            assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        };
        let path = device.to_str().unwrap().to_owned();
        copy(None, &format!("{path} iflag=direct"), "/dev/null");
        for (from, to) in [
            (format!("{path} iflag=direct"), "/dev/null".to_owned()),
            (path.clone(), "/dev/null".to_owned()),
            ("/dev/zero".to_owned(), format!("{path} oflag=direct")),
        ] {
            // Drop cached blocks, so that each turn reads from the device.
            run(Command::new("blockdev").arg("--flushbufs").arg(&device)).unwrap();
            stalling.hang().unwrap();
            let group = group.clone();
            let work = move || copy(Some(group), &from, &to);
            hangs_until(work, || stalling.answer().unwrap());
        }
    }

    #[test]
    fn what_hangs_when_a_test_ends_is_answered_and_nothing_is_left() {
        let Some(stalling) = Stalling::new(1 << 20, 0).unwrap() else { return };
        let (device, group) = (stalling.device().to_owned(), stalling.group().to_owned());
        stalling.hang().unwrap();
        let script = format!(
            "echo $$ >{}/cgroup.procs; echo; exec dd if={} of=/dev/null bs=64k iflag=direct count=1",
            group.display(),
            device.display()
        );
        let mut reader = Command::new("sh");
        let mut reader = reader.args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(reader.stdout.take().unwrap()).read_line(&mut line).unwrap();
        drop(stalling);
        reader.wait().unwrap();
        assert!(!group.exists(), "{}", group.display());
    }
}
