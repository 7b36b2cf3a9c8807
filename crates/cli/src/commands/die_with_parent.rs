//! `ringway bound PARENT PROGRAM...`: executes a program that the kernel kills when its parent
//! dies. QEMU before 10.2 has no option for that.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

/// Options of `ringway bound`.
#[derive(Debug, Args)]
pub(crate) struct DieWithParent {
    /// Process id that the parent must have
    parent: u32,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl DieWithParent {
    pub(super) fn execute(self) -> anyhow::Result<ExitCode> {
        let program = self.command.first().cloned().unwrap_or_default();
        let error = toolstack::process_group::become_bound(self.parent, &self.command);
        Err(error).with_context(|| format!("cannot start {}", program.display()))
    }
}

/// Returns the command-line prefix that makes a program die with this process.
///
/// # Errors
/// The path of this executable is unknown.
pub(super) fn launcher() -> anyhow::Result<Vec<OsString>> {
    let ourselves = std::env::current_exe().context("cannot find our own program file")?;
    Ok(vec![ourselves.into(), "bound".into(), std::process::id().to_string().into()])
}
