//! From the name of a call to what it means: messages that are written down, and those that
//! follow from a class and its fields.
//!
//! # Model
//! Every class that has records has `get_record` and `get_by_uuid`; `get_by_name_label` if they
//! have names; `get_all`, `get_all_records` and `get_all_records_where` if they are listed;
//! `create` and `destroy` if clients make them. Every field has `get_`; one that clients write has
//! `set_`, a map also `add_to_` and `remove_from_`, a set `add_` and `remove_`. A message that is
//! written down comes before one that follows.

use std::borrow::Cow;

use super::{
    Access, Class, Field, FieldIx, Message, MessageKind, Param, RecordStorage, Role, Type, class,
    classes,
};

/// The one call that belongs to no class and needs no session.
pub const LIST_METHODS: &str = "system.listMethods";
/// Before the name of a call that answers with a task.
const ASYNC: &str = "Async.";

/// What a call means.
#[derive(Clone, Copy, Debug)]
pub enum Method {
    /// Names of all calls.
    ListMethods,
    /// A message that is written down.
    Explicit(&'static Class, &'static Message),
    /// References of all records.
    GetAll(&'static Class),
    /// All records by reference.
    GetAllRecords(&'static Class),
    /// Those for which an expression is true.
    GetAllRecordsWhere(&'static Class),
    /// One record.
    GetRecord(&'static Class),
    /// The reference of the record with this UUID.
    GetByUuid(&'static Class),
    /// References of the records with this name.
    GetByNameLabel(&'static Class),
    /// A new record.
    Create(&'static Class),
    /// Removes a record.
    Destroy(&'static Class),
    /// What a field holds.
    Get(&'static Class, FieldIx),
    /// Sets a field.
    Set(&'static Class, FieldIx),
    /// Adds a key and its value to a map.
    AddTo(&'static Class, FieldIx),
    /// Removes a key from a map.
    RemoveFrom(&'static Class, FieldIx),
    /// Adds a value to a set.
    Add(&'static Class, FieldIx),
    /// Removes a value from a set.
    Remove(&'static Class, FieldIx),
}

/// What a call of this name means, and whether it shall answer with a task.
///
/// None: there is no such call, or it has no `Async` form.
pub fn resolve(name: &str) -> Option<(Method, bool)> {
    if name == LIST_METHODS {
        return Some((Method::ListMethods, false));
    }
    let (name, asynchronous) = name.strip_prefix(ASYNC).map_or((name, false), |rest| (rest, true));
    let (of, what) = name.split_once('.')?;
    let of = class(of)?;
    let written = of.message(what).map(|message| Method::Explicit(of, message));
    let method = written.or_else(|| of_class(of, what)).or_else(|| of_field(of, what))?;
    (!asynchronous || method.has_async()).then_some((method, asynchronous))
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

/// How the name of a message begins that follows from a field, longest first where one begins
/// another.
const ACCESSORS: [(&str, Accessor); 6] = [
    ("get_", Method::Get),
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

/// What a message that is written down would be if it followed from the field that it is named
/// after, as `VM.set_order` from `VM.order`: for those that do no more than write that field.
pub fn written(of: &'static Class, what: &str) -> Option<Method> {
    ACCESSORS.iter().find_map(|(prefix, accessor)| {
        let (ix, field) = of.field(what.strip_prefix(prefix)?)?;
        let method = accessor(of, ix);
        method.fits(field).then_some(method)
    })
}

impl Method {
    /// A field like this has such a message.
    fn suits(self, field: &Field) -> bool {
        let reads = matches!(self, Self::Get(..));
        self.fits(field) && (reads || field.access == Access::Rw)
    }

    /// A field of this type can have such a message.
    fn fits(self, field: &Field) -> bool {
        match self {
            Self::Get(..) | Self::Set(..) => true,
            Self::AddTo(..) | Self::RemoveFrom(..) => matches!(field.ty, Type::Map(..)),
            Self::Add(..) | Self::Remove(..) => matches!(field.ty, Type::Set(_)),
            _ => false,
        }
    }

    /// Its name on the wire, without `Async`.
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
            Self::RemoveFrom(of, ix) => of_field(of, ix, "remove_from_"),
            Self::Add(of, ix) => of_field(of, ix, "add_"),
            Self::Remove(of, ix) => of_field(of, ix, "remove_"),
        }
    }

    /// What it takes, in order, without the session.
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
            Self::AddTo(of, ix) => {
                let (name, value) = member(type_of(of, ix));
                vec![key(of), given("key", name), given("value", value)]
            }
        };
        Cow::Owned(list)
    }

    /// What it answers.
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
            | Self::RemoveFrom(..)
            | Self::Add(..)
            | Self::Remove(..) => Type::Void,
        }
    }

    /// The least role that may call it.
    pub fn least(&self) -> Role {
        match *self {
            Self::ListMethods => Role::ReadOnly,
            Self::Explicit(_, message) => message.least,
            Self::Create(of) | Self::Destroy(of) => of.writes,
            Self::Set(of, ix)
            | Self::AddTo(of, ix)
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

    /// How it is carried out.
    pub fn kind(&self) -> MessageKind {
        match self {
            Self::Explicit(_, message) => message.kind,
            Self::Create(of) | Self::Destroy(of) => of.constructor.unwrap_or(MessageKind::Short),
            _ => MessageKind::Short,
        }
    }

    /// It takes a session as its first parameter.
    pub fn needs_session(&self) -> bool {
        !matches!(self, Self::ListMethods) && self.kind() != MessageKind::Login
    }

    /// It has an `Async` form.
    pub fn has_async(&self) -> bool {
        self.kind() == MessageKind::Long || matches!(self, Self::Create(_) | Self::Destroy(_))
    }
}

fn type_of(of: &'static Class, ix: FieldIx) -> Type {
    of.field_at(ix).map_or(Type::Void, |field| field.ty)
}

/// Keys and values of a map; of a set, nothing and its values.
fn member(ty: Type) -> (Type, Type) {
    match ty {
        Type::Map(key, value) => (*key, *value),
        Type::Set(value) => (Type::Void, *value),
        _ => (Type::Void, Type::Void),
    }
}

/// Names of all calls without their `Async` forms, class by class.
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
