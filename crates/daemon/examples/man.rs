//! Writes the manual page of `ringwayd` to a directory: `man DIR`. An example and not an option, so
//! that the program carries nothing that only packagers need.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;
use daemon::options::Options;

fn main() -> anyhow::Result<()> {
    let dir = std::env::args_os().nth(1).context("give the directory to write to")?;
    let dir = PathBuf::from(dir);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    clap_mangen::Man::new(Options::command())
        .section("8")
        .generate_to(&dir)
        .with_context(|| format!("cannot write to {}", dir.display()))?;
    Ok(())
}
