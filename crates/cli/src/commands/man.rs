//! `ringway man DIR`: writes manual pages, generated from the option definitions.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

/// Options of `ringway man`.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Existing output directory
    dir: PathBuf,
}

impl Man {
    pub(super) fn execute(self, whole: clap::Command) -> anyhow::Result<ExitCode> {
        clap_mangen::generate_to(whole, &self.dir)
            .with_context(|| format!("cannot write the manual pages to {}", self.dir.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}
