//! The session of a command, and the records that it has read.

use std::collections::BTreeMap;
use std::time::Duration;

use xenapi::client::{Client, ClientError, PendingCall, Record};
use xenapi::table::{Class, class, classes};
use xenapi::{NULL_REF, Value};

use crate::error::XeError;

/// Longest wait for an operation: longer than the server's own limits.
const OPERATION_DEADLINE: Duration = Duration::from_secs(24 * 60 * 60);

/// Records of a class by reference.
pub(crate) type Table = BTreeMap<String, Record>;

/// Records by class.
#[derive(Debug, Default)]
pub(crate) struct Tables(BTreeMap<&'static str, Table>);

impl Tables {
    /// Returns the record, if its class was read and it exists.
    pub(crate) fn record(&self, class: &str, reference: &str) -> Option<&Record> {
        self.0.get(class)?.get(reference)
    }

    /// Adds a table, for tests.
    #[cfg(test)]
    pub(crate) fn with(mut self, class: &'static str, table: Table) -> Self {
        self.0.insert(class, table);
        self
    }
}

/// A session with a cache of records.
#[derive(Debug)]
pub(crate) struct XeSession {
    client: Client,
    tables: Tables,
}

impl XeSession {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, tables: Tables::default() }
    }

    /// Ends the session. Ignores errors, because the command is already done.
    pub(crate) fn leave(&mut self) {
        let _gone = self.client.logout();
    }

    /// Returns the API client.
    pub(crate) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Calls a method and waits for its result.
    pub(crate) fn run(&mut self, method: &str, params: &[Value]) -> Result<Value, XeError> {
        self.forget();
        Ok(self.client.run(method, params, OPERATION_DEADLINE)?)
    }

    /// Starts a call. A long operation continues as a task.
    pub(crate) fn begin(&mut self, method: &str, params: &[Value]) -> Result<PendingCall, XeError> {
        self.forget();
        Ok(self.client.begin(method, params)?)
    }

    /// Waits for the result of a started call.
    pub(crate) fn end(&mut self, pending_call: PendingCall) -> Result<Value, XeError> {
        Ok(self.client.end(pending_call, OPERATION_DEADLINE)?)
    }

    /// Calls a method that returns a reference, and returns the UUID of the new record.
    pub(crate) fn make(&mut self, method: &str, params: &[Value]) -> Result<String, XeError> {
        let made = self.run(method, params)?;
        let class = method.split('.').next().unwrap_or_default();
        self.uuid_of(class, &text_of(&made))
    }

    /// Returns the UUID of a record.
    pub(crate) fn uuid_of(&mut self, class: &str, reference: &str) -> Result<String, XeError> {
        let uuid = self.client.call(&format!("{class}.get_uuid"), &[Value::text(reference)])?;
        Ok(text_of(&uuid))
    }

    /// Returns the reference of the record with this UUID.
    pub(crate) fn by_uuid(&mut self, class: &str, uuid: &str) -> Result<Value, XeError> {
        Ok(self.client.call(&format!("{class}.get_by_uuid"), &[Value::text(uuid)])?)
    }

    /// Returns the reference and the record with this UUID.
    pub(crate) fn find(&mut self, class: &str, uuid: &str) -> Result<(String, Record), XeError> {
        let reference = text_of(&self.by_uuid(class, uuid)?);
        let record = self.client.record(class, &reference)?;
        Ok((reference, record))
    }

    /// Returns the references of the records with this name.
    pub(crate) fn by_name(&mut self, class: &str, name: &str) -> Result<Vec<String>, XeError> {
        let method = format!("{class}.get_by_name_label");
        match self.client.call(&method, &[Value::text(name)])? {
            Value::Set(found) => Ok(found.iter().map(text_of).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the only pool.
    pub(crate) fn pool(&mut self) -> Result<(String, Record), XeError> {
        let pool = self.client.records("pool")?.into_iter().next();
        pool.ok_or_else(|| XeError::error("the server has no pool"))
    }

    /// Reads the records of these classes, unless they are cached.
    pub(crate) fn read(&mut self, names: &[&'static str]) -> Result<(), XeError> {
        for name in names {
            let listed = class(name).is_some_and(|class| class.listed);
            if listed && !self.tables.0.contains_key(name) {
                let table = self.client.records(name)?.into_iter().collect();
                self.tables.0.insert(name, table);
            }
        }
        Ok(())
    }

    /// Clears the cache, because records may have changed.
    pub(crate) fn forget(&mut self) {
        self.tables = Tables::default();
    }

    /// Returns the cached records.
    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Returns the text of an error parameter: for a reference, the UUID and the name. Looks for
    /// the reference first in the classes that `likely` names.
    pub(crate) fn shown(&mut self, value: &str, likely: &[&str]) -> String {
        if !value.starts_with("OpaqueRef:") || value == NULL_REF {
            return value.to_owned();
        }
        let is_likely =
            |class: &Class| likely.iter().any(|word| class.name.eq_ignore_ascii_case(word));
        let (first, others): (Vec<&Class>, Vec<&Class>) =
            classes().iter().copied().filter(|class| class.listed).partition(|c| is_likely(c));
        for class in first.into_iter().chain(others) {
            match self.client.record(class.name, value) {
                Ok(record) => return named(&record),
                Err(ClientError::Api(_)) => {}
                // Without a server, only the reference is known.
                Err(_) => break,
            }
        }
        value.to_owned()
    }
}

fn named(record: &Record) -> String {
    match record.text("name_label") {
        "" => record.text("uuid").to_owned(),
        name => format!("{} ({name})", record.text("uuid")),
    }
}

/// Returns the text of a string value.
pub(crate) fn text_of(value: &Value) -> String {
    match value.plain() {
        Value::Str(text) => text.clone(),
        _ => String::new(),
    }
}

/// Returns a map of strings as a parameter.
pub(crate) fn pairs(of: impl IntoIterator<Item = (String, String)>) -> Value {
    Value::Map(of.into_iter().map(|(key, value)| (key, Value::Str(value))).collect())
}

/// Returns a record as a parameter.
pub(crate) fn record<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}
