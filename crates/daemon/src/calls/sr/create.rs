//! Creation and destruction of SRs.

use model::id::{SrId, Uuid};
use toolstack::sr::iso::ISO;
use toolstack::sr::{Config, SrScan};
use xenapi::table::{FieldIx, pbd, sr};
use xenapi::{ApiError, Value, codes};

use super::location;
use crate::db::{Ref, Tx, View};
use crate::dispatch::{Args, CallResult, Ctx};
use crate::random;
use crate::records::effects;
use crate::records::fields::{map, references, size};
use crate::storage;

/// Fields of an SR that both messages take by name.
const GIVEN: [(&str, sr::Field); 6] = [
    ("name_label", sr::Field::name_label),
    ("name_description", sr::Field::name_description),
    ("type", sr::Field::r#type),
    ("content_type", sr::Field::content_type),
    ("shared", sr::Field::shared),
    ("sm_config", sr::Field::sm_config),
];

pub(super) async fn create(ctx: Ctx, args: Args) -> CallResult {
    let id = SrId(Uuid::from_random(random::bytes()));
    let future = Ref::of(id.0);
    let storage = ctx.app.storage.place(future, id, args.text("type"))?;
    let config: Config = args.pairs("device_config");
    ctx.app.storage.check_config(args.text("type"), &config)?;
    ctx.read(|view| check_location(view, &storage.sr, &args, &config))?;
    storage.create(&config).await?;
    let space = storage.attach(&config).await?;
    // A scan finds volumes that already exist.
    let scanned = storage.scan().await;
    let scan = scanned.unwrap_or(SrScan { space, ..SrScan::default() });
    let made = ctx.change_stored(|tx| record(tx, id, &args, (config, &scan))).await;
    if made.is_err() {
        // Without a record, no later call could detach it.
        let _ = storage.detach().await;
    }
    let made = made?;
    ctx.read(|view| ctx.app.storage.of(view, &made))?.calibrate(&ctx.app);
    Ok(made.value())
}

fn check_location(
    view: &View<'_>,
    place: &Ref,
    args: &Args,
    config: &Config,
) -> Result<(), ApiError> {
    location::check_free(view, place, args.text("type"), &Ref::from(args.text("host")), config)
}

fn record(
    tx: &mut Tx<'_>,
    id: SrId,
    args: &Args,
    (config, scan): (Config, &SrScan),
) -> Result<Ref, ApiError> {
    let mut fields = given(args);
    fields.push((sr::Field::uuid.into(), Value::text(id.to_string())));
    fields.push((sr::Field::physical_size.into(), size(scan.space.total)));
    let made = tx.create(&sr::CLASS, fields)?;
    // Another call may have created one meanwhile.
    check_location(&tx.view(), &made, args, &config)?;
    let connection = vec![
        (pbd::Field::host.into(), args.value("host").clone()),
        (pbd::Field::SR.into(), made.value()),
        (pbd::Field::device_config.into(), map(config)),
        (pbd::Field::currently_attached.into(), Value::Bool(true)),
    ];
    tx.create(&pbd::CLASS, connection)?;
    // Copies of other SRs' VDIs are reported by the next scan.
    storage::found(tx, &made, scan)?;
    Ok(made)
}

fn given(args: &Args) -> Vec<(FieldIx, Value)> {
    // Clients find CDs by the type of the content.
    let is_of_cds = args.text("type") == ISO && args.text("content_type").is_empty();
    let value = |name: &str| match name {
        "content_type" if is_of_cds => Value::text(ISO),
        name => args.value(name).clone(),
    };
    GIVEN.iter().map(|(name, field)| ((*field).into(), value(name))).collect()
}

/// Creates the record of an existing SR. `PBD.create` connects it.
pub(super) fn introduce(ctx: &Ctx, args: &Args) -> CallResult {
    let kind = args.text("type");
    if !ctx.app.storage.kinds().any(|known| known == kind) {
        return Err(codes::sr_unknown_driver(kind));
    }
    let uuid = match args.text("uuid") {
        "" => Uuid::from_random(random::bytes()),
        text => text.parse().map_err(|_| codes::uuid_invalid("SR", text))?,
    };
    let made = ctx.change(|tx| {
        if tx.view().by_uuid(&sr::CLASS, &uuid.to_string()).is_ok() {
            return Err(codes::sr_uuid_exists(uuid.to_string()));
        }
        let mut fields = given(args);
        fields.push((sr::Field::uuid.into(), Value::text(uuid.to_string())));
        tx.create(&sr::CLASS, fields)
    })?;
    Ok(made.value())
}

/// Removes the records of an SR with its PBDs and VDIs.
pub(super) fn remove(tx: &mut Tx<'_>, place: &Ref) -> Result<(), ApiError> {
    for disk in references(&tx.view(), place, sr::Field::VDIs)? {
        effects::disk_gone(tx, &disk)?;
    }
    for connection in references(&tx.view(), place, sr::Field::PBDs)? {
        tx.destroy(&pbd::CLASS, &connection)?;
    }
    tx.destroy(&sr::CLASS, place)
}
