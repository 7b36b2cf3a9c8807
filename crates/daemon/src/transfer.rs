//! Records as text: out of a state directory, and into an empty one. No daemon has it meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, ensure};
use toolstack::store::{self, RedbStore};

use crate::start;

/// Records hold secrets: what is written of them is for its owner only.
const OWNER: u32 = 0o600;

/// Writes all records of a state directory to a new file; says how many rows.
///
/// # Errors
/// There are none, a daemon has them, or the file is there already or cannot be written.
pub fn export(state: &Path, to: &Path) -> anyhow::Result<usize> {
    let records = start::records_in(state);
    ensure!(records.exists(), "there are no records in {}", state.display());
    let mut store = RedbStore::open(&records)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(OWNER).open(to);
    let file = file.with_context(|| format!("cannot make {}: name a new file", to.display()))?;
    let written = write(&mut store, file);
    if written.is_err() {
        // Half an export is none.
        let _ = fs::remove_file(to);
    }
    written.with_context(|| format!("{} is not written", to.display()))
}

fn write(store: &mut RedbStore, file: File) -> anyhow::Result<usize> {
    let mut to = BufWriter::new(file);
    let rows = store::export(store, &mut to)?;
    to.flush()?;
    to.get_ref().sync_all()?;
    Ok(rows)
}

/// Fills a state directory that has no records with those of an export; says how many rows.
///
/// # Errors
/// The directory has some, a daemon has it, or the file is no whole export of this version or an
/// earlier one.
pub fn import(state: &Path, from: &Path) -> anyhow::Result<usize> {
    let file = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    start::state_directory(state)?;
    let mut store = RedbStore::open(&start::records_in(state))?;
    let rows = store::import(&mut BufReader::new(file), &mut store);
    rows.with_context(|| format!("{} is not imported", from.display()))
}
