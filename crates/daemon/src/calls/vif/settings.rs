//! Settings of VIFs that have messages of their own.

use xenapi::Value;
use xenapi::table::{FieldIx, vif};

use crate::calls::Calls;
use crate::dispatch::generic::{self, nothing};
use crate::dispatch::{Args, CallResult, Ctx, Handler};

macro_rules! sets {
    ($field:ident) => {
        Handler::Short(|ctx, args| generic::set(ctx, args, vif::Field::$field))
    };
}

macro_rules! changes {
    ($field:ident, $how:ident) => {
        Handler::Short(|ctx, args| members(ctx, args, vif::Field::$field.into(), $how))
    };
}

pub(in crate::calls) const CALLS: Calls = &[
    ("VIF.set_locking_mode", sets!(locking_mode)),
    ("VIF.set_ipv4_allowed", sets!(ipv4_allowed)),
    ("VIF.set_ipv6_allowed", sets!(ipv6_allowed)),
    ("VIF.add_ipv4_allowed", changes!(ipv4_allowed, add)),
    ("VIF.add_ipv6_allowed", changes!(ipv6_allowed, add)),
    ("VIF.remove_ipv4_allowed", changes!(ipv4_allowed, remove)),
    ("VIF.remove_ipv6_allowed", changes!(ipv6_allowed, remove)),
    ("VIF.configure_ipv4", Handler::Short(configure_ipv4)),
    ("VIF.configure_ipv6", Handler::Short(configure_ipv6)),
];

fn add(members: &mut Vec<Value>, value: &Value) {
    if !members.contains(value) {
        members.push(value.clone());
    }
}

fn remove(members: &mut Vec<Value>, value: &Value) {
    members.retain(|member| member != value);
}

fn members(ctx: &Ctx, args: &Args, field: FieldIx, how: fn(&mut Vec<Value>, &Value)) -> CallResult {
    generic::change(ctx, args, field, |tx, device| {
        let mut members = match tx.view().get(device, field)? {
            Value::Set(members) => members.clone(),
            _ => Vec::new(),
        };
        how(&mut members, args.value("value"));
        tx.set(device, field, Value::Set(members))
    })
}

fn configure_ipv4(ctx: &Ctx, args: &Args) -> CallResult {
    let fields =
        [vif::Field::ipv4_configuration_mode, vif::Field::ipv4_addresses, vif::Field::ipv4_gateway];
    configure(ctx, args, fields)
}

fn configure_ipv6(ctx: &Ctx, args: &Args) -> CallResult {
    let fields =
        [vif::Field::ipv6_configuration_mode, vif::Field::ipv6_addresses, vif::Field::ipv6_gateway];
    configure(ctx, args, fields)
}

fn configure(ctx: &Ctx, args: &Args, [mode, addresses, gateway]: [vif::Field; 3]) -> CallResult {
    let device = args.object();
    let fixed = args.text("mode") == "Static";
    let given = Some(args.text("address")).filter(|address| fixed && !address.is_empty());
    ctx.change(|tx| {
        tx.set(&device, mode, args.value("mode").clone())?;
        let address = given.map(Value::text).into_iter().collect();
        tx.set(&device, addresses, Value::Set(address))?;
        let way = if fixed { args.text("gateway") } else { "" };
        tx.set(&device, gateway, Value::text(way))
    })?;
    Ok(nothing())
}
