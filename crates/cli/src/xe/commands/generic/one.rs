//! The `-param-` commands, on one record.

use xenapi::Value;
use xenapi::client::Record;
use xenapi::table::Type;

use crate::columns::Column;
use crate::error::XeError;
use crate::filter;
use crate::params::Params;
use crate::printer::{Line, Printed};
use crate::values;
use crate::xe::XeSession;

/// Code for a call that the server does not have.
const METHOD_UNKNOWN: &str = "MESSAGE_METHOD_UNKNOWN";

/// A record, with operations on its fields.
pub(super) struct ParamTarget<'x> {
    pub(super) xe: &'x mut XeSession,
    pub(super) reference: String,
    pub(super) record: Record,
    pub(super) columns: Vec<Column>,
}

impl ParamTarget<'_> {
    pub(super) fn all(&mut self) -> Result<Vec<Line>, XeError> {
        let columns = self.columns.clone();
        let lines = columns.iter().map(|column| Ok((column.heading(), self.text(column)?)));
        lines.collect()
    }

    fn text(&mut self, column: &Column) -> Result<String, XeError> {
        self.xe.read(&column.needs())?;
        let Some(method) = column.asked() else {
            return Ok(column.text(&self.record, self.xe.tables()));
        };
        match self.xe.client().call(method, &[Value::text(&self.reference)]) {
            Ok(value) => Ok(values::text(Some(&value), column.ty(), self.xe.tables())),
            // A template, for example, has no value. That must not make a list fail.
            Err(xenapi::client::ClientError::Api(_)) => Ok(values::NOTHING.to_owned()),
            Err(error) => Err(error.into()),
        }
    }

    fn column(&self, params: &Params) -> Result<Column, XeError> {
        let name = params.required("param-name")?;
        let found = self.columns.iter().find(|column| column.is(name)).cloned();
        found.ok_or_else(|| XeError::error(format!("Unknown field '{name}'")))
    }

    pub(super) fn get(&mut self, params: &Params) -> Result<String, XeError> {
        let column = self.column(params)?;
        let Some(key) = params.get("param-key").filter(|_| matches!(column.ty(), Type::Map(..)))
        else {
            return self.text(&column);
        };
        self.xe.read(&column.needs())?;
        let members = column.members(&self.record, self.xe.tables());
        let member = members.into_iter().find(|(name, _)| name == key);
        let value = member.map(|(_, value)| value);
        value.ok_or_else(|| XeError::error(format!("Key {key} not found in map")))
    }

    pub(super) fn set(&mut self, params: &Params) -> Result<Printed, XeError> {
        for (name, typed) in params.others(&["uuid"]) {
            if let Some(column) = self.columns.iter().find(|column| column.is(name)).cloned() {
                self.set_field(&column, typed)?;
                continue;
            }
            let (column, key) = filter::member(name, &self.columns)?;
            let (column, key) = (column.clone(), key.to_owned());
            if !matches!(column.ty(), Type::Map(..)) {
                let name = &column.name;
                return Err(XeError::error(format!("'{name}' is a set: use param-add")));
            }
            self.set_member(&column, &key, typed)?;
        }
        Ok(Printed::nothing())
    }

    fn set_field(&mut self, column: &Column, typed: &str) -> Result<(), XeError> {
        let Some(method) = column.method("set_") else { return Err(read_only(column)) };
        let value = values::parse(self.xe, &column.name, typed, column.ty())?;
        self.call(&method, vec![value])
    }

    /// Sets a member of a map in one call, so that a refused value leaves the former one.
    fn set_member(&mut self, column: &Column, key: &str, typed: &str) -> Result<(), XeError> {
        let Some(set) = column.method("set_in_") else { return Err(read_only(column)) };
        let value = match column.ty() {
            Type::Map(_, of) => values::parse(self.xe, &column.name, typed, of)?,
            _ => Value::text(typed),
        };
        match self.call(&set, vec![Value::text(key), value.clone()]) {
            Err(error) if error.api_code() == Some(METHOD_UNKNOWN) => {
                self.replace_member(column, key, value)
            }
            other => other,
        }
    }

    /// Sets a member of a map at a XenServer, which has no single call for that: removes an existing
    /// key, because adding it again fails. If the server refuses the value, adds the former one.
    fn replace_member(&mut self, column: &Column, key: &str, value: Value) -> Result<(), XeError> {
        let methods = (column.method("remove_from_"), column.method("add_to_"));
        let (Some(remove), Some(add)) = methods else { return Err(read_only(column)) };
        let former = match self.record.get(column.field).map(Value::plain) {
            Some(Value::Map(members)) => members.get(key).cloned(),
            _ => None,
        };
        if former.is_some() {
            self.call(&remove, vec![Value::text(key)])?;
        }
        let added = self.call(&add, vec![Value::text(key), value]);
        match (added, former) {
            (Err(error), Some(former)) => {
                self.call(&add, vec![Value::text(key), former])?;
                Err(error)
            }
            (added, _) => added,
        }
    }

    pub(super) fn add(&mut self, params: &Params) -> Result<Printed, XeError> {
        let column = self.column(params)?;
        match (column.method("add_to_"), column.method("add_"), column.ty()) {
            (Some(add), _, Type::Map(_, of)) => {
                for (key, typed) in params.others(&["uuid", "param-name", "param-key"]) {
                    let value = values::parse(self.xe, &column.name, typed, of)?;
                    self.call(&add, vec![Value::text(key), value])?;
                }
            }
            (_, Some(add), Type::Set(of)) => {
                let typed = params.required("param-key")?;
                let value = values::parse(self.xe, &column.name, typed, of)?;
                self.call(&add, vec![value])?;
            }
            (_, _, Type::Map(..) | Type::Set(_)) => return Err(read_only(&column)),
            _ => return Err(XeError::error("Can only add to parameters of type Set or Map")),
        }
        Ok(Printed::nothing())
    }

    pub(super) fn remove(&mut self, params: &Params) -> Result<Printed, XeError> {
        let (column, key) = (self.column(params)?, params.required("param-key")?);
        let (verb, what) = match column.ty() {
            Type::Map(..) => ("remove_from_", "map"),
            Type::Set(_) => ("remove_", "the set"),
            _ => return Err(XeError::error("Can only remove from parameters of type Set or Map")),
        };
        let method = column.method(verb).ok_or_else(|| read_only(&column))?;
        let members = column.members(&self.record, self.xe.tables());
        if !members.iter().any(|(name, _)| name == key) {
            return Err(XeError::error(format!("Key {key} is not in {what}")));
        }
        self.call(&method, vec![Value::text(key)])?;
        Ok(Printed::nothing())
    }

    pub(super) fn clear(&mut self, params: &Params) -> Result<Printed, XeError> {
        let column = self.column(params)?;
        let method = column.method("set_").ok_or_else(|| read_only(&column))?;
        if matches!(column.ty(), Type::Enum(_) | Type::Bool | Type::Int | Type::Float) {
            return Err(XeError::error(format!("'{}' cannot be empty", column.name)));
        }
        self.call(&method, vec![column.ty().zero()])?;
        Ok(Printed::nothing())
    }

    /// Calls a method on this record.
    fn call(&mut self, method: &str, mut values: Vec<Value>) -> Result<(), XeError> {
        values.insert(0, Value::text(&self.reference));
        self.xe.run(method, &values).map(|_| ())
    }
}

fn read_only(column: &Column) -> XeError {
    XeError::error(format!("Field '{}' is read-only", column.name))
}
