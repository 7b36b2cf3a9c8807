//! Traces of records that are missing.
//!
//! A daemon without records would begin a new pool: its machines would run on unknown, and their
//! disks would belong to no VM. So it refuses to start if something shows that there were records.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;
use toolstack::store::{RedbStore, Store};

use crate::copies;

/// Directory of the default SR's directory in the state directory.
const SRS: &str = "sr";
/// File that identifies the directory of an SR.
const SR_MARKER: &str = ".ringway-sr";
/// Directory of the running VMs in the run directory.
const MACHINES: &str = "vm";

/// Opens the records of a state directory, or new ones if it never had any.
///
/// # Errors
/// The records cannot be opened. Or there are none, and something is left of a former life: the text
/// says what, and how to restore them.
pub(crate) fn open(state: &Path, run: &Path, records: &Path) -> anyhow::Result<RedbStore> {
    if !records.exists() {
        check(state, run, records)?;
        return Ok(RedbStore::open(records)?);
    }
    let mut store = RedbStore::open(records)?;
    // An import that failed leaves an empty file.
    if trace(state, run).is_some() && store.load()?.rows.is_empty() {
        check(state, run, records)?;
    }
    Ok(store)
}

/// Checks that a state directory without records never had any.
fn check(state: &Path, run: &Path, records: &Path) -> anyhow::Result<()> {
    let Some(trace) = trace(state, run) else { return Ok(()) };
    let copies = copies::all(&state.join(copies::DIRECTORY)).unwrap_or_default();
    let restore = match copies.last() {
        Some(latest) => format!(
            "`ringwayd --state {} --import {}` restores the latest copy",
            state.display(),
            latest.display()
        ),
        None => "`ringwayd --import FILE` restores an export".to_owned(),
    };
    bail!(
        "the records in {} are missing, but {} is of machines that they describe: {restore}. To \
         begin anew without these machines, move {} away",
        records.display(),
        trace.display(),
        trace.display()
    );
}

/// Returns something that only a daemon with records leaves.
fn trace(state: &Path, run: &Path) -> Option<PathBuf> {
    let copies = state.join(copies::DIRECTORY);
    if copies::all(&copies).is_ok_and(|all| !all.is_empty()) {
        return Some(copies);
    }
    let is_marked = |sr: &PathBuf| sr.join(SR_MARKER).exists();
    children(&state.join(SRS)).find(is_marked).or_else(|| running(run))
}

/// Returns the directory of a VM that runs, or that ended while no daemon served.
pub(crate) fn running(run: &Path) -> Option<PathBuf> {
    children(&run.join(MACHINES)).next()
}

fn children(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| entry.ok().map(|entry| entry.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_former_life_is_named() {
        let place = || {
            let dir = tempfile::tempdir().unwrap();
            let (state, run) = (dir.path().join("state"), dir.path().join("run"));
            fs::create_dir_all(&state).unwrap();
            (dir, state, run)
        };
        let of = |state: &Path, run: &Path| open(state, run, &state.join("state.redb")).map(drop);
        let (_dir, state, run) = place();
        // Files that an administrator may put there before the first start.
        fs::write(state.join("password"), "root\nr\n").unwrap();
        fs::write(state.join("certificate.pem"), "").unwrap();
        of(&state, &run).unwrap();
        of(&state, &run).unwrap();
        for path in ["state/sr/1/.ringway-sr", "run/vm/1/spec", "state/copies/records-20260101"] {
            let (dir, state, run) = place();
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            let error = of(&state, &run).unwrap_err().to_string();
            assert!(error.contains("--import") && error.contains("missing"), "{error}");
            let is_copy = path.ends_with("records-20260101");
            assert_eq!(error.contains("records-20260101` restores"), is_copy, "{error}");
            assert!(!state.join("state.redb").exists());
            // An import that failed has made an empty file.
            drop(RedbStore::open(&state.join("state.redb")).unwrap());
            let error = of(&state, &run).unwrap_err().to_string();
            assert!(error.contains("--import"), "{error}");
        }
    }
}
