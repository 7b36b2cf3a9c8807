//! Messages that only write a field, and classes without behaviour.

use xenapi::table::resolve::{Method, methods, resolve, written};
use xenapi::table::{Role, blob, class, role, subject};
use xenapi::{ApiError, Value, codes};

use crate::db::{Ref, View};
use crate::dispatch::generic::{self, constructed, nothing};
use crate::dispatch::{Args, CallResult, Ctx, Handler, text};

pub(super) const CALLS: super::Calls = &[
    ("PIF.set_disallow_unplug", Handler::Short(store)),
    ("SR.create_new_blob", Handler::Short(new_blob)),
    ("SR.get_data_sources", Handler::Short(no_sources)),
    ("VM.add_to_NVRAM", Handler::Short(store)),
    ("VM.create_new_blob", Handler::Short(new_blob)),
    ("VM.get_data_sources", Handler::Short(no_sources)),
    ("VM.remove_from_NVRAM", Handler::Short(store)),
    ("VM.set_in_NVRAM", Handler::Short(store)),
    ("VM.set_NVRAM", Handler::Short(store)),
    ("VM.set_bios_strings", Handler::Short(store)),
    ("VM.set_domain_type", Handler::Short(store)),
    ("VM.set_ha_always_run", Handler::Short(store)),
    ("VM.set_ha_restart_priority", Handler::Short(store)),
    ("VM.set_has_vendor_device", Handler::Short(store)),
    ("VM.set_order", Handler::Short(store)),
    ("VM.set_shutdown_delay", Handler::Short(store)),
    ("VM.set_start_delay", Handler::Short(store)),
    ("VM.set_suspend_VDI", Handler::Short(store)),
    ("blob.create", Handler::Short(create_blob)),
    ("blob.destroy", Handler::Short(generic::destroy)),
    ("network.create_new_blob", Handler::Short(new_blob)),
    ("role.get_by_permission", Handler::Short(no_roles)),
    ("role.get_by_permission_name_label", Handler::Short(roles_that_permit)),
    ("role.get_permissions", Handler::Short(no_roles)),
    ("role.get_permissions_name_label", Handler::Short(permissions)),
    ("secret.create", Handler::Short(generic::create)),
    ("secret.destroy", Handler::Short(generic::destroy)),
    ("subject.add_to_roles", Handler::Short(add_role)),
    ("subject.create", Handler::Short(create_subject)),
    ("subject.destroy", Handler::Short(generic::destroy)),
    ("subject.get_permissions_name_label", Handler::Short(permissions_of_subject)),
    ("subject.remove_from_roles", Handler::Short(remove_role)),
];

/// Writes the field that the message is named after.
fn store(ctx: &Ctx, args: &Args) -> CallResult {
    let Method::Explicit(of, message) = ctx.method else {
        return Err(codes::not_implemented(ctx.name()));
    };
    match written(of, message.name) {
        Some(method) => generic::answer(&ctx.as_method(method), args),
        None => Err(codes::not_implemented(ctx.name())),
    }
}

fn no_sources(_: &Ctx, _: &Args) -> CallResult {
    Ok(Value::Set(Vec::new()))
}

fn create_blob(ctx: &Ctx, args: &Args) -> CallResult {
    let fields = blank(ctx, "", args);
    ctx.change(|tx| tx.create(&blob::CLASS, fields)).map(|it| it.value())
}

fn blank(ctx: &Ctx, name: &str, args: &Args) -> Vec<(xenapi::table::FieldIx, Value)> {
    vec![
        (blob::Field::name_label.into(), Value::text(name)),
        (blob::Field::mime_type.into(), args.value("mime_type").clone()),
        (blob::Field::public.into(), args.value("public").clone()),
        (blob::Field::last_updated.into(), Value::Date(ctx.app.clock.date())),
    ]
}

/// Creates an empty blob and adds it to the object under a name.
fn new_blob(ctx: &Ctx, args: &Args) -> CallResult {
    let Method::Explicit(of, _) = ctx.method else {
        return Err(codes::not_implemented(ctx.name()));
    };
    let Some((blobs, field)) = of.field("blobs") else {
        return Err(codes::not_implemented(ctx.name()));
    };
    let (it, name) = (args.object(), args.text("name"));
    let made = ctx.change(|tx| {
        if let Value::Map(blobs) = tx.view().get(&it, blobs)?
            && blobs.contains_key(name)
        {
            let uuid = uuid(&tx.view(), of.name, &it);
            return Err(codes::map_duplicate_key(of.name, field.name, uuid, name));
        }
        let made = tx.create(&blob::CLASS, blank(ctx, name, args))?;
        tx.set_key(&it, blobs, name, Some(made.value()))?;
        Ok(made)
    })?;
    Ok(made.value())
}

fn uuid(view: &View<'_>, of: &str, it: &Ref) -> String {
    let field = class(of).and_then(|of| of.field("uuid"));
    let uuid = field.and_then(|(field, _)| view.get(it, field).ok());
    uuid.map(|uuid| text(uuid).to_owned()).unwrap_or_default()
}

/// Returns no roles: permissions are only names here, not role records.
fn no_roles(_: &Ctx, _: &Args) -> CallResult {
    Ok(Value::Set(Vec::new()))
}

fn permissions(ctx: &Ctx, args: &Args) -> CallResult {
    let role = ctx.read(|view| role_of(view, &args.object()))?;
    Ok(permitted(role))
}

/// Returns the names of the calls that a role permits, in lower case.
fn permitted(role: Option<Role>) -> Value {
    let may = |name: &String| {
        resolve(name).is_some_and(|(method, _)| role.is_some_and(|role| method.least() <= role))
    };
    let names = methods().into_iter().filter(may);
    Value::Set(names.map(|name| Value::Str(name.to_ascii_lowercase())).collect())
}

/// Returns the role of a record.
pub(crate) fn role_of(view: &View<'_>, it: &Ref) -> Result<Option<Role>, ApiError> {
    Ok(text(view.get(it, role::Field::name_label)?).parse().ok())
}

fn roles_that_permit(ctx: &Ctx, args: &Args) -> CallResult {
    let label = args.text("label").to_ascii_lowercase();
    let name = methods().into_iter().find(|name| name.to_ascii_lowercase() == label);
    let least = name.and_then(|name| resolve(&name)).map(|(method, _)| method.least());
    let found = ctx.read(|view| {
        let all = view.all(&role::CLASS).map(|role| role.reference());
        let may = |it: &&Ref| matches!(role_of(view, it), Ok(Some(role)) if Some(role) >= least);
        all.filter(may).map(Ref::value).collect()
    });
    Ok(Value::Set(if least.is_some() { found } else { Vec::new() }))
}

fn create_subject(ctx: &Ctx, args: &Args) -> CallResult {
    let fields = constructed(&subject::CLASS, args.map("args"))?;
    let identifier = args.map("args").get("subject_identifier");
    let made = ctx.change(|tx| {
        let same = |it: &&crate::db::Object| {
            it.get(subject::Field::subject_identifier.into()) == identifier
        };
        if identifier.is_some() && tx.view().all(&subject::CLASS).any(|it| same(&it)) {
            return Err(codes::subject_already_exists());
        }
        tx.create(&subject::CLASS, fields)
    })?;
    Ok(made.value())
}

fn roles(view: &View<'_>, it: &Ref) -> Result<Vec<Value>, ApiError> {
    match view.get(it, subject::Field::roles)? {
        Value::Set(roles) => Ok(roles.clone()),
        _ => Ok(Vec::new()),
    }
}

fn add_role(ctx: &Ctx, args: &Args) -> CallResult {
    change_roles(ctx, args, |roles, role| {
        if roles.contains(role) {
            return Err(codes::role_already_exists());
        }
        roles.push(role.clone());
        Ok(())
    })
}

fn remove_role(ctx: &Ctx, args: &Args) -> CallResult {
    change_roles(ctx, args, |roles, role| {
        let before = roles.len();
        roles.retain(|one| one != role);
        if roles.len() == before { Err(codes::role_not_found()) } else { Ok(()) }
    })
}

fn change_roles(
    ctx: &Ctx,
    args: &Args,
    change: impl FnOnce(&mut Vec<Value>, &Value) -> Result<(), ApiError>,
) -> CallResult {
    let it = args.object();
    ctx.change(|tx| {
        let mut roles = roles(&tx.view(), &it)?;
        change(&mut roles, args.value("role"))?;
        tx.set(&it, subject::Field::roles, Value::Set(roles))
    })?;
    Ok(nothing())
}

fn permissions_of_subject(ctx: &Ctx, args: &Args) -> CallResult {
    let most = ctx.read(|view| {
        let roles = roles(view, &args.object())?;
        let roles = roles.iter().map(|role| role_of(view, &Ref::from(text(role))));
        // A destroyed role permits nothing.
        Ok::<_, ApiError>(roles.filter_map(Result::ok).flatten().max())
    })?;
    Ok(permitted(most))
}
