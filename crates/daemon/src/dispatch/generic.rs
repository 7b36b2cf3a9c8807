//! Generic messages that follow from the class table: lists, getters, setters, and records without
//! behaviour.

use std::collections::BTreeMap;
use std::sync::Arc;

use xenapi::filter::Filter;
use xenapi::table::resolve::Method;
use xenapi::table::{Access, Class, FieldIx};
use xenapi::{ApiError, Encoded, Value, codes};

use super::args::named;
use super::{Args, Ctx};
use crate::calls;
use crate::db::{Ref, Tx, View};

/// Most members that a client may put into a map or set field. Each change sends all of them to
/// subscribers.
pub const MAX_MEMBERS: usize = 4_096;

/// Carries out a generic message.
///
/// # Errors
/// `NOT_IMPLEMENTED` if the message needs a handler and has none.
pub(crate) fn answer(ctx: &Ctx, args: &Args) -> Result<Value, ApiError> {
    match ctx.method {
        Method::GetAll(of) => Ok(ctx.read(|view| {
            Value::Set(view.all(of).map(|object| object.reference().value()).collect())
        })),
        Method::GetAllRecords(of) => Ok(all(ctx, of, |_| true)),
        Method::GetAllRecordsWhere(of) => {
            let filter = Filter::parse(args.text("expr"), of)?;
            Ok(all(ctx, of, |record| filter.holds(|field| record.field(field))))
        }
        Method::GetRecord(of) => {
            ctx.read(|view| view.record(of, &args.object())).map(Value::Encoded)
        }
        Method::GetByUuid(of) => {
            ctx.read(|view| view.by_uuid(of, args.text("uuid")).map(Ref::value))
        }
        Method::GetByNameLabel(of) => Ok(ctx.read(|view| {
            Value::Set(view.by_name(of, args.text("label")).map(Ref::value).collect())
        })),
        Method::Get(_, field) => ctx.read(|view| view.get(&args.object(), field).cloned()),
        Method::Set(of, field) => {
            write(ctx, args, of, field, |tx, it| tx.set(it, field, args.last().clone()))
        }
        Method::AddTo(of, field) => {
            write(ctx, args, of, field, |tx, it| add_to(tx, it, (of, field), args))
        }
        Method::SetIn(of, field) => write(ctx, args, of, field, |tx, it| {
            tx.set_key(it, field, &key(args.value("key")), Some(args.last().clone()))
        }),
        Method::RemoveFrom(of, field) => {
            write(ctx, args, of, field, |tx, it| tx.set_key(it, field, &key(args.last()), None))
        }
        Method::Add(of, field) => write(ctx, args, of, field, |tx, it| {
            members(tx, it, field, |members| {
                if !members.contains(args.last()) {
                    members.push(args.last().clone());
                }
            })
        }),
        Method::Remove(of, field) => write(ctx, args, of, field, |tx, it| {
            members(tx, it, field, |members| members.retain(|member| member != args.last()))
        }),
        Method::ListMethods | Method::Explicit(..) | Method::Create(_) | Method::Destroy(_) => {
            Err(codes::not_implemented(ctx.name()))
        }
    }
}

/// Returns records by reference. The filter runs after the database lock is released.
fn all(ctx: &Ctx, of: &'static Class, wanted: impl Fn(&Encoded) -> bool) -> Value {
    let records: Vec<(String, Arc<Encoded>)> = ctx.read(|view| {
        let record = |object: &crate::db::Object| (object.reference().to_string(), object.record());
        view.all(of).map(record).collect()
    });
    let wanted = records.into_iter().filter(|(_, record)| wanted(record));
    Value::Map(wanted.map(|(it, record)| (it, Value::Encoded(record))).collect())
}

/// Writes a field as requested, in one change with the checks of its hooks.
fn write(
    ctx: &Ctx,
    args: &Args,
    of: &'static Class,
    field: FieldIx,
    how: impl FnOnce(&mut Tx<'_>, &Ref) -> Result<(), ApiError>,
) -> Result<Value, ApiError> {
    let it = args.object();
    let hooks = of.field_at(field).map(|field| calls::hooks(of.name, field.name));
    let hooks = hooks.unwrap_or_default();
    ctx.change(|tx| {
        how(tx, &it)?;
        within(&tx.view(), of, &it, field)?;
        hooks.iter().try_for_each(|hook| (hook.check)(ctx, tx, &it))
    })?;
    hooks.iter().filter_map(|hook| hook.follow).for_each(|follow| follow(ctx, &it));
    Ok(nothing())
}

/// Sets a field that has a message of its own, such as `VM.set_order`. The first parameter is the
/// object, the last one the value.
///
/// # Errors
/// Those of a generic setter.
pub fn set(ctx: &Ctx, args: &Args, field: impl Into<FieldIx>) -> Result<Value, ApiError> {
    let field = field.into();
    change(ctx, args, field, |tx, it| tx.set(it, field, args.last().clone()))
}

/// Changes a field that has a message of its own, such as `VIF.add_ipv4_allowed`.
///
/// # Errors
/// Same as [`set`].
pub fn change(
    ctx: &Ctx,
    args: &Args,
    field: FieldIx,
    how: impl FnOnce(&mut Tx<'_>, &Ref) -> Result<(), ApiError>,
) -> Result<Value, ApiError> {
    let Some(of) = xenapi::table::class(field.class()) else {
        return Err(codes::not_implemented(ctx.name()));
    };
    write(ctx, args, of, field, how)
}

fn add_to(
    tx: &mut Tx<'_>,
    it: &Ref,
    (of, field): (&'static Class, FieldIx),
    args: &Args,
) -> Result<(), ApiError> {
    let key = key(args.value("key"));
    if let Value::Map(members) = tx.view().get(it, field)?
        && members.contains_key(&key)
    {
        let name = of.field_at(field).map_or("", |field| field.name);
        let uuid = uuid(&tx.view(), of, it);
        return Err(codes::map_duplicate_key(of.name, name, uuid, key));
    }
    tx.set_key(it, field, &key, Some(args.last().clone()))
}

/// Converts a map key to text. Some keys have another type in the API.
fn key(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        other => super::args::text(other).to_owned(),
    }
}

fn members(
    tx: &mut Tx<'_>,
    it: &Ref,
    field: FieldIx,
    change: impl FnOnce(&mut Vec<Value>),
) -> Result<(), ApiError> {
    let mut members = match tx.view().get(it, field)? {
        Value::Set(members) => members.clone(),
        _ => Vec::new(),
    };
    change(&mut members);
    tx.set(it, field, Value::Set(members))
}

/// Checks that a map or set field does not have too many members.
fn within(view: &View<'_>, of: &'static Class, it: &Ref, field: FieldIx) -> Result<(), ApiError> {
    let count = match view.get(it, field)? {
        Value::Map(members) => members.len(),
        Value::Set(members) => members.len(),
        _ => return Ok(()),
    };
    if count <= MAX_MEMBERS {
        return Ok(());
    }
    let name = of.field_at(field).map_or("", |field| field.name);
    let why = format!("{count} members, at most {MAX_MEMBERS} are kept");
    Err(codes::value_not_supported(name, "", why))
}

fn uuid(view: &View<'_>, of: &'static Class, it: &Ref) -> String {
    let uuid = of.field("uuid").and_then(|(field, _)| view.get(it, field).ok());
    uuid.map(|uuid| super::args::text(uuid).to_owned()).unwrap_or_default()
}

/// Returns the fields of a new record, from the parameters of `create`. Only fields that a client
/// may give are used. [`Args`] has left out the others, so that a client can send a whole record.
///
/// # Errors
/// `FIELD_TYPE_ERROR` if a required field is missing.
pub fn constructed(
    of: &'static Class,
    given: &BTreeMap<String, Value>,
) -> Result<Vec<(FieldIx, Value)>, ApiError> {
    let mut fields = Vec::new();
    for (number, field) in of.numbers().filter(|(_, field)| field.access != Access::RoRuntime) {
        match given.get(field.name) {
            Some(value) => fields.push((number, value.clone())),
            None if field.default.is_some() => {}
            None => return Err(codes::field_type(field.name)),
        }
    }
    Ok(fields)
}

/// Creates a record of a class without behaviour.
///
/// # Errors
/// Those of [`constructed`], and `HANDLE_INVALID` if a reference names nothing.
pub fn create(ctx: &Ctx, args: &Args) -> Result<Value, ApiError> {
    let Method::Create(of) = ctx.method else { return Err(codes::not_implemented(ctx.name())) };
    let fields = constructed(of, args.map("args"))?;
    let made = ctx.change(|tx| {
        for (field, value) in &fields {
            if let Some(field) = of.field_at(*field) {
                named(&tx.view(), value, &field.ty)?;
            }
        }
        tx.create(of, fields)
    })?;
    Ok(made.value())
}

/// Destroys a record of a class without behaviour.
///
/// # Errors
/// `HANDLE_INVALID` if the record does not exist.
pub fn destroy(ctx: &Ctx, args: &Args) -> Result<Value, ApiError> {
    let (Method::Destroy(of) | Method::Explicit(of, _)) = ctx.method else {
        return Err(codes::not_implemented(ctx.name()));
    };
    ctx.change(|tx| tx.destroy(of, &args.object()))?;
    Ok(nothing())
}

/// Returns the value of a call without a result.
pub fn nothing() -> Value {
    Value::text("")
}
