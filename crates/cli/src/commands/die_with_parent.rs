//! `ringway bound PARENT PROGRAM...`: becomes a program that the kernel kills when its parent
//! dies. For programs without such an option, as QEMU before 10.2.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

/// Options of `ringway bound`.
#[derive(Debug, Args)]
pub(crate) struct DieWithParent {
    /// Process id that must be the parent's
    parent: u32,
    /// The program and its arguments
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

/// The words that make a program bound to this process.
///
/// # Errors
/// When our own executable cannot be found.
pub(super) fn launcher() -> anyhow::Result<Vec<OsString>> {
    let ourselves = std::env::current_exe().context("cannot find our own program file")?;
    Ok(vec![ourselves.into(), "bound".into(), std::process::id().to_string().into()])
}
