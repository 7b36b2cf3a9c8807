//! Resolves the name of a call: explicit messages, and those that follow from a class and its
//! fields.
//!
//! # Model
//! Every class with records has `get_record` and `get_by_uuid`. It has `get_by_name_label` if the
//! records have names. Listed classes have `get_all`, `get_all_records` and
//! `get_all_records_where`. A class whose records clients create has `create` and `destroy`. Every
//! field has `get_`. A field that clients write has `set_`. A map also has `add_to_` and
//! `remove_from_`, and a set has `add_` and `remove_`. An explicit message takes precedence over an
//! implicit one.
//!
//! `set_in_` sets one key of a map, whether the map has it or not. XenServer has no such message:
//! there a client removes the key and adds it again, so a refused value leaves the map without it.

use std::borrow::Cow;

use super::{
    Access, Class, Field, FieldIx, Message, MessageKind, Param, RecordStorage, Role, Type, class,
    classes,
};

/// The only call that belongs to no class and needs no session.
pub const LIST_METHODS: &str = "system.listMethods";
/// Prefix of a call that returns a task.
const ASYNC: &str = "Async.";

/// Meaning of a call.
#[derive(Clone, Copy, Debug)]
pub enum Method {
    /// Returns the names of all calls.
    ListMethods,
    /// Explicit message.
    Explicit(&'static Class, &'static Message),
    /// Returns the references of all records.
    GetAll(&'static Class),
    /// Returns all records by reference.
    GetAllRecords(&'static Class),
    /// Returns the records for which an expression is true.
    GetAllRecordsWhere(&'static Class),
    /// Returns one record.
    GetRecord(&'static Class),
    /// Returns the reference of the record with this UUID.
    GetByUuid(&'static Class),
    /// Returns the references of the records with this name.
    GetByNameLabel(&'static Class),
    /// Creates a record.
    Create(&'static Class),
    /// Destroys a record.
    Destroy(&'static Class),
    /// Returns the value of a field.
    Get(&'static Class, FieldIx),
    /// Sets a field.
    Set(&'static Class, FieldIx),
    /// Adds a key and its value to a map.
    AddTo(&'static Class, FieldIx),
    /// Sets the value of a key of a map.
    SetIn(&'static Class, FieldIx),
    /// Removes a key from a map.
    RemoveFrom(&'static Class, FieldIx),
    /// Adds a value to a set.
    Add(&'static Class, FieldIx),
    /// Removes a value from a set.
    Remove(&'static Class, FieldIx),
}

/// Resolves a name. Returns its method, and whether the call returns a task.
///
/// A name may have `_` for `.` between class and message, as `event_from`: `from` is a keyword of
/// some languages. Returns `None` if there is no such call, or it has no `Async` form.
pub fn resolve(name: &str) -> Option<(Method, bool)> {
    if name == LIST_METHODS {
        return Some((Method::ListMethods, false));
    }
    let (name, asynchronous) = name.strip_prefix(ASYNC).map_or((name, false), |rest| (rest, true));
    let (of, what) = match name.split_once('.') {
        Some((of, what)) => (class(of)?, what),
        None => underscored(name)?,
    };
    let written = of.message(what).map(|message| Method::Explicit(of, message));
    let method = written.or_else(|| of_class(of, what)).or_else(|| of_field(of, what))?;
    (!asynchronous || method.has_async()).then_some((method, asynchronous))
}

/// Splits `VM_start` into class and message. The longest class counts: `VM_metrics_get_all` is of
/// `VM_metrics`.
fn underscored(name: &str) -> Option<(&'static Class, &str)> {
    let split = |of: &&'static Class| Some((*of, name.strip_prefix(of.name)?.strip_prefix('_')?));
    classes().iter().filter_map(split).max_by_key(|(of, _)| of.name.len())
}

fn of_class(of: &'static Class, what: &str) -> Option<Method> {
    let records = of.record_storage != RecordStorage::Nowhere;
    match what {
        "get_record" if records => Some(Method::GetRecord(of)),
        "get_by_uuid" if records => Some(Method::GetByUuid(of)),
        "get_by_name_label" if records && of.field("name_label").is_some() => {
            Some(Method::GetByNameLabel(of))
        }
        "get_all" if of.listed => Some(Method::GetAll(of)),
        "get_all_records" if of.listed => Some(Method::GetAllRecords(of)),
        "get_all_records_where" if of.listed => Some(Method::GetAllRecordsWhere(of)),
        "create" if of.constructor.is_some() => Some(Method::Create(of)),
        "destroy" if of.constructor.is_some() => Some(Method::Destroy(of)),
        _ => None,
    }
}

/// Name prefixes of messages that follow from a field. Where one prefix begins another, the longer
/// one comes first.
const ACCESSORS: [(&str, Accessor); 7] = [
    ("get_", Method::Get),
    ("set_in_", Method::SetIn),
    ("set_", Method::Set),
    ("add_to_", Method::AddTo),
    ("remove_from_", Method::RemoveFrom),
    ("add_", Method::Add),
    ("remove_", Method::Remove),
];

type Accessor = fn(&'static Class, FieldIx) -> Method;

fn of_field(of: &'static Class, what: &str) -> Option<Method> {
    if of.record_storage == RecordStorage::Nowhere {
        return None;
    }
    ACCESSORS.iter().find_map(|(prefix, accessor)| {
        let (ix, field) = of.field(what.strip_prefix(prefix)?)?;
        let method = accessor(of, ix);
        method.suits(field).then_some(method)
    })
}

/// Returns the implicit message with the same name as an explicit one, as `VM.set_order` follows
/// from `VM.order`. For explicit messages that only write that field.
pub fn written(of: &'static Class, what: &str) -> Option<Method> {
    ACCESSORS.iter().find_map(|(prefix, accessor)| {
        let (ix, field) = of.field(what.strip_prefix(prefix)?)?;
        let method = accessor(of, ix);
        method.fits(field).then_some(method)
    })
}

impl Method {
    /// Returns whether a field has such a message, by its type and access.
    fn suits(self, field: &Field) -> bool {
        let reads = matches!(self, Self::Get(..));
        self.fits(field) && (reads || field.access == Access::Rw)
    }

    /// Returns whether a field of this type can have such a message.
    fn fits(self, field: &Field) -> bool {
        match self {
            Self::Get(..) | Self::Set(..) => true,
            Self::AddTo(..) | Self::SetIn(..) | Self::RemoveFrom(..) => {
                matches!(field.ty, Type::Map(..))
            }
            Self::Add(..) | Self::Remove(..) => matches!(field.ty, Type::Set(_)),
            _ => false,
        }
    }

    /// Returns the name on the wire, without `Async`.
    pub fn name(&self) -> String {
        let of_field = |of: &'static Class, ix, prefix: &str| {
            let name = of.field_at(ix).map_or("", |field| field.name);
            format!("{}.{prefix}{name}", of.name)
        };
        match *self {
            Self::ListMethods => LIST_METHODS.to_owned(),
            Self::Explicit(of, message) => dotted(of, message.name),
            Self::GetAll(of) => dotted(of, "get_all"),
            Self::GetAllRecords(of) => dotted(of, "get_all_records"),
            Self::GetAllRecordsWhere(of) => dotted(of, "get_all_records_where"),
            Self::GetRecord(of) => dotted(of, "get_record"),
            Self::GetByUuid(of) => dotted(of, "get_by_uuid"),
            Self::GetByNameLabel(of) => dotted(of, "get_by_name_label"),
            Self::Create(of) => dotted(of, "create"),
            Self::Destroy(of) => dotted(of, "destroy"),
            Self::Get(of, ix) => of_field(of, ix, "get_"),
            Self::Set(of, ix) => of_field(of, ix, "set_"),
            Self::AddTo(of, ix) => of_field(of, ix, "add_to_"),
            Self::SetIn(of, ix) => of_field(of, ix, "set_in_"),
            Self::RemoveFrom(of, ix) => of_field(of, ix, "remove_from_"),
            Self::Add(of, ix) => of_field(of, ix, "add_"),
            Self::Remove(of, ix) => of_field(of, ix, "remove_"),
        }
    }

    /// Returns the parameters in order, without the session.
    pub fn params(&self) -> Cow<'static, [Param]> {
        let given = |name, ty| Param { name, ty, default: None };
        let key = |of: &'static Class| given("self", of.reference);
        let list = match *self {
            Self::ListMethods | Self::GetAll(_) | Self::GetAllRecords(_) => vec![],
            Self::Explicit(_, message) => return Cow::Borrowed(message.params),
            Self::GetAllRecordsWhere(_) => vec![given("expr", Type::Str)],
            Self::GetByUuid(_) => vec![given("uuid", Type::Str)],
            Self::GetByNameLabel(_) => vec![given("label", Type::Str)],
            Self::Create(of) => vec![given("args", of.record)],
            Self::GetRecord(of) | Self::Destroy(of) | Self::Get(of, _) => vec![key(of)],
            Self::Set(of, ix) => vec![key(of), given("value", type_of(of, ix))],
            Self::Add(of, ix) | Self::Remove(of, ix) => {
                vec![key(of), given("value", member(type_of(of, ix)).1)]
            }
            Self::RemoveFrom(of, ix) => vec![key(of), given("key", member(type_of(of, ix)).0)],
            Self::AddTo(of, ix) | Self::SetIn(of, ix) => {
                let (name, value) = member(type_of(of, ix));
                vec![key(of), given("key", name), given("value", value)]
            }
        };
        Cow::Owned(list)
    }

    /// Returns the type of the result.
    pub fn result(&self) -> Type {
        match *self {
            Self::ListMethods => Type::Set(&Type::Str),
            Self::Explicit(_, message) => message.result,
            Self::GetAll(of) | Self::GetByNameLabel(of) => Type::Set(&of.reference),
            Self::GetAllRecords(of) | Self::GetAllRecordsWhere(of) => {
                Type::Map(&of.reference, &of.record)
            }
            Self::GetRecord(of) => of.record,
            Self::GetByUuid(of) | Self::Create(of) => of.reference,
            Self::Get(of, ix) => type_of(of, ix),
            Self::Destroy(_)
            | Self::Set(..)
            | Self::AddTo(..)
            | Self::SetIn(..)
            | Self::RemoveFrom(..)
            | Self::Add(..)
            | Self::Remove(..) => Type::Void,
        }
    }

    /// Returns the least role that may call the method.
    pub fn least(&self) -> Role {
        match *self {
            Self::ListMethods => Role::ReadOnly,
            Self::Explicit(_, message) => message.least,
            Self::Create(of) | Self::Destroy(of) => of.writes,
            Self::Set(of, ix)
            | Self::AddTo(of, ix)
            | Self::SetIn(of, ix)
            | Self::RemoveFrom(of, ix)
            | Self::Add(of, ix)
            | Self::Remove(of, ix) => of.field_at(ix).map_or(of.writes, |field| field.least),
            Self::GetAll(of)
            | Self::GetAllRecords(of)
            | Self::GetAllRecordsWhere(of)
            | Self::GetRecord(of)
            | Self::GetByUuid(of)
            | Self::GetByNameLabel(of)
            | Self::Get(of, _) => of.reads,
        }
    }

    /// Returns how the method runs.
    pub fn kind(&self) -> MessageKind {
        match self {
            Self::Explicit(_, message) => message.kind,
            Self::Create(of) | Self::Destroy(of) => of.constructor.unwrap_or(MessageKind::Short),
            _ => MessageKind::Short,
        }
    }

    /// Returns whether the first parameter is a session.
    pub fn needs_session(&self) -> bool {
        !matches!(self, Self::ListMethods) && self.kind() != MessageKind::Login
    }

    /// Returns whether the method has an `Async` form.
    pub fn has_async(&self) -> bool {
        self.kind() == MessageKind::Long || matches!(self, Self::Create(_) | Self::Destroy(_))
    }
}

fn type_of(of: &'static Class, ix: FieldIx) -> Type {
    of.field_at(ix).map_or(Type::Void, |field| field.ty)
}

/// Returns the key and value types of a map. For a set, returns void and the type of its values.
fn member(ty: Type) -> (Type, Type) {
    match ty {
        Type::Map(key, value) => (*key, *value),
        Type::Set(value) => (Type::Void, *value),
        _ => (Type::Void, Type::Void),
    }
}

/// Returns the names of all calls without their `Async` forms, class by class.
pub fn methods() -> Vec<String> {
    let all = classes().iter().flat_map(|of| names(of).into_iter().map(|what| dotted(of, &what)));
    all.chain([LIST_METHODS.to_owned()]).collect()
}

fn dotted(of: &Class, what: &str) -> String {
    format!("{}.{what}", of.name)
}

const OF_CLASS: [&str; 8] = [
    "get_all",
    "get_all_records",
    "get_all_records_where",
    "get_record",
    "get_by_uuid",
    "get_by_name_label",
    "create",
    "destroy",
];

fn names(of: &'static Class) -> Vec<String> {
    let mut names: Vec<String> = of.messages.iter().map(|one| one.name.to_owned()).collect();
    let plain = OF_CLASS.into_iter().filter(|what| of_class(of, what).is_some());
    let accessors = of.fields.iter().flat_map(|field| {
        let name = move |(prefix, _): &(&str, Accessor)| format!("{prefix}{}", field.name);
        ACCESSORS.iter().map(name).filter(|what| of_field(of, what).is_some())
    });
    for name in plain.map(str::to_owned).chain(accessors) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
