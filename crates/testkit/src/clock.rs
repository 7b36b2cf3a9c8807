//! A wall clock that a test sets, for the processes that it starts and for their children.
//!
//! `libfaketime` returns the time of day to these processes. It does not change the monotonic
//! clock. So they see what an administrator or NTP causes by setting a host's time.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Error, Result};

/// Debian's directory of libraries, and the library below it for programs with several threads.
const LIBRARIES: &str = "/usr/lib";
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// Directory of shared memory, and prefixes of the files that the library creates for each process.
const SHARED: &str = "/dev/shm";
const LEFT: [&str; 2] = ["faketime_shm_", "sem.faketime_sem_"];

/// Time of day of some processes.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    dir: TempDir,
}

impl WallClock {
    /// Creates a clock that shows the right time.
    ///
    /// # Errors
    /// [`Error::Missing`] if `libfaketime` is not installed.
    pub fn new() -> Result<Self> {
        let missing =
            || Error::Missing { program: LIBRARY.to_owned(), next: "run: make setup".to_owned() };
        let library = find().ok_or_else(missing)?;
        let dir = tempfile::Builder::new().prefix("rw-").tempdir();
        let dir = dir.map_err(|e| Error::io("cannot create a temporary directory", e))?;
        let clock = Self { library, dir };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets the clock to `seconds` after the right time, or before it if negative.
    ///
    /// # Errors
    /// [`Error::Io`] if its file cannot be written.
    pub fn set(&self, seconds: i64) -> Result<()> {
        // Processes read the file at any moment, so replace it as a whole.
        let (path, new) = (self.path(), self.dir.path().join("new"));
        let written = fs::write(&new, format!("{seconds:+}")).and_then(|()| fs::rename(&new, path));
        written.map_err(|e| Error::io("cannot set a clock", e))
    }

    /// Returns the environment variables that give a process this clock.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let fixed = [
            ("LD_PRELOAD", self.library.as_os_str().to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.path().into_os_string()),
            // The library reads the file each time, and changes the time of day only.
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("NO_FAKE_STAT", "1".into()),
        ];
        fixed.map(|(name, value)| (name.into(), value)).into()
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("clock")
    }
}

/// Removes the shared memory that the library leaves of killed processes.
impl Drop for WallClock {
    fn drop(&mut self) {
        let entries = fs::read_dir(SHARED).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let gone = owner(&path).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
            if gone {
                let _others_have_removed_it = fs::remove_file(path);
            }
        }
    }
}

/// Returns the process for which the library has created this file.
fn owner(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let pid = LEFT.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    pid.parse().ok()
}

fn find() -> Option<PathBuf> {
    let triplets = fs::read_dir(LIBRARIES).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    triplets.map(|dir| dir.join(LIBRARY)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_has_the_time_that_is_set_and_leaves_nothing() {
        let clock = WallClock::new().unwrap();
        let ahead = || {
            let environment = clock.environment();
            let output = Command::new("date").arg("+%s").envs(environment).output().unwrap();
            let time: i64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
            let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
            time - now
        };
        for seconds in [0, 900_000_000, -900_000_000] {
            clock.set(seconds).unwrap();
            let is = ahead();
            assert!((is - seconds).abs() < 1000, "{is}, set {seconds}");
        }
        let mut killed = Command::new("sleep").arg("60").envs(clock.environment()).spawn().unwrap();
        killed.kill().unwrap();
        killed.wait().unwrap();
        let pid = killed.id();
        drop(clock);
        let left = fs::read_dir(SHARED).unwrap().flatten();
        assert!(left.into_iter().all(|entry| owner(&entry.path()) != Some(pid)));
    }
}
