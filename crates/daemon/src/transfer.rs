//! Export and import of records as text. During an import no daemon may use the state directory. An
//! export of records that a daemon uses is made by that daemon.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use toolstack::store::{self, RedbStore, StoreError};
use xenapi::Value;
use xenapi::client::Client;

use crate::start;

/// Mode of an export: access for its owner only, because records contain secrets.
const OWNER: u32 = 0o600;

/// Writes all records of a state directory to a new file. Returns the number of rows. `socket` is
/// that of the daemon that may use them.
///
/// # Errors
/// Fails if there are no records, if a process that is not at `socket` uses them, or if the file
/// exists or cannot be written.
pub fn export(state: &Path, socket: &Path, to: &Path) -> anyhow::Result<usize> {
    let records = start::records_in(state);
    ensure!(records.exists(), "there are no records in {}", state.display());
    let from = match RedbStore::open(&records) {
        Ok(store) => From::Store(store),
        Err(taken @ StoreError::Taken { .. }) => {
            let text = dump(socket);
            From::Daemon(text.with_context(|| format!("the daemon makes no export; {taken}"))?)
        }
        Err(error) => return Err(error.into()),
    };
    let file = OpenOptions::new().write(true).create_new(true).mode(OWNER).open(to);
    let file = file.with_context(|| format!("cannot make {}: name a new file", to.display()))?;
    let written = match from {
        From::Store(mut store) => write(&mut store, file),
        From::Daemon(text) => write_text(&text, file),
    };
    if written.is_err() {
        // An incomplete export is useless.
        let _ = fs::remove_file(to);
    }
    written.with_context(|| format!("cannot write {}", to.display()))
}

/// Source of an export.
enum From {
    /// File that no process uses.
    Store(RedbStore),
    /// Export that the daemon has made.
    Daemon(String),
}

/// Asks the daemon at this socket for an export.
fn dump(socket: &Path) -> anyhow::Result<String> {
    let mut client = Client::unix(socket)?;
    client.login("root", "", "ringwayd --export")?;
    match client.call("pool.dump_database", &[])? {
        Value::Str(text) => Ok(text),
        _ => bail!("its answer is no export"),
    }
}

fn write_text(text: &str, mut file: File) -> anyhow::Result<usize> {
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    // The first line is not a row.
    Ok(text.lines().count().saturating_sub(1))
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
