//! Commands that start this program as a helper, in one of its hidden modes.

use std::ffi::OsString;
use std::path::PathBuf;

/// File of the running program. It stays valid after another version is installed over it.
const OURSELVES: &str = "/proc/self/exe";

/// Program with leading arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperCommand {
    /// Path of the program.
    pub program: PathBuf,
    /// Leading arguments.
    pub words: Vec<OsString>,
}

impl HelperCommand {
    /// Returns the running program in a hidden mode, for example `--storage-worker`.
    pub fn ourselves(mode: &str) -> Self {
        Self { program: OURSELVES.into(), words: vec![mode.into()] }
    }

    /// Builds a command to which the caller can add arguments.
    pub fn command(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.words);
        command
    }
}
