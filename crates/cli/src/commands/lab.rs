//! `ringway lab ...`: executes `ringway-lab`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use toolstack::binaries;

/// Options of `ringway lab`, which are those of `ringway-lab`.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  ringway lab list\n  ringway lab run blk-baseline --quick\n\n\
                  Exit codes of `run`: 0 every bar was met, 3 a bar was missed, 4 none was missed\n\
                  but one is undecided"
)]
pub(crate) struct Lab {
    /// list, run NAME [--quick], report; see `ringway lab --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Lab {
    pub(super) fn execute(self) -> anyhow::Result<ExitCode> {
        let program = binaries::ours(binaries::RINGWAY_LAB)?;
        let error = std::process::Command::new(&program).args(self.arguments).exec();
        Err(error).with_context(|| format!("cannot start {}", program.display()))
    }
}
