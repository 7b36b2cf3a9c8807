//! Export and import of records as text. No daemon may use the state directory meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, ensure};
use toolstack::store::{self, RedbStore};

use crate::start;

/// Mode of an export: access for its owner only, because records contain secrets.
const OWNER: u32 = 0o600;

/// Writes all records of a state directory to a new file. Returns the number of rows.
///
/// # Errors
/// Fails if there are no records, a daemon uses them, or the file exists or cannot be written.
pub fn export(state: &Path, to: &Path) -> anyhow::Result<usize> {
    let records = start::records_in(state);
    ensure!(records.exists(), "there are no records in {}", state.display());
    let mut store = RedbStore::open(&records)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(OWNER).open(to);
    let file = file.with_context(|| format!("cannot make {}: name a new file", to.display()))?;
    let written = write(&mut store, file);
    if written.is_err() {
        // An incomplete export is useless.
        let _ = fs::remove_file(to);
    }
    written.with_context(|| format!("cannot write {}", to.display()))
}

fn write(store: &mut RedbStore, file: File) -> anyhow::Result<usize> {
    let mut to = BufWriter::new(file);
    let rows = store::export(store, &mut to)?;
    to.flush()?;
    to.get_ref().sync_all()?;
    Ok(rows)
}

/// Loads an export into a state directory without records. Returns the number of rows.
///
/// # Errors
/// Fails if the directory has records or a daemon uses it. Also fails if the file is not a complete
/// export of this or an earlier version.
pub fn import(state: &Path, from: &Path) -> anyhow::Result<usize> {
    let file = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    start::state_directory(state)?;
    let mut store = RedbStore::open(&start::records_in(state))?;
    let rows = store::import(&mut BufReader::new(file), &mut store);
    rows.with_context(|| format!("cannot import {}", from.display()))
}
