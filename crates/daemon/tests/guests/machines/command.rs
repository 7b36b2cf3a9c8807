//! The `ringway` command at a test's daemon.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

use testkit::process::find_binary;

use super::world::World;

impl World {
    /// Runs `ringway` with these words and the daemon's run directory, and waits for its end.
    pub(crate) fn ringway(&self, words: &[&str]) -> Output {
        let run = self.daemon.dir().join("run");
        // The command looks there for the socket, which the test's daemon has elsewhere.
        if let Err(error) = symlink(self.daemon.socket(), run.join("ringwayd.sock")) {
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        }
        let mut command = Command::new(find_binary("ringway").unwrap());
        command.args(words).arg("--run").arg(run).stdin(Stdio::null()).output().unwrap()
    }
}
