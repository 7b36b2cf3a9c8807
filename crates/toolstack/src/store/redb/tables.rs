//! Tables of the state file.

use ::redb::{
    Database, Durability, Error as RedbError, ReadableDatabase, ReadableTable, Table,
    TableDefinition, TableError,
};

use super::super::{Batch, Key, SCHEMA, check};

const HEAD: TableDefinition<&str, u64> = TableDefinition::new("head");
const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");

/// Separator of table and name in a stored key. Neither can contain it.
const BETWEEN: char = '\0';

/// Error of the state file.
#[derive(Debug)]
pub(super) enum StateFileError {
    /// Error of `redb`.
    Redb(RedbError),
    /// The content is not what was written. The text is the reason.
    Wrong(String),
}

impl<E: Into<RedbError>> From<E> for StateFileError {
    fn from(error: E) -> Self {
        Self::Redb(error.into())
    }
}

/// Head of the file: schema, counters and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) schema: u32,
    pub(super) generation: u64,
    pub(super) ceiling: u64,
    pub(super) clean: bool,
    /// Number of stored batches. Two states of one file differ in it.
    batches: u64,
    rows: u64,
    /// Sum of the digests of all rows.
    digest: u64,
}

impl Default for Head {
    /// Returns the head of a new file.
    fn default() -> Self {
        let (generation, ceiling, batches, rows, digest) = Default::default();
        Self { schema: SCHEMA, generation, ceiling, clean: true, batches, rows, digest }
    }
}

impl Head {
    fn write(&self, table: &mut Table<'_, &str, u64>) -> Result<(), StateFileError> {
        for (name, number) in [
            ("schema", u64::from(self.schema)),
            ("generation", self.generation),
            ("ceiling", self.ceiling),
            ("clean", u64::from(self.clean)),
            ("batches", self.batches),
            ("rows", self.rows),
            ("digest", self.digest),
        ] {
            table.insert(name, number)?;
        }
        Ok(())
    }

    fn read(table: &impl ReadableTable<&'static str, u64>) -> Result<Self, StateFileError> {
        let number = |name| {
            let found = table.get(name)?.map(|number| number.value());
            found.ok_or_else(|| StateFileError::Wrong(format!("it has no number `{name}`")))
        };
        let schema = number("schema")?;
        let wrong = |_| StateFileError::Wrong(format!("its schema is {schema}"));
        Ok(Self {
            schema: u32::try_from(schema).map_err(wrong)?,
            generation: number("generation")?,
            ceiling: number("ceiling")?,
            clean: number("clean")? != 0,
            batches: number("batches")?,
            rows: number("rows")?,
            digest: number("digest")?,
        })
    }
}

/// Creates both tables in a new file.
pub(super) fn begin(database: &Database) -> Result<(), StateFileError> {
    let transaction = database.begin_write()?;
    Head::default().write(&mut transaction.open_table(HEAD)?)?;
    transaction.open_table(ROWS)?;
    Ok(transaction.commit()?)
}

/// Reads the head.
pub(super) fn head(database: &Database) -> Result<Head, StateFileError> {
    match database.begin_read()?.open_table(HEAD) {
        Err(TableError::TableDoesNotExist(_)) => {
            Err(StateFileError::Wrong("it was not made by this program".to_owned()))
        }
        table => Head::read(&table?),
    }
}

/// Reads all rows, and checks them against the head.
pub(super) fn rows(
    database: &Database,
    head: &Head,
) -> Result<Vec<(Key, Vec<u8>)>, StateFileError> {
    let table = database.begin_read()?.open_table(ROWS)?;
    let (mut rows, mut digest) = (Vec::new(), 0u64);
    for entry in table.iter()? {
        let (key, value) = entry?;
        digest = digest.wrapping_add(check::digest(key.value(), value.value()));
        let value = value.value().to_vec();
        rows.push((parse(key.value())?, value));
    }
    if rows.len() as u64 != head.rows || digest != head.digest {
        return Err(StateFileError::Wrong("its rows do not match count and digest".to_owned()));
    }
    Ok(rows)
}

/// Stores a batch. Returns the resulting head.
pub(super) fn write(
    database: &Database,
    before: &Head,
    batch: &Batch,
) -> Result<Head, StateFileError> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    let mut head = Head {
        generation: batch.generation,
        ceiling: batch.ceiling,
        clean: batch.clean,
        batches: before.batches.wrapping_add(1),
        ..*before
    };
    {
        let mut table = transaction.open_table(ROWS)?;
        for (key, value) in &batch.changes {
            let key = stored(key);
            let former = match value {
                Some(value) => table.insert(key.as_slice(), value.as_slice())?,
                None => table.remove(key.as_slice())?,
            };
            if let Some(former) = former {
                head.rows = head.rows.wrapping_sub(1);
                head.digest = head.digest.wrapping_sub(check::digest(&key, former.value()));
            }
            if let Some(value) = value {
                head.rows = head.rows.wrapping_add(1);
                head.digest = head.digest.wrapping_add(check::digest(&key, value));
            }
        }
        head.write(&mut transaction.open_table(HEAD)?)?;
    }
    transaction.commit()?;
    Ok(head)
}

fn stored(key: &Key) -> Vec<u8> {
    format!("{}{BETWEEN}{}", key.table, key.name).into_bytes()
}

fn parse(stored: &[u8]) -> Result<Key, StateFileError> {
    let text = std::str::from_utf8(stored).ok();
    let parts = text.and_then(|text| text.split_once(BETWEEN));
    let (table, name) =
        parts.ok_or_else(|| StateFileError::Wrong("it has a row without name".into()))?;
    Ok(Key::new(table.to_owned(), name))
}
