//! Tests that every store passes.

use std::path::PathBuf;

use tempfile::TempDir;

use super::super::{
    BATCH_BYTES_MAX, Batch, Contents, Key, MemoryStore, NAME_BYTES_MAX, RedbStore, Store,
    StoreError, TABLE_BYTES_MAX, VALUE_BYTES_MAX,
};

/// Place of a store that can be reopened.
trait Place {
    fn open(&self) -> Box<dyn Store>;
}

struct InFile {
    path: PathBuf,
    _dir: TempDir,
}

impl Place for InFile {
    fn open(&self) -> Box<dyn Store> {
        Box::new(RedbStore::open(&self.path).unwrap())
    }
}

impl Place for MemoryStore {
    fn open(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }
}

fn places() -> [Box<dyn Place>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    [Box::new(InFile { path, _dir: dir }), Box::<MemoryStore>::default()]
}

fn key(name: &str) -> Key {
    Key::new("obj/VM", name)
}

fn batch(generation: u64, ceiling: u64, changes: &[(&str, Option<&str>)]) -> Batch {
    let mut batch = Batch { generation, ceiling, ..Batch::default() };
    for (name, value) in changes {
        match value {
            Some(value) => batch.put(key(name), value.as_bytes().to_vec()),
            None => batch.delete(key(name)),
        }
    }
    batch
}

fn rows(contents: &Contents) -> Vec<(String, String)> {
    let text = |value: &Vec<u8>| String::from_utf8_lossy(value).into_owned();
    contents.rows.iter().map(|(key, value)| (key.to_string(), text(value))).collect()
}

#[test]
fn a_new_store_is_empty_and_clean() {
    for place in places() {
        assert_eq!(place.open().load().unwrap(), Contents::default());
        assert_eq!(place.open().load().unwrap(), Contents::default());
    }
}

#[test]
fn a_batch_is_there_whole_and_after_opening_again() {
    for place in places() {
        let mut store = place.open();
        store
            .commit(&batch(3, 100, &[("b", Some("1")), ("a", Some("")), ("c", Some("3"))]))
            .unwrap();
        let second = batch(4, 100, &[("b", None), ("c", Some("4")), ("never", None)]);
        store.commit(&second).unwrap();
        let loaded = store.load().unwrap();
        drop(store);
        for contents in [loaded, place.open().load().unwrap()] {
            let Contents { generation, ceiling, clean, .. } = contents;
            assert_eq!((generation, ceiling, clean), (4, 100, false));
            let expected = [("obj/VM a", ""), ("obj/VM c", "4")];
            assert_eq!(rows(&contents), expected.map(|(key, value)| (key.into(), value.into())));
        }
    }
}

#[test]
fn rows_come_in_order_of_tables_and_names() {
    for place in places() {
        let mut store = place.open();
        let keys = ["obj/VM", "obj/V", "obj/VM2", "meta", "obj/é"]
            .into_iter()
            .flat_map(|table| ["b", "a b", "a", "\u{20ac}"].map(|name| Key::new(table, name)));
        let mut batch = Batch::default();
        keys.clone().for_each(|key| batch.put(key, vec![0, 255, 10]));
        store.commit(&batch).unwrap();
        let mut expected: Vec<_> = keys.map(|key| (key, vec![0, 255, 10])).collect();
        expected.sort();
        assert_eq!(store.load().unwrap().rows, expected);
    }
}

#[test]
fn the_last_word_on_a_row_holds() {
    for place in places() {
        let mut store = place.open();
        let mut batch = Batch::default();
        batch.put(key("a"), b"1".to_vec());
        batch.delete(key("a"));
        batch.delete(key("b"));
        batch.put(key("b"), b"2".to_vec());
        store.commit(&batch).unwrap();
        assert_eq!(rows(&store.load().unwrap()), [("obj/VM b".into(), "2".into())]);
    }
}

#[test]
fn clean_is_what_the_last_batch_says() {
    for place in places() {
        let mut store = place.open();
        let end = Batch { clean: true, ..batch(5, 5, &[]) };
        for (batch, clean) in [(&batch(5, 5, &[]), false), (&end, true), (&batch(5, 9, &[]), false)]
        {
            store.commit(batch).unwrap();
            assert_eq!(store.load().unwrap().clean, clean);
        }
    }
}

#[test]
fn counters_never_go_back() {
    for place in places() {
        let mut store = place.open();
        store.commit(&batch(7, 20, &[("a", Some("kept"))])).unwrap();
        for (generation, ceiling) in [(6, 20), (7, 19), (21, 20), (0, 0)] {
            let refused = store.commit(&batch(generation, ceiling, &[("a", None)]));
            assert!(matches!(refused, Err(StoreError::Backwards { .. })), "{refused:?}");
        }
        store.commit(&batch(7, 20, &[])).unwrap();
        store.commit(&batch(u64::MAX, u64::MAX, &[])).unwrap();
        assert_eq!(rows(&store.load().unwrap()), [("obj/VM a".into(), "kept".into())]);
    }
}

#[test]
fn what_is_out_of_bounds_is_refused_and_the_rest_of_its_batch_too() {
    let long = |bytes| "x".repeat(bytes);
    let bad = [
        (Key::new("", "a"), 0),
        (Key::new(long(TABLE_BYTES_MAX + 1), "a"), 0),
        (Key::new("a\0b", "a"), 0),
        (Key::new("t", ""), 0),
        (Key::new("t", long(NAME_BYTES_MAX + 1)), 0),
        (Key::new("t", "a\nb"), 0),
        (Key::new("t", "a"), VALUE_BYTES_MAX + 1),
    ];
    for place in places() {
        let mut store = place.open();
        for (key, bytes) in &bad {
            let mut batch = batch(1, 1, &[("a", Some("1"))]);
            batch.put(key.clone(), vec![0; *bytes]);
            let refused = store.commit(&batch).unwrap_err();
            assert!(matches!(refused, StoreError::Row { .. }), "{refused}");
            assert!(refused.to_string().len() < 300, "{refused}");
        }
        assert_eq!(store.load().unwrap(), Contents::default());
        let widest = Key::new(long(TABLE_BYTES_MAX), long(NAME_BYTES_MAX));
        let mut batch = Batch::default();
        batch.put(widest.clone(), vec![7; 1 << 20]);
        store.commit(&batch).unwrap();
        assert_eq!(store.load().unwrap().rows, [(widest, vec![7; 1 << 20])]);
    }
}

#[test]
fn a_batch_is_bounded_as_a_whole() {
    let mut large = Batch::default();
    // Zeroed pages that no code reads use no memory.
    for number in 0..=BATCH_BYTES_MAX / VALUE_BYTES_MAX {
        large.put(key(&number.to_string()), vec![0; VALUE_BYTES_MAX]);
    }
    for place in places() {
        let mut store = place.open();
        let refused = store.commit(&large).unwrap_err();
        assert!(matches!(refused, StoreError::Batch { .. }), "{refused}");
        assert_eq!(store.load().unwrap(), Contents::default());
    }
}

#[test]
fn memory_without_room_refuses_a_batch_whole_and_takes_the_next() {
    let memory = MemoryStore::default();
    let mut store = memory.open();
    store.commit(&batch(1, 1, &[("a", Some("12345"))])).unwrap();
    // 7 bytes of key and 5 of value.
    memory.set_room(Some(2 * 12));
    let large = batch(2, 2, &[("a", None), ("b", Some("1")), ("c", Some("1234567890"))]);
    assert!(matches!(store.commit(&large), Err(StoreError::Full { .. })));
    assert_eq!(rows(&store.load().unwrap()), [("obj/VM a".into(), "12345".into())]);
    assert_eq!(store.load().unwrap().generation, 1);
    store.commit(&batch(2, 2, &[("b", Some("12345"))])).unwrap();
    assert!(matches!(store.commit(&batch(3, 3, &[("d", Some(""))])), Err(StoreError::Full { .. })));
    memory.set_room(None);
    store.commit(&large).unwrap();
}
