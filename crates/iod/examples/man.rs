//! Writes the manual pages of `ringway-blk`, `ringway-io` and `ringway-net` to a directory: `man
//! DIR`. This is an example and not an option, so that the programs contain nothing that only
//! packagers need.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;
use iod::options::blk::BlkOptions;
use iod::options::io::IoOptions;
use iod::options::net::NetOptions;

fn main() -> anyhow::Result<()> {
    let dir = std::env::args_os().nth(1).context("give the directory to write to")?;
    let dir = PathBuf::from(dir);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for command in [BlkOptions::command(), IoOptions::command(), NetOptions::command()] {
        // Section 8, because these are daemons. `ringway io` has the name ringway-io in section 1.
        clap_mangen::Man::new(command)
            .section("8")
            .generate_to(&dir)
            .with_context(|| format!("cannot write to {}", dir.display()))?;
    }
    Ok(())
}
