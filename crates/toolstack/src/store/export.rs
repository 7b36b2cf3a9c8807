//! Store as text: one JSON object a line, the schema first.
//!
//! ```text
//! {"schema":1,"generation":7,"ceiling":65536,"rows":2}
//! {"table":"meta","name":"domid","text":"3"}
//! {"table":"obj/VM","name":"…","hex":"00ff"}
//! ```
//! A value is `text` if it is UTF-8, else `hex`. The first line contains the number of rows, so
//! that an incomplete export is detected.

use std::io::{BufRead, Read as _, Write};

use serde::{Deserialize, Serialize};

use super::{Batch, Contents, Key, SCHEMA, Store, StoreError, VALUE_BYTES_MAX, check};

/// Longest line in bytes: a value in which each byte takes a six-byte escape, and the rest of the
/// line.
const LINE_BYTES_MAX: usize = 6 * VALUE_BYTES_MAX + (64 << 10);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    schema: u32,
    generation: u64,
    ceiling: u64,
    rows: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    table: String,
    name: String,
    #[serde(flatten)]
    value: Value,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Value {
    Text(String),
    Hex(String),
}

/// Writes the content of a store. Returns the number of rows.
///
/// # Errors
/// The store cannot be read, or the text cannot be written.
pub fn export(store: &mut dyn Store, to: &mut dyn Write) -> Result<usize, StoreError> {
    let Contents { schema, generation, ceiling, rows, .. } = store.load()?;
    let many = rows.len();
    line(to, &First { schema, generation, ceiling, rows: many })?;
    for (Key { table, name }, value) in rows {
        let value = String::from_utf8(value).map_or_else(|odd| hex(odd.as_bytes()), Value::Text);
        line(to, &Row { table: table.into_owned(), name, value })?;
    }
    to.flush().map_err(StoreError::Export)?;
    Ok(many)
}

fn line(to: &mut dyn Write, what: &impl Serialize) -> Result<(), StoreError> {
    let text = serde_json::to_string(what).map_err(std::io::Error::from);
    text.and_then(|text| writeln!(to, "{text}")).map_err(StoreError::Export)
}

/// Fills an empty store with an export, atomically. Returns the number of rows. Clients may know
/// newer state than the export, so the import counts as an unclean end.
///
/// # Errors
/// The store is not empty or cannot be written, or the text is not a complete export that this
/// version supports.
pub fn import(from: &mut dyn BufRead, store: &mut dyn Store) -> Result<usize, StoreError> {
    let there = store.load()?.rows.len();
    if there > 0 {
        return Err(StoreError::NotEmpty { rows: there });
    }
    let batch = read(from)?;
    store.commit(&batch)?;
    Ok(batch.changes.len())
}

/// Replaces the content of a store by an export, atomically. Returns the number of rows. Counting of
/// changes continues above what clients may have seen, so this counts as an unclean end.
///
/// # Errors
/// The store cannot be read or written, or the text is not a complete export that this version
/// supports.
pub fn replace(from: &mut dyn BufRead, store: &mut dyn Store) -> Result<usize, StoreError> {
    let Contents { generation, ceiling, rows, .. } = store.load()?;
    let mut batch = read(from)?;
    let many = batch.changes.len();
    for (key, _) in rows {
        batch.changes.entry(key).or_insert(None);
    }
    batch.generation = batch.generation.max(generation);
    batch.ceiling = batch.ceiling.max(ceiling);
    store.commit(&batch)?;
    Ok(many)
}

/// Reads an export as a batch that stores its rows.
fn read(from: &mut dyn BufRead) -> Result<Batch, StoreError> {
    let mut lines = Lines { from, number: 0 };
    let first: First = lines.next()?.ok_or_else(|| lines.bad("the export is empty"))?;
    if first.schema > SCHEMA {
        let newer = format!("its schema is {}, and this version knows {SCHEMA}", first.schema);
        return Err(lines.bad(newer));
    }
    let (generation, ceiling) = (first.generation, first.ceiling);
    let mut batch = Batch { generation, ceiling, ..Batch::default() };
    while let Some(Row { table, name, value }) = lines.next()? {
        let bytes = match value {
            Value::Text(text) => text.into_bytes(),
            Value::Hex(digits) => {
                unhex(&digits).ok_or_else(|| lines.bad("`hex` is no even number of hex digits"))?
            }
        };
        let key = Key::new(table, name);
        check::row(&key, &bytes).map_err(|error| lines.bad(error.to_string()))?;
        if batch.changes.insert(key, Some(bytes)).is_some() {
            return Err(lines.bad("this row occurs twice"));
        }
        if batch.changes.len() > first.rows {
            return Err(lines.bad(format!("only {} rows were announced", first.rows)));
        }
    }
    let many = batch.changes.len();
    if many < first.rows {
        return Err(lines.bad(format!("{} rows were announced; only {many} follow", first.rows)));
    }
    Ok(batch)
}

/// Lines of an import.
struct Lines<'a> {
    from: &'a mut dyn BufRead,
    number: usize,
}

impl Lines<'_> {
    fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>, StoreError> {
        let mut line = Vec::new();
        let read = (&mut *self.from).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
        read.map_err(|source| StoreError::Import { line: self.number, source })?;
        if line.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        if line.pop_if(|last| *last == b'\n').is_none() {
            return Err(self.bad("it is cut off, or too long"));
        }
        serde_json::from_slice(&line).map(Some).map_err(|error| self.bad(error.to_string()))
    }

    fn bad(&self, why: impl Into<String>) -> StoreError {
        StoreError::Line { line: self.number.max(1), why: why.into() }
    }
}

fn hex(bytes: &[u8]) -> Value {
    Value::Hex(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digit = |one: &u8| char::from(*one).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(high)? << 4 | digit(low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}
