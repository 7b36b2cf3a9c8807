//! What every kind has: `-list` and the `-param-` commands.

use xenapi::Value;
use xenapi::client::Record;
use xenapi::table::{Class, Type, class};

use crate::columns::{self, Column};
use crate::failure::Failure;
use crate::filter::{self, Filter};
use crate::kinds::Kind;
use crate::params::Params;
use crate::printer::{Line, Printed};
use crate::texts;
use crate::xe::Xe;

/// What is done with a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    ParamList,
    ParamGet,
    ParamSet,
    ParamAdd,
    ParamRemove,
    ParamClear,
    List,
}

impl Verb {
    /// All of them; those whose suffix ends like another's come first.
    pub(crate) const ALL: [Self; 7] = [
        Self::ParamList,
        Self::ParamGet,
        Self::ParamSet,
        Self::ParamAdd,
        Self::ParamRemove,
        Self::ParamClear,
        Self::List,
    ];

    /// What follows the kind in the name of a command.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::ParamList => "-param-list",
            Self::ParamGet => "-param-get",
            Self::ParamSet => "-param-set",
            Self::ParamAdd => "-param-add",
            Self::ParamRemove => "-param-remove",
            Self::ParamClear => "-param-clear",
            Self::List => "-list",
        }
    }

    /// The kind has something with which it can be done.
    pub(crate) fn suits(self, kind: &Kind) -> bool {
        let any = |fits: fn(&Column) -> bool| columns_of(kind).iter().any(fits);
        match self {
            Self::List | Self::ParamList | Self::ParamGet => true,
            Self::ParamSet | Self::ParamClear => any(is_settable),
            Self::ParamAdd | Self::ParamRemove => any(has_addable),
        }
    }

    pub(crate) fn required(self) -> &'static [&'static str] {
        match self {
            Self::List => &[],
            Self::ParamList | Self::ParamSet => &["uuid"],
            Self::ParamGet | Self::ParamAdd | Self::ParamClear => &["uuid", "param-name"],
            Self::ParamRemove => &["uuid", "param-name", "param-key"],
        }
    }

    pub(crate) fn optional(self, kind: &Kind) -> Vec<String> {
        let columns = columns_of(kind);
        let name = |column: &Column| match column.ty() {
            Type::Map(..) => format!("{}:", column.name),
            _ => column.name.to_string(),
        };
        match self {
            Self::List => {
                let sets = columns.iter().filter(|column| matches!(column.ty(), Type::Set(_)));
                let contains = sets.map(|column| format!("{}:contains", column.name));
                let own = ["params", "--all"].map(str::to_owned).into_iter();
                own.chain(columns.iter().map(name)).chain(contains).collect()
            }
            Self::ParamSet => columns.iter().filter(|one| is_settable(one)).map(name).collect(),
            Self::ParamGet | Self::ParamAdd => vec!["param-key".to_owned()],
            Self::ParamList | Self::ParamRemove | Self::ParamClear => Vec::new(),
        }
    }

    pub(crate) fn help(self, kind: &Kind) -> String {
        let many = kind.many;
        match self {
            Self::List => format!(
                "Lists {many}: all, or those that have these values. The value of a key of a map \
                 is <map>:<key>=<value>, a member of a set is <set>:contains=<value>."
            ),
            Self::ParamList => format!("Lists all fields of one of the {many}."),
            Self::ParamGet => format!(
                "Prints one field of one of the {many}, or what a map has under `param-key`."
            ),
            Self::ParamSet => format!(
                "Sets fields of one of the {many}: <field>=<value>, or <map>:<key>=<value>."
            ),
            Self::ParamAdd => format!(
                "Adds to a field of one of the {many}: to a set `param-key`, to a map \
                 <key>=<value>."
            ),
            Self::ParamRemove => {
                format!("Removes a member of a set, or a key of a map, of one of the {many}.")
            }
            Self::ParamClear => format!("Empties a field of one of the {many}."),
        }
    }

    /// Does it.
    pub(crate) fn run(
        self,
        xe: &mut Xe,
        kind: &'static Kind,
        params: &Params,
    ) -> Result<Printed, Failure> {
        let columns = columns_of(kind);
        if self == Self::List {
            return list(xe, kind, &columns, params);
        }
        let (reference, record) = xe.find(kind.class, params.required("uuid")?)?;
        let mut one = One { xe, reference, record, columns };
        match self {
            Self::ParamList => one.all().map(|lines| Printed::Records(vec![lines])),
            Self::ParamGet => one.get(params).map(Printed::value),
            Self::ParamSet => one.set(params),
            Self::ParamAdd => one.add(params),
            Self::ParamRemove => one.remove(params),
            Self::ParamClear => one.clear(params),
            Self::List => Ok(Printed::nothing()),
        }
    }
}

fn columns_of(kind: &Kind) -> Vec<Column> {
    class_of(kind).map(columns::of).unwrap_or_default()
}

fn class_of(kind: &Kind) -> Option<&'static Class> {
    class(kind.class)
}

fn is_settable(column: &Column) -> bool {
    column.method("set_").is_some() || column.method("add_to_").is_some()
}

fn has_addable(column: &Column) -> bool {
    column.method("add_").is_some() || column.method("add_to_").is_some()
}

fn list(
    xe: &mut Xe,
    kind: &'static Kind,
    columns: &[Column],
    params: &Params,
) -> Result<Printed, Failure> {
    let mut wanted: Vec<_> = kind.only.to_vec();
    if !params.flag("all")? {
        wanted.extend(params.others(&["params"]));
    }
    let filter = Filter::read(&wanted, columns)?;
    let shown = shown(kind, columns, params.get("params"));
    xe.read(&filter.needs())?;
    let needs: Vec<_> = shown.iter().flat_map(|column| column.needs()).collect();
    xe.read(&needs)?;
    let records = match filter.expression() {
        Some(expression) => xe.client().records_where(kind.class, &expression)?,
        None => xe.client().records(kind.class)?,
    };
    let records = records.iter().map(|(_, record)| record);
    let admitted = records.filter(|record| filter.admits(record, xe.tables()));
    let lines = |record: &Record| shown.iter().map(|one| line(one, record, xe)).collect();
    Ok(Printed::Records(admitted.map(lines).collect()))
}

/// The columns that are asked for, in their own order.
fn shown<'a>(kind: &Kind, columns: &'a [Column], asked: Option<&str>) -> Vec<&'a Column> {
    let names: Vec<&str> = match asked {
        None => kind.shown.to_vec(),
        Some("all") => Vec::new(),
        Some(names) => names.split(',').map(str::trim).collect(),
    };
    let wanted = |column: &&Column| names.is_empty() || names.iter().any(|name| column.is(name));
    columns.iter().filter(wanted).collect()
}

fn line(column: &Column, record: &Record, xe: &Xe) -> Line {
    (column.heading(), column.text(record, xe.tables()))
}

/// One record, and what is done with its fields.
struct One<'x> {
    xe: &'x mut Xe,
    reference: String,
    record: Record,
    columns: Vec<Column>,
}

impl One<'_> {
    fn all(&mut self) -> Result<Vec<Line>, Failure> {
        let columns = self.columns.clone();
        let lines = columns.iter().map(|column| Ok((column.heading(), self.text(column)?)));
        lines.collect()
    }

    fn text(&mut self, column: &Column) -> Result<String, Failure> {
        self.xe.read(&column.needs())?;
        let Some(method) = column.asked() else {
            return Ok(column.text(&self.record, self.xe.tables()));
        };
        match self.xe.client().call(method, &[Value::text(&self.reference)]) {
            Ok(value) => Ok(texts::text(Some(&value), column.ty(), self.xe.tables())),
            // Of a template, for example, there is no answer, and that is no failure of a list.
            Err(xenapi::client::ClientError::Api(_)) => Ok(texts::NOTHING.to_owned()),
            Err(error) => Err(error.into()),
        }
    }

    fn column(&self, params: &Params) -> Result<Column, Failure> {
        let name = params.required("param-name")?;
        let found = self.columns.iter().find(|column| column.is(name)).cloned();
        found.ok_or_else(|| Failure::error(format!("Unknown field '{name}'")))
    }

    fn get(&mut self, params: &Params) -> Result<String, Failure> {
        let column = self.column(params)?;
        let Some(key) = params.get("param-key").filter(|_| matches!(column.ty(), Type::Map(..)))
        else {
            return self.text(&column);
        };
        self.xe.read(&column.needs())?;
        let members = column.members(&self.record, self.xe.tables());
        let member = members.into_iter().find(|(name, _)| name == key);
        let value = member.map(|(_, value)| value);
        value.ok_or_else(|| Failure::error(format!("Key {key} not found in map")))
    }

    fn set(&mut self, params: &Params) -> Result<Printed, Failure> {
        for (name, typed) in params.others(&["uuid"]) {
            if let Some(column) = self.columns.iter().find(|column| column.is(name)).cloned() {
                self.set_field(&column, typed)?;
                continue;
            }
            let (column, key) = filter::member(name, &self.columns)?;
            let (column, key) = (column.clone(), key.to_owned());
            if !matches!(column.ty(), Type::Map(..)) {
                let name = &column.name;
                return Err(Failure::error(format!("'{name}' is a set: use param-add")));
            }
            self.set_member(&column, &key, typed)?;
        }
        Ok(Printed::nothing())
    }

    fn set_field(&mut self, column: &Column, typed: &str) -> Result<(), Failure> {
        let Some(method) = column.method("set_") else { return Err(read_only(column)) };
        let value = texts::parse(self.xe, &column.name, typed, column.ty())?;
        self.call(&method, vec![value])
    }

    /// A key that is there has to go before it comes again.
    fn set_member(&mut self, column: &Column, key: &str, typed: &str) -> Result<(), Failure> {
        let methods = (column.method("remove_from_"), column.method("add_to_"));
        let (Some(remove), Some(add)) = methods else { return Err(read_only(column)) };
        let members = column.members(&self.record, self.xe.tables());
        if members.iter().any(|(name, _)| name == key) {
            self.call(&remove, vec![Value::text(key)])?;
        }
        let value = match column.ty() {
            Type::Map(_, of) => texts::parse(self.xe, &column.name, typed, of)?,
            _ => Value::text(typed),
        };
        self.call(&add, vec![Value::text(key), value])
    }

    fn add(&mut self, params: &Params) -> Result<Printed, Failure> {
        let column = self.column(params)?;
        match (column.method("add_to_"), column.method("add_"), column.ty()) {
            (Some(add), _, Type::Map(_, of)) => {
                for (key, typed) in params.others(&["uuid", "param-name", "param-key"]) {
                    let value = texts::parse(self.xe, &column.name, typed, of)?;
                    self.call(&add, vec![Value::text(key), value])?;
                }
            }
            (_, Some(add), Type::Set(of)) => {
                let typed = params.required("param-key")?;
                let value = texts::parse(self.xe, &column.name, typed, of)?;
                self.call(&add, vec![value])?;
            }
            (_, _, Type::Map(..) | Type::Set(_)) => return Err(read_only(&column)),
            _ => return Err(Failure::error("Can only add to parameters of type Set or Map")),
        }
        Ok(Printed::nothing())
    }

    fn remove(&mut self, params: &Params) -> Result<Printed, Failure> {
        let (column, key) = (self.column(params)?, params.required("param-key")?);
        let (verb, what) = match column.ty() {
            Type::Map(..) => ("remove_from_", "map"),
            Type::Set(_) => ("remove_", "the set"),
            _ => return Err(Failure::error("Can only remove from parameters of type Set or Map")),
        };
        let method = column.method(verb).ok_or_else(|| read_only(&column))?;
        let members = column.members(&self.record, self.xe.tables());
        if !members.iter().any(|(name, _)| name == key) {
            return Err(Failure::error(format!("Key {key} is not in {what}")));
        }
        self.call(&method, vec![Value::text(key)])?;
        Ok(Printed::nothing())
    }

    fn clear(&mut self, params: &Params) -> Result<Printed, Failure> {
        let column = self.column(params)?;
        let method = column.method("set_").ok_or_else(|| read_only(&column))?;
        if matches!(column.ty(), Type::Enum(_) | Type::Bool | Type::Int | Type::Float) {
            return Err(Failure::error(format!("'{}' cannot be empty", column.name)));
        }
        self.call(&method, vec![column.ty().zero()])?;
        Ok(Printed::nothing())
    }

    /// Calls about this record.
    fn call(&mut self, method: &str, mut values: Vec<Value>) -> Result<(), Failure> {
        values.insert(0, Value::text(&self.reference));
        self.xe.run(method, &values).map(|_| ())
    }
}

fn read_only(column: &Column) -> Failure {
    Failure::error(format!("Field '{}' is read-only", column.name))
}
