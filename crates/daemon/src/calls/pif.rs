//! Messages of class `PIF`: host NICs, each with a network. A plugged NIC is a port of the
//! network's bridge.

pub(crate) mod management;
mod record;
mod refused;

use error_causes::error_chain;
use toolstack::net::{HostNic, NetError};
use xenapi::table::{network, pif};
use xenapi::{ApiError, Value, codes};

use crate::app::AppState;
use crate::db::{Ref, Tx, View};
use crate::dispatch::generic::nothing;
use crate::dispatch::{Args, CallResult, Ctx, Handler};
use crate::records::fields::{flag, int, reference, text, uuid};
use record::{found, known, make};

pub(crate) use crate::reconcile::pifs::replug;
pub(super) use refused::CALLS as REFUSED;

/// Default MTU of Ethernet, in bytes.
const MTU: u32 = 1500;

pub(super) const CALLS: super::Calls = &[
    ("PIF.scan", Handler::Long(|ctx, args| Box::pin(scan(ctx, args)))),
    ("PIF.introduce", Handler::Long(|ctx, args| Box::pin(introduce(ctx, args)))),
    ("PIF.forget", Handler::Short(forget)),
    ("PIF.plug", Handler::Long(|ctx, args| Box::pin(plug(ctx, args)))),
    ("PIF.unplug", Handler::Long(|ctx, args| Box::pin(unplug(ctx, args)))),
];

/// Creates a record and a network for each new physical NIC, and updates the records of the others.
/// No NIC is plugged, because no call requested it.
async fn scan(ctx: Ctx, args: Args) -> CallResult {
    let (host, host_nics) = (args.object(), cards(&ctx.app).await?);
    let now = ctx.app.clock.date();
    ctx.change(|tx| {
        for host_nic in &host_nics {
            match known(&tx.view(), &host, &host_nic.name) {
                Some(pif) => found(tx, &pif, host_nic, now)?,
                None if host_nic.physical => drop(make(tx, &host, host_nic, (true, None), now)?),
                None => {}
            }
        }
        Ok(())
    })?;
    Ok(nothing())
}

/// Creates the record of a NIC. Virtual devices are allowed here, because the call names one.
async fn introduce(ctx: Ctx, args: Args) -> CallResult {
    let (host, device, mac) = (args.object(), args.text("device"), args.text("MAC"));
    let none = || codes::no_such_interface(device, mac);
    if device.is_empty() && mac.is_empty() {
        return Err(none());
    }
    let is = |host_nic: &HostNic| {
        (device.is_empty() || host_nic.name == device)
            && (mac.is_empty() || host_nic.mac.eq_ignore_ascii_case(mac))
    };
    let host_nic = cards(&ctx.app).await?.into_iter().find(is).ok_or_else(none)?;
    let (managed, now) = (args.flag("managed"), ctx.app.clock.date());
    let made = ctx.change(|tx| match known(&tx.view(), &host, &host_nic.name) {
        Some(_) => Err(codes::duplicate_pif_device_name(&host_nic.name)),
        None => make(tx, &host, &host_nic, (managed, None), now),
    })?;
    Ok(made.value())
}

fn forget(ctx: &Ctx, args: &Args) -> CallResult {
    let pif = args.object();
    ctx.change(|tx| {
        not_management(&tx.view(), &pif)?;
        if flag(&tx.view(), &pif, pif::Field::currently_attached)? {
            return Err(codes::operation_not_allowed("the device is plugged; unplug it first"));
        }
        let metrics = reference(&tx.view(), &pif, pif::Field::metrics)?;
        tx.destroy(&pif::CLASS, &pif)?;
        // The metrics may be destroyed already.
        let _gone = tx.destroy(&xenapi::table::pif_metrics::CLASS, &metrics);
        Ok(())
    })?;
    Ok(nothing())
}

async fn plug(ctx: Ctx, args: Args) -> CallResult {
    let pif = args.object();
    let _turn = turn(&ctx.app, &pif).await?;
    ctx.read(|view| managed(view, &pif))?;
    let pif_target = ctx.read(|view| PifTarget::of(view, &pif))?;
    join(&ctx.app, &pif_target).await.map_err(|why| failed(&why))?;
    let noted = ctx.change(|tx| set_attached(tx, &pif, true));
    if let Err(error) = noted {
        // The PIF was forgotten meanwhile, so no later call could unplug it.
        let _left = ctx.app.drivers.net.leave(&pif_target.device, &pif_target.bridge).await;
        return Err(error);
    }
    seen(&ctx.app, &pif).await;
    Ok(nothing())
}

async fn unplug(ctx: Ctx, args: Args) -> CallResult {
    let pif = args.object();
    let _turn = turn(&ctx.app, &pif).await?;
    let pif_target = ctx.read(|view| {
        managed(view, &pif)?;
        not_management(view, &pif)?;
        if flag(view, &pif, pif::Field::disallow_unplug)? {
            return Err(codes::pif_does_not_allow_unplug(pif.as_str()));
        }
        PifTarget::of(view, &pif)
    })?;
    ctx.app
        .drivers
        .net
        .leave(&pif_target.device, &pif_target.bridge)
        .await
        .map_err(|why| failed(&why))?;
    ctx.change(|tx| set_attached(tx, &pif, false))?;
    seen(&ctx.app, &pif).await;
    Ok(nothing())
}

/// Locks a PIF, so that operations on it do not overlap.
pub(crate) async fn turn(app: &AppState, pif: &Ref) -> Result<impl Sized + use<>, ApiError> {
    let id = app.db.read(|view| uuid(view, pif, pif::Field::uuid))?;
    Ok(app.machines.lock_settings(&id.to_string()).await)
}

/// Checks that the PIF is managed by this server. Leaves it alone if another tool manages it.
fn managed(view: &View<'_>, pif: &Ref) -> Result<(), ApiError> {
    if flag(view, pif, pif::Field::managed)? {
        return Ok(());
    }
    Err(codes::pif_unmanaged(pif.as_str()))
}

/// Checks that the host is not reached through the PIF.
fn not_management(view: &View<'_>, pif: &Ref) -> Result<(), ApiError> {
    if flag(view, pif, pif::Field::management)? {
        return Err(codes::pif_is_management(pif.as_str()));
    }
    Ok(())
}

/// Device, bridge and MTU of a PIF.
pub(crate) struct PifTarget {
    pub(crate) device: String,
    pub(crate) bridge: String,
    mtu: u32,
}

impl PifTarget {
    pub(crate) fn of(view: &View<'_>, pif: &Ref) -> Result<Self, ApiError> {
        let net = reference(view, pif, pif::Field::network)?;
        let mtu = int(view, &net, network::Field::MTU)?;
        Ok(Self {
            device: text(view, pif, pif::Field::device)?.to_owned(),
            bridge: text(view, &net, network::Field::bridge)?.to_owned(),
            mtu: u32::try_from(mtu).unwrap_or(MTU),
        })
    }
}

/// Records whether the PIF is plugged, as requested. Removes a pending plug.
pub(crate) fn set_attached(tx: &mut Tx<'_>, pif: &Ref, attached: bool) -> Result<(), ApiError> {
    crate::reconcile::pifs::owe(tx, pif, false)?;
    tx.set(pif, pif::Field::currently_attached, Value::Bool(attached))
}

/// Adds the device to its bridge, which is created if necessary.
pub(crate) async fn join(app: &AppState, pif_target: &PifTarget) -> Result<(), NetError> {
    let net = &app.drivers.net;
    net.create_bridge(&pif_target.bridge, pif_target.mtu).await?;
    net.join(&pif_target.device, &pif_target.bridge).await
}

/// Updates the record to the current state of the device. Does nothing if either does not exist.
pub(crate) async fn seen(app: &AppState, pif: &Ref) {
    let Ok(host_nics) = cards(app).await else { return };
    let now = app.clock.date();
    let _gone = app.db.write_observed(|tx| {
        let device = text(&tx.view(), pif, pif::Field::device)?.to_owned();
        host_nics
            .iter()
            .find(|host_nic| host_nic.name == device)
            .map_or(Ok(()), |host_nic| found(tx, pif, host_nic, now))
    });
}

pub(crate) async fn cards(app: &AppState) -> Result<Vec<HostNic>, ApiError> {
    app.drivers.net.cards().await.map_err(|why| failed(&why))
}

fn failed(why: &NetError) -> ApiError {
    match why {
        NetError::NotThere(_) => codes::pif_device_not_found(),
        NetError::Refused { .. } | NetError::Reached { .. } | NetError::Late(_) => {
            codes::operation_not_allowed(error_chain(why))
        }
    }
}
