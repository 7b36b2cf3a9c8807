//! Messages of class `PBD`.

use model::sr::SrOp;
use toolstack::sr::Config;
use xenapi::table::{host, pbd, sr};
use xenapi::{ApiError, Value, codes};

use super::sr::location::check_free;
use super::sr::{about, begin, check, held, let_go};
use crate::db::{Ref, Tx, View};
use crate::dispatch::generic::{self, constructed, nothing};
use crate::dispatch::{Args, CallResult, Ctx, Handler, Hook, text};
use crate::ops::run::{at_once, gated};
use crate::records::fields::{self, flag, pairs, reference, references};
use crate::storage;

pub(super) const CALLS: super::Calls = &[
    ("PBD.create", Handler::Short(create)),
    ("PBD.destroy", Handler::Short(destroy)),
    ("PBD.plug", gated!(may_begin, plug, SrOp::Plug)),
    ("PBD.unplug", gated!(may_begin, unplug, SrOp::Unplug)),
    (
        "PBD.set_device_config",
        Handler::Short(|ctx, args| generic::set(ctx, args, pbd::Field::device_config)),
    ),
];

pub(super) const HOOKS: &[Hook] =
    &[Hook { field: "PBD.device_config", check: may_be_configured, follow: None }];

fn may_be_configured(_: &Ctx, tx: &mut Tx<'_>, connection: &Ref) -> Result<(), ApiError> {
    let view = tx.view();
    if flag(&view, connection, pbd::Field::currently_attached)? {
        return Err(codes::operation_not_allowed("the PBD is plugged; unplug it first"));
    }
    let place = reference(&view, connection, pbd::Field::SR)?;
    let computer = reference(&view, connection, pbd::Field::host)?;
    let config: Config = pairs(&view, connection, pbd::Field::device_config)?;
    check_free(&view, &place, fields::text(&view, &place, sr::Field::r#type)?, &computer, &config)
}

fn create(ctx: &Ctx, args: &Args) -> CallResult {
    let wanted = args.map("args");
    let fields = constructed(&pbd::CLASS, wanted)?;
    let named = |name: &str| Ref::from(wanted.get(name).map_or("", text));
    let (computer, place) = (named("host"), named("SR"));
    let config: Config = match wanted.get("device_config") {
        Some(Value::Map(pairs)) => {
            pairs.iter().map(|(key, value)| (key.clone(), text(value).to_owned())).collect()
        }
        _ => Config::new(),
    };
    let made = ctx.change(|tx| {
        let view = tx.view();
        view.object(&host::CLASS, &computer)?;
        let kind = fields::text(&view, &place, sr::Field::r#type)?;
        ctx.app.storage.check_config(kind, &config)?;
        check_free(&view, &place, kind, &computer, &config)?;
        for other in references(&view, &place, sr::Field::PBDs)? {
            if reference(&view, &other, pbd::Field::host)? == computer {
                let (place, computer) = (place.as_str(), computer.as_str());
                return Err(codes::pbd_exists(place, computer, other.as_str()));
            }
        }
        tx.create(&pbd::CLASS, fields)
    })?;
    Ok(made.value())
}

fn destroy(ctx: &Ctx, args: &Args) -> CallResult {
    let connection = args.object();
    ctx.change(|tx| {
        let view = tx.view();
        let place = reference(&view, &connection, pbd::Field::SR)?;
        check(&view, &place, SrOp::PbdDestroy)
            .map_err(|why| about(&view, &place, SrOp::PbdDestroy).refused(why))?;
        tx.destroy(&pbd::CLASS, &connection)
    })?;
    Ok(nothing())
}

fn may_begin(ctx: &Ctx, args: &Args, op: SrOp) -> Result<(), ApiError> {
    ctx.read(|view| {
        let place = reference(view, &args.object(), pbd::Field::SR)?;
        if reached(view, &args.object(), op)? {
            return Ok(());
        }
        at_once(check(view, &place, op)).map_err(|why| about(view, &place, op).refused(why))
    })
}

/// Returns whether the PBD already is in the requested state, so that nothing is to be done.
fn reached(view: &View<'_>, connection: &Ref, op: SrOp) -> Result<bool, ApiError> {
    Ok(flag(view, connection, pbd::Field::currently_attached)? == (op == SrOp::Plug))
}

async fn plug(ctx: Ctx, args: Args, op: SrOp) -> CallResult {
    let connection = args.object();
    let (storage, config) = ctx.read(|view| {
        let place = reference(view, &connection, pbd::Field::SR)?;
        let config: Config = pairs(view, &connection, pbd::Field::device_config)?;
        Ok::<_, ApiError>((ctx.app.storage.of(view, &place)?, config))
    })?;
    let under_way = begin(&ctx, &storage.sr, op, |_| Ok(())).await?;
    if ctx.read(|view| reached(view, &connection, op))? {
        return Ok(nothing());
    }
    let space = storage.attach(&config).await?;
    ctx.app.db.write_observed(|tx| {
        tx.set(&connection, pbd::Field::currently_attached, Value::Bool(true))?;
        storage::measured(tx, &storage.sr, space)
    })?;
    storage.tidy(&ctx.app).await;
    storage.calibrate(&ctx.app);
    // The SR stays attached even if the scan fails.
    let _ = storage::scan(&ctx.app, &storage).await;
    storage.coalesce(&ctx.app);
    drop(under_way);
    Ok(nothing())
}

async fn unplug(ctx: Ctx, args: Args, op: SrOp) -> CallResult {
    let connection = args.object();
    let storage = ctx.read(|view| {
        let place = reference(view, &connection, pbd::Field::SR)?;
        ctx.app.storage.of(view, &place)
    })?;
    if ctx.read(|view| reached(view, &connection, op))? {
        return Ok(nothing());
    }
    let attached = |tx: &mut Tx<'_>, is: bool| {
        tx.set(&connection, pbd::Field::currently_attached, Value::Bool(is))
    };
    // From here on, no VM can attach a VDI of the SR.
    let under_way = begin(&ctx, &storage.sr, op, |tx| attached(tx, false)).await?;
    let ended = match ctx.read(|view| held(&ctx, view, &storage.sr)) {
        Some(held) => Err(codes::vdi_in_use(held.as_str(), op.name())),
        None => let_go(&ctx, &storage).await,
    };
    if ended.is_err() {
        ctx.app.db.write_observed(|tx| attached(tx, true))?;
    }
    drop(under_way);
    ended.map(|()| nothing())
}
