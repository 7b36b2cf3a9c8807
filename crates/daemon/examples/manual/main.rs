//! Writes the manual page of `ringwayd` to a directory: `manual DIR`. An example and not an option, so
//! that the program carries nothing that only packagers need.
#![forbid(unsafe_code)]

mod page;

use std::path::PathBuf;

use anyhow::Context;

/// Section 8: it is a daemon.
const FILE: &str = "ringwayd.8";

fn main() -> anyhow::Result<()> {
    let dir = std::env::args_os().nth(1).context("give the directory to write to")?;
    let dir = PathBuf::from(dir);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let file = dir.join(FILE);
    let page = page::page().context("the page cannot be made")?;
    std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))
}
