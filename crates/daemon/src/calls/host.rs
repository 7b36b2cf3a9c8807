//! Messages of class `host`.

mod limits;
mod slices;

use std::sync::Arc;

use xenapi::table::{host, pif, vm};
use xenapi::{ApiError, NULL_REF, Value, codes};

use crate::app::AppState;
use crate::db::{Object, Ref, View};
use crate::dispatch::generic::{nothing, set};
use crate::dispatch::{Args, CallResult, Ctx, Handler, Hook, list_methods};

pub(super) const CALLS: super::Calls = &[
    ("host.enable", Handler::Short(enable)),
    ("host.disable", Handler::Short(disable)),
    ("host.evacuate", Handler::Short(evacuate)),
    ("host.reboot", Handler::Short(refuse_power)),
    ("host.shutdown", Handler::Short(refuse_power)),
    ("host.assert_can_evacuate", Handler::Short(assert_can_evacuate)),
    ("host.get_vms_which_prevent_evacuation", Handler::Short(which_prevent_evacuation)),
    ("host.get_servertime", Handler::Short(time)),
    ("host.get_server_localtime", Handler::Short(time)),
    ("host.compute_free_memory", Handler::Short(free_memory)),
    ("host.compute_memory_overhead", Handler::Short(memory_overhead)),
    ("host.get_management_interface", Handler::Short(management_interface)),
    ("host.get_server_certificate", Handler::Short(server_certificate)),
    ("host.list_methods", Handler::Short(methods)),
    ("host.set_hostname_live", Handler::Short(set_hostname)),
    ("host.call_plugin", Handler::Short(call_plugin)),
    ("host.has_extension", Handler::Short(has_extension)),
    ("host.call_extension", Handler::Short(call_extension)),
    ("host.get_data_sources", Handler::Short(data_sources)),
];

/// Hooks for settings in the host's `other_config`.
pub(super) const HOOKS: &[Hook] = &[
    Hook { field: "host.other_config", check: limits::check, follow: Some(limits::follow) },
    Hook { field: "host.other_config", check: slices::check, follow: Some(slices::follow) },
];

/// Applies the settings of the host's record when the daemon starts.
pub(crate) fn begin(app: &Arc<AppState>) {
    let host = app.db.read(|view| view.all(&host::CLASS).next().map(|it| it.reference().clone()));
    if let Some(host) = host {
        limits::apply(app, &host);
        slices::apply(app, &host);
    }
}

fn enable(ctx: &Ctx, args: &Args) -> CallResult {
    enabled(ctx, args, true)
}

fn disable(ctx: &Ctx, args: &Args) -> CallResult {
    enabled(ctx, args, false)
}

fn enabled(ctx: &Ctx, args: &Args, whether: bool) -> CallResult {
    ctx.change(|tx| tx.set(&args.object(), host::Field::enabled, Value::Bool(whether)))?;
    Ok(nothing())
}

/// Refuses to reboot the host or to power it off, and enables the host. Clients disable a host
/// first and end at the refusal, so that no machine could be started from then on.
fn refuse_power(ctx: &Ctx, args: &Args) -> CallResult {
    enabled(ctx, args, true)?;
    Err(codes::not_implemented(ctx.name()))
}

/// Evacuates a host. This fails if VMs run, because there is no other host.
fn evacuate(ctx: &Ctx, args: &Args) -> CallResult {
    match ctx.read(|view| residents(view, &args.object())).first() {
        None => Ok(nothing()),
        Some(machine) => Err(nowhere(machine)),
    }
}

fn assert_can_evacuate(ctx: &Ctx, args: &Args) -> CallResult {
    let residents = ctx.read(|view| residents(view, &args.object()));
    if residents.is_empty() {
        return Ok(nothing());
    }
    // XenServer also writes several errors into one parameter.
    let all: Vec<_> = residents.iter().map(|it| nowhere(it).details().join(",")).collect();
    Err(codes::cannot_evacuate_host(all.join("|")))
}

fn which_prevent_evacuation(ctx: &Ctx, args: &Args) -> CallResult {
    let why = |it: &Ref| Value::Set(nowhere(it).details().into_iter().map(Value::Str).collect());
    let residents = ctx.read(|view| residents(view, &args.object()));
    Ok(Value::Map(residents.iter().map(|it| (it.to_string(), why(it))).collect()))
}

/// Returns the error for a VM that cannot leave the host.
fn nowhere(machine: &Ref) -> ApiError {
    codes::no_hosts_available(machine.as_str())
}

/// Returns the VMs on a host without its control domain.
fn residents(view: &View<'_>, it: &Ref) -> Vec<Ref> {
    let there = |machine: &&Object| {
        machine.get(vm::Field::resident_on.into()) == Some(&it.value())
            && machine.get(vm::Field::is_control_domain.into()) == Some(&Value::Bool(false))
    };
    view.all(&vm::CLASS).filter(there).map(|machine| machine.reference().clone()).collect()
}

/// Returns the host's time, in UTC.
fn time(ctx: &Ctx, _: &Args) -> CallResult {
    Ok(Value::Date(ctx.app.clock.date()))
}

fn free_memory(ctx: &Ctx, _: &Args) -> CallResult {
    let free = ctx.app.drivers.memory.read().available;
    Ok(Value::Int(i64::try_from(free).unwrap_or(i64::MAX)))
}

fn memory_overhead(ctx: &Ctx, args: &Args) -> CallResult {
    ctx.read(|view| view.get(&args.object(), host::Field::memory_overhead).cloned())
}

fn management_interface(ctx: &Ctx, args: &Args) -> CallResult {
    let found = ctx.read(|view| {
        let manages = |card: &&Object| {
            card.get(pif::Field::host.into()) == Some(&args.object().value())
                && card.get(pif::Field::management.into()) == Some(&Value::Bool(true))
        };
        view.all(&pif::CLASS).find(manages).map(|card| card.reference().value())
    });
    Ok(found.unwrap_or_else(|| Value::text(NULL_REF)))
}

fn server_certificate(ctx: &Ctx, _: &Args) -> CallResult {
    Ok(Value::text(ctx.app.settings.certificate.as_str()))
}

fn methods(_: &Ctx, _: &Args) -> CallResult {
    Ok(list_methods())
}

/// Sets the name in the record. The system's host name stays unchanged.
fn set_hostname(ctx: &Ctx, args: &Args) -> CallResult {
    if args.text("hostname").is_empty() {
        return Err(codes::invalid_value("hostname", ""));
    }
    set(ctx, args, host::Field::hostname)
}

fn call_plugin(_: &Ctx, args: &Args) -> CallResult {
    Err::<Value, ApiError>(codes::missing_plugin(args.text("plugin")))
}

fn has_extension(_: &Ctx, _: &Args) -> CallResult {
    Ok(Value::Bool(false))
}

fn call_extension(_: &Ctx, args: &Args) -> CallResult {
    Err(codes::method_unknown(args.text("call")))
}

/// Returns no data sources; `/metrics` has the measurements.
fn data_sources(_: &Ctx, _: &Args) -> CallResult {
    Ok(Value::Set(Vec::new()))
}
