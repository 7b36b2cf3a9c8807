//! Writes the manual page of `ringwayd` to a directory: `manual DIR`. This is an example program,
//! so that the daemon contains no code for packagers.
#![forbid(unsafe_code)]

mod page;

use std::path::PathBuf;

use anyhow::Context;

/// Name of the page in section 8, for system administration.
const FILE: &str = "ringwayd.8";

fn main() -> anyhow::Result<()> {
    let dir = std::env::args_os().nth(1).context("give the directory to write to")?;
    let dir = PathBuf::from(dir);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let file = dir.join(FILE);
    let page = page::page().context("the page cannot be made")?;
    std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))
}
