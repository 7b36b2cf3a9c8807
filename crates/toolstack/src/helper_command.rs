//! Programs that are started as helpers: ourselves in a hidden mode.

use std::ffi::OsString;
use std::path::PathBuf;

/// The running program's own file, also after another version was installed over it.
const OURSELVES: &str = "/proc/self/exe";

/// A program with the words before its own arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperCommand {
    /// The program.
    pub program: PathBuf,
    /// Its first words.
    pub words: Vec<OsString>,
}

impl HelperCommand {
    /// The running program in one of its hidden modes, for example `--storage-worker`.
    pub fn ourselves(mode: &str) -> Self {
        Self { program: OURSELVES.into(), words: vec![mode.into()] }
    }

    /// A command that can be given more words.
    pub fn command(&self) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.words);
        command
    }
}
