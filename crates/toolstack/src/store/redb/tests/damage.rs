//! Tests with damaged files.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::super::super::error::Holder;
use super::super::super::{Contents, Store as _, StoreError};
use super::{RedbStore, after, fill};

fn load(path: &Path) -> Result<Contents, StoreError> {
    RedbStore::open(path)?.load()
}

/// Returns the bytes of a closed file with some batches.
fn bytes() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    fill(&mut RedbStore::open(&path).unwrap(), 5);
    std::fs::read(path).unwrap()
}

/// Opens a file with these bytes. It must have the written content, or be refused.
fn try_out(what: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    std::fs::write(&path, bytes).unwrap();
    match load(&path) {
        Ok(contents) => assert!(contents == after(5), "{what}: read as something else"),
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains(path.to_str().unwrap()), "{what}: {message}");
            // Opening it must not change its content.
            let again = load(&path);
            assert!(again.map_or(true, |contents| contents == after(5)), "{what}");
            return Err(error);
        }
    }
    Ok(())
}

#[test]
fn a_changed_byte_is_found_or_does_not_matter() {
    let whole = bytes();
    try_out("whole", &whole).unwrap();
    let mut refused = 0;
    let places = testkit::rounds(120, 4_000);
    for place in 0..places {
        // Test the header at smaller steps.
        let at = if place < 60 { place * 5 } else { whole.len() * place / places };
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (place % 8);
        refused += usize::from(try_out(&format!("byte {at}"), &bytes).is_err());
    }
    println!("{refused} of {places} in {} bytes", whole.len());
    assert!(refused > 0, "no place mattered");
}

#[test]
fn a_changed_row_is_found() {
    let mut bytes = bytes();
    let row = b"5555555555";
    let all: Vec<_> =
        (0..bytes.len() - row.len()).filter(|at| bytes[*at..].starts_with(row)).collect();
    assert!(!all.is_empty());
    all.into_iter().for_each(|at| bytes[at] = b'6');
    let error = try_out("rows", &bytes).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
}

#[test]
fn a_file_that_is_cut_off_or_foreign_is_refused() {
    let whole = bytes();
    for length in [1, 9, 64, 320, 4095, 4096, whole.len() / 2, whole.len() - 4096, whole.len() - 1]
    {
        // The cut part may have been unused.
        let _either = try_out(&format!("{length} bytes"), &whole[..length]);
    }
    let damaged = |what: &str, bytes: &[u8]| {
        let error = try_out(what, bytes).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{what}: {error:?}");
        error.to_string()
    };
    assert!(damaged("empty", b"").contains("it is empty"));
    damaged("text", "[limits]\n".repeat(1000).as_bytes());
    damaged("zeroes", &vec![0; 1 << 16]);
    damaged("half", &whole[..whole.len() / 2]);
    let mut holed = whole.clone();
    holed[4096..].fill(0);
    damaged("holed", &holed);
}

#[test]
fn a_database_of_another_program_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.redb");
    drop(::redb::Database::create(&path).unwrap());
    let error = load(&path).unwrap_err();
    assert!(error.to_string().contains("not made by this program"), "{error}");
}

#[test]
fn a_newer_schema_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    fill(&mut RedbStore::open(&path).unwrap(), 1);
    let head = ::redb::TableDefinition::<&str, u64>::new("head");
    let set = |schema| {
        let database = ::redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(head).unwrap().insert("schema", schema).unwrap();
        transaction.commit().unwrap();
    };
    set(2);
    let error = load(&path).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 2, .. }), "{error:?}");
    set(1 << 40);
    assert!(matches!(load(&path), Err(StoreError::Damaged { .. })));
    set(1);
    assert_eq!(load(&path).unwrap(), after(1));
}

#[test]
fn a_store_that_is_open_is_refused_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    let mut store = RedbStore::open(&path).unwrap();
    let error = RedbStore::open(&path).unwrap_err();
    let StoreError::Taken { holder, .. } = error else { panic!("{error:?}") };
    assert_eq!(holder, Holder(Some(std::process::id())));
    fill(&mut store, 1);
    drop(store);
    assert_eq!(load(&path).unwrap(), after(1));
}

/// The process with the lock is gone, but its forked copy has the lock for a while.
#[test]
fn what_a_dead_process_left_is_outlasted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    let mut store = RedbStore::open(&path).unwrap();
    fill(&mut store, 1);
    drop(store);
    let script = "exec 9<\"$0\"; flock 9; sleep 0.3 &";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(&path);
    assert!(shell.stdout(Stdio::null()).status().unwrap().success());
    assert_eq!(load(&path).unwrap(), after(1));
}

#[test]
fn a_new_file_is_its_owners_and_has_nothing_but_its_reserve_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    assert_eq!(load(&path).unwrap(), Contents::default());
    let reserve = dir.path().join("state.redb.reserve");
    for path in [&path, &reserve] {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2);
    for (path, doing) in [("missing/state.redb", "create"), ("", "open")] {
        let error = RedbStore::open(&dir.path().join(path)).unwrap_err();
        assert!(matches!(error, StoreError::Os { doing: what, .. } if what == doing), "{error:?}");
    }
}
