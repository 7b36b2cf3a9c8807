//! Messages of class `network`.

use std::time::Duration;

use error_causes::error_chain;
use model::id::Uuid;
use tokio::time::timeout;
use xenapi::table::{FieldIx, network, vif};
use xenapi::{ApiError, Value, codes};

use crate::db::{Object, Ref, Tx, View};
use crate::dispatch::generic::{constructed, nothing};
use crate::dispatch::{Args, CallResult, Ctx, Handler, Hook, text};
use crate::records::fields::{flag, int, references, uuid};

/// Valid MTUs, in bytes.
const MTUS: std::ops::RangeInclusive<i64> = 68..=65_535;
/// Time limit for the removal of a bridge.
const BRIDGE_DEADLINE: Duration = Duration::from_secs(30);
/// Longest name of a network device, in bytes.
const BRIDGE_BYTES_MAX: usize = 15;

pub(super) const CALLS: super::Calls = &[
    ("network.create", Handler::Short(create)),
    ("network.destroy", Handler::Long(|ctx, args| Box::pin(destroy(ctx, args)))),
    ("network.add_purpose", Handler::Short(add_purpose)),
    ("network.remove_purpose", Handler::Short(remove_purpose)),
    ("network.set_default_locking_mode", Handler::Short(set_default_locking_mode)),
];

pub(super) const HOOKS: &[Hook] = &[Hook { field: "network.MTU", check: mtu, follow: None }];

/// Checks the MTU of a network. Its VIFs show the same MTU: those that are plugged from the next plug
/// on.
fn mtu(_: &Ctx, tx: &mut Tx<'_>, net: &Ref) -> Result<(), ApiError> {
    let mtu = int(&tx.view(), net, network::Field::MTU)?;
    if !MTUS.contains(&mtu) {
        return Err(codes::invalid_value("MTU", mtu.to_string()));
    }
    for device in references(&tx.view(), net, network::Field::VIFs)? {
        if !flag(&tx.view(), &device, vif::Field::currently_attached)? {
            tx.set(&device, vif::Field::MTU, Value::Int(mtu))?;
        }
    }
    Ok(())
}

fn create(ctx: &Ctx, args: &Args) -> CallResult {
    let wanted = args.map("args");
    let mut fields = constructed(&network::CLASS, wanted)?;
    // SDKs of typed languages send 0 for an MTU that is not set.
    let unset = (FieldIx::from(network::Field::MTU), Value::Int(0));
    fields.retain(|field| *field != unset);
    let bridge = wanted.get("bridge").map_or("", text);
    if !is_bridge(bridge) {
        return Err(codes::invalid_value("bridge", bridge));
    }
    if !bridge.is_empty() {
        let checked = ctx.app.drivers.net.check_bridge(bridge);
        checked.map_err(|why| codes::value_not_supported("bridge", bridge, error_chain(&why)))?;
    }
    let made = ctx.change(|tx| {
        if !bridge.is_empty() && with_bridge(&tx.view(), bridge).is_some() {
            return Err(codes::bridge_name_exists(bridge));
        }
        let made = tx.create(&network::CLASS, fields)?;
        mtu(ctx, tx, &made)?;
        if bridge.is_empty() {
            let name = bridge_of(uuid(&tx.view(), &made, network::Field::uuid)?);
            tx.set(&made, network::Field::bridge, Value::Str(name))?;
        }
        Ok(made)
    })?;
    Ok(made.value())
}

/// Returns the default bridge name of a network. The kernel allows 15 bytes.
pub(crate) fn bridge_of(network: Uuid) -> String {
    let id = network.to_string();
    format!("rwbr{}", id.get(..8).unwrap_or(&id))
}

/// Returns the network that has this bridge.
pub(crate) fn with_bridge(view: &View<'_>, bridge: &str) -> Option<Ref> {
    let is_it = |net: &&Object| matches!(net.get(network::Field::bridge.into()), Some(Value::Str(name)) if name == bridge);
    view.all(&network::CLASS).find(is_it).map(Object::reference).cloned()
}

/// Returns whether this is a valid bridge name or empty.
fn is_bridge(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.len() <= BRIDGE_BYTES_MAX && name.chars().all(plain) && !matches!(name, "." | "..")
}

async fn destroy(ctx: Ctx, args: Args) -> CallResult {
    let net = args.object();
    let bridge = ctx.change(|tx| {
        let view = tx.view();
        let joined = |refs: Vec<Ref>| refs.iter().map(Ref::as_str).collect::<Vec<_>>().join(",");
        let vifs = references(&view, &net, network::Field::VIFs)?;
        if !vifs.is_empty() {
            return Err(codes::network_contains_vif(joined(vifs)));
        }
        let pifs = references(&view, &net, network::Field::PIFs)?;
        if !pifs.is_empty() {
            return Err(codes::network_contains_pif(joined(pifs)));
        }
        let bridge = view.get(&net, network::Field::bridge)?.clone();
        tx.destroy(&network::CLASS, &net)?;
        // Several networks may use one bridge.
        let is_it = |other: &Object| other.get(network::Field::bridge.into()) == Some(&bridge);
        let shared = tx.view().all(&network::CLASS).any(is_it);
        Ok((!shared).then(|| text(&bridge).to_owned()))
    })?;
    if let Some(bridge) = bridge {
        // The bridge has no ports now. A failure is ignored: a bridge of another program stays, and
        // so does an empty one that cannot be removed.
        let _ = timeout(BRIDGE_DEADLINE, ctx.app.drivers.net.remove_bridge(&bridge)).await;
    }
    Ok(nothing())
}

/// Sets the default locking mode. Fails while a VIF of the network is plugged, as in XenServer,
/// because the change could cut its guest off.
fn set_default_locking_mode(ctx: &Ctx, args: &Args) -> CallResult {
    let net = args.object();
    ctx.change(|tx| {
        let view = tx.view();
        for device in references(&view, &net, network::Field::VIFs)? {
            if flag(&view, &device, vif::Field::currently_attached)? {
                return Err(codes::vif_in_use(net.as_str(), device.as_str()));
            }
        }
        tx.set(&net, network::Field::default_locking_mode, args.last().clone())
    })?;
    Ok(nothing())
}

fn add_purpose(ctx: &Ctx, args: &Args) -> CallResult {
    purposes(ctx, args, |members, value| {
        if !members.contains(value) {
            members.push(value.clone());
        }
    })
}

fn remove_purpose(ctx: &Ctx, args: &Args) -> CallResult {
    purposes(ctx, args, |members, value| members.retain(|member| member != value))
}

fn purposes(ctx: &Ctx, args: &Args, change: impl FnOnce(&mut Vec<Value>, &Value)) -> CallResult {
    let (net, field) = (args.object(), FieldIx::from(network::Field::purpose));
    ctx.change(|tx| {
        let mut members = match tx.view().get(&net, field)? {
            Value::Set(members) => members.clone(),
            _ => Vec::new(),
        };
        change(&mut members, args.value("value"));
        tx.set(&net, field, Value::Set(members))
    })?;
    Ok(nothing())
}
