//! Exports, byte by byte, and imports of invalid text.

use proptest::prelude::*;

use super::super::{Batch, Key, MemoryStore, RedbStore, SCHEMA, Store, StoreError, export, import};

const TEXT: &str = r#"{"schema":1,"generation":7,"ceiling":65536,"rows":3}
{"table":"meta","name":"domid","text":"3"}
{"table":"obj/VM","name":"a","text":"{\"name_label\":\"é\\n\"}"}
{"table":"obj/VM","name":"b","hex":"00ff7f"}
"#;

fn filled() -> MemoryStore {
    let mut memory = MemoryStore::default();
    let mut batch = Batch { generation: 7, ceiling: 65536, clean: true, ..Batch::default() };
    batch.put(Key::new("obj/VM", "b"), vec![0, 255, 127]);
    batch.put(Key::new("obj/VM", "a"), "{\"name_label\":\"é\\n\"}".into());
    batch.put(Key::new("meta", "domid"), b"3".to_vec());
    memory.commit(&batch).unwrap();
    memory
}

fn exported(store: &mut dyn Store) -> Vec<u8> {
    let mut text = Vec::new();
    export(store, &mut text).unwrap();
    text
}

/// Returns the error of a refused import.
fn refused(text: &[u8]) -> StoreError {
    let mut memory = MemoryStore::default();
    let error = import(&mut &*text, &mut memory).unwrap_err();
    assert!(memory.load().unwrap().rows.is_empty(), "{error}");
    error
}

#[test]
fn an_export_is_one_object_a_line() {
    assert_eq!(SCHEMA, 1, "a new schema needs an import of the one before it");
    let mut memory = filled();
    assert_eq!(String::from_utf8(exported(&mut memory)).unwrap(), TEXT);
}

#[test]
fn an_import_gives_back_what_was_exported() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = RedbStore::open(&dir.path().join("state.redb")).unwrap();
    assert_eq!(import(&mut TEXT.as_bytes(), &mut store).unwrap(), 3);
    let mut contents = store.load().unwrap();
    // Clients may have seen higher numbers.
    assert!(!contents.clean);
    contents.clean = true;
    assert_eq!(contents, filled().load().unwrap());
    assert_eq!(exported(&mut store), TEXT.as_bytes());
    let error = import(&mut TEXT.as_bytes(), &mut store).unwrap_err();
    assert!(matches!(error, StoreError::NotEmpty { rows: 3 }), "{error}");
}

#[test]
fn what_is_no_whole_export_is_refused_whole() {
    let lines: Vec<_> = TEXT.lines().collect();
    let number = |text: &str| match refused(text.as_bytes()) {
        StoreError::Line { line, .. } => line,
        other => panic!("{other:?} for {text}"),
    };
    let with = |at: usize, line: &str| {
        let mut lines = lines.clone();
        lines[at] = line;
        number(&format!("{}\n", lines.join("\n")))
    };
    assert_eq!(number(""), 1);
    assert_eq!(number("\n"), 1);
    assert_eq!(number(lines[1]), 1);
    assert_eq!(number(&lines[..3].join("\n")), 3, "cut off within a line");
    assert_eq!(number(&format!("{}\n", lines[..3].join("\n"))), 3, "cut off between lines");
    assert_eq!(number(&format!("{TEXT}{}\n", r#"{"table":"t","name":"n","text":""}"#)), 5);
    assert_eq!(with(0, r#"{"schema":2,"generation":7,"ceiling":65536,"rows":3}"#), 1);
    assert_eq!(with(0, r#"{"schema":-1,"generation":7,"ceiling":65536,"rows":3}"#), 1);
    assert_eq!(with(2, lines[1]), 3, "twice the same row");
    for odd in [
        "",
        "[]",
        r#"{"table":"t","name":"n"}"#,
        r#"{"table":"t","name":"n","hex":"0"}"#,
        r#"{"table":"t","name":"n","hex":"é0"}"#,
        r#"{"table":"t","name":"n","hex":"+1"}"#,
        r#"{"table":"","name":"n","text":""}"#,
        r#"{"table":"t","name":"a\u0000b","text":""}"#,
        r#"{"table":"t","name":"n","text":"","hex":""}"#,
        r#"{"table":"t","name":"n","text":"","more":1}"#,
        "{\"table\":\"t\",\"name\":\"n\",\"text\":\"\u{1}\"}",
    ] {
        assert_eq!(with(3, odd), 4, "{odd}");
    }
    let mut odd = TEXT.as_bytes().to_vec();
    odd[60] = 0xff;
    assert!(matches!(refused(&odd), StoreError::Line { line: 2, .. }));
}

#[test]
fn counters_that_contradict_each_other_are_refused() {
    let error = refused(b"{\"schema\":1,\"generation\":8,\"ceiling\":7,\"rows\":0}\n");
    assert!(matches!(error, StoreError::Backwards { .. }), "{error}");
}

proptest! {
    #[test]
    fn any_rows_come_back(rows in prop::collection::btree_map(
        ("[a-z/é ]{1,8}", "[^\\p{Cc}]{1,12}"), prop::collection::vec(any::<u8>(), 0..40), 0..20,
    )) {
        let mut memory = MemoryStore::default();
        let mut batch = Batch::default();
        for ((table, name), value) in rows {
            batch.put(Key::new(table, name), value);
        }
        memory.commit(&batch).unwrap();
        let text = exported(&mut memory);
        let mut back = MemoryStore::default();
        import(&mut &*text, &mut back).unwrap();
        prop_assert_eq!(back.load().unwrap().rows, memory.load().unwrap().rows);
    }

    #[test]
    fn any_text_is_answered(text in prop::collection::vec(any::<u8>(), 0..200)) {
        refused(&text);
    }
}
