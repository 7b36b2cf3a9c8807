//! Settings of disk devices, which act on disks that are plugged.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use model::caps::Caps;
use model::id::{SrId, VbdId};
use model::poll::Polling;
use model::report::DiskStats;
use model::spec::PollSpec;
use model::vbd::{DeviceNumber, limits, tuning};
use model::vm::PowerState;
use tokio::time::timeout;
use toolstack::io::IoError;
use xenapi::table::{FieldIx, sr, vbd, vdi, vm};
use xenapi::{ApiError, Value, codes};

use super::make::limited;
use crate::db::{Db, Ref, Tx, View};
use crate::dispatch::{Ctx, Hook};
use crate::errors::sentence;
use crate::house::House;
use crate::records::fields::{flag, pairs, reference, references, text, uuid};
use crate::records::machine::power;

pub(in crate::calls) const HOOKS: &[Hook] = &[
    Hook { field: "VBD.mode", check: mode, follow: None },
    Hook { field: "VBD.type", check: halted, follow: None },
    Hook { field: "VBD.userdevice", check: number, follow: None },
    Hook { field: "VBD.qos_algorithm_type", check: kept, follow: Some(follow) },
    Hook { field: "VBD.qos_algorithm_params", check: kept, follow: Some(follow) },
    Hook { field: "VBD.other_config", check: |_, _, _| Ok(()), follow: Some(follow) },
];

/// Most time for a datapath to say what its disks have.
const ASK_DEADLINE: Duration = Duration::from_secs(30);

/// What a datapath says of a disk.
type Told = (Caps, Option<Polling>);

/// What is set of a disk while it is served.
#[derive(Clone, Debug, PartialEq)]
struct Settings {
    vbd: VbdId,
    sr: SrId,
    caps: Caps,
    poll: PollSpec,
}

fn mode(ctx: &Ctx, tx: &mut Tx<'_>, slot: &Ref) -> Result<(), ApiError> {
    halted(ctx, tx, slot)?;
    let view = tx.view();
    if text(&view, slot, vbd::Field::mode)? != "RW" {
        return Ok(());
    }
    if text(&view, slot, vbd::Field::r#type)? == "CD" {
        return Err(codes::vbd_cds_are_read_only());
    }
    let disk = reference(&view, slot, vbd::Field::VDI)?;
    match flag(&view, &disk, vdi::Field::read_only) {
        Ok(true) => Err(codes::vdi_read_only(disk.as_str())),
        _ => Ok(()),
    }
}

/// The device's machine is halted.
fn halted(_: &Ctx, tx: &mut Tx<'_>, slot: &Ref) -> Result<(), ApiError> {
    let machine = reference(&tx.view(), slot, vbd::Field::VM)?;
    match power(&tx.view(), &machine)? {
        PowerState::Halted => Ok(()),
        other => {
            let expected = PowerState::Halted.error_name();
            Err(codes::bad_power_state(machine.as_str(), expected, other.error_name()))
        }
    }
}

/// No other device of the machine has its number.
fn number(ctx: &Ctx, tx: &mut Tx<'_>, slot: &Ref) -> Result<(), ApiError> {
    halted(ctx, tx, slot)?;
    let view = tx.view();
    let wanted = text(&view, slot, vbd::Field::userdevice)?;
    let number = DeviceNumber::parse(wanted).ok_or_else(|| codes::invalid_device(wanted))?;
    let machine = reference(&view, slot, vbd::Field::VM)?;
    for other in references(&view, &machine, vm::Field::VBDs)? {
        let taken = DeviceNumber::parse(text(&view, &other, vbd::Field::userdevice)?);
        if other != *slot && taken == Some(number) {
            return Err(codes::device_already_exists(number.to_string()));
        }
    }
    tx.set(slot, vbd::Field::userdevice, Value::text(number.to_string()))
}

fn kept(_: &Ctx, tx: &mut Tx<'_>, slot: &Ref) -> Result<(), ApiError> {
    let view = tx.view();
    let algorithm = view.get(slot, vbd::Field::qos_algorithm_type)?;
    limited(Some(algorithm), Some(view.get(slot, vbd::Field::qos_algorithm_params)?))
}

/// Tells whoever serves the disk. Nobody waits for that: its SR may hang.
fn follow(ctx: &Ctx, slot: &Ref) {
    let (house, slot) = (ctx.house.clone(), slot.clone());
    let _told = ctx.aside(async move {
        settled(&house, &slot).await;
        apply(&house, &slot).await;
        Ok(())
    });
}

/// Ends when the device is plugged, or nothing is under way that may plug it. Such an operation has
/// read the settings at its begin.
async fn settled(house: &House, slot: &Ref) {
    let mut changed = house.db.changed();
    loop {
        changed.mark_unchanged();
        let is_settled = house.db.read(|view| is_settled(view, slot));
        // One that is gone has nothing to wait for.
        if is_settled.unwrap_or(true) || changed.changed().await.is_err() {
            return;
        }
    }
}

fn is_settled(view: &View<'_>, slot: &Ref) -> Result<bool, ApiError> {
    let machine = reference(view, slot, vbd::Field::VM)?;
    let rests = |what: &Ref, field: FieldIx| {
        let under_way = view.get(what, field)?;
        Ok::<_, ApiError>(!matches!(under_way, Value::Map(some) if !some.is_empty()))
    };
    Ok(flag(view, slot, vbd::Field::currently_attached)?
        || rests(slot, vbd::Field::current_operations.into())?
            && rests(&machine, vm::Field::current_operations.into())?)
}

async fn apply(house: &House, slot: &Ref) {
    // One that is gone has nothing to do.
    let Ok(id) = house.db.read(|view| uuid(view, slot, vbd::Field::uuid)) else { return };
    let _teller = house.machines.teller(&id.to_string()).await;
    let Ok(Some(now)) = settings(&house.db, slot) else { return };
    let failure = tell(house, &now).await.err();
    let detail = failure.as_ref().map_or_else(String::new, |error| sentence(error));
    let code = i64::from(failure.is_some());
    let noted = house.db.note(|tx| {
        tx.set(slot, vbd::Field::status_code, Value::Int(code))?;
        tx.set(slot, vbd::Field::status_detail, Value::Str(detail))
    });
    // A device that is gone by now has no state.
    drop(noted);
}

/// Tells each datapath what a daemon before this one has stored and may not have told any more; an
/// SR that hangs keeps no other from it. Nobody waits for that.
pub(crate) fn agree(house: &Arc<House>) {
    let slots: Vec<Ref> = house.db.read(|view| view.attached(&vbd::CLASS).cloned().collect());
    let mut by_sr: BTreeMap<SrId, Vec<(Ref, Settings)>> = BTreeMap::new();
    for slot in slots {
        if let Ok(Some(settings)) = settings(&house.db, &slot) {
            by_sr.entry(settings.sr).or_default().push((slot, settings));
        }
    }
    for (sr, disks) in by_sr {
        let house = house.clone();
        tokio::spawn(async move {
            // Where none answers, nothing can be told.
            let Ok(Ok(told)) = timeout(ASK_DEADLINE, told(&house, sr)).await else { return };
            for (slot, settings) in disks {
                let Some(now) = told.get(&settings.vbd.to_string()) else { continue };
                if *now != (settings.caps, Some(settings.poll.resolve())) {
                    apply(&house, &slot).await;
                }
            }
        });
    }
}

/// Limits of the disks that an SR's datapath serves, and how these poll, by their ids.
async fn told(house: &House, sr: SrId) -> Result<HashMap<String, Told>, IoError> {
    let stats = house.drivers.io.of(sr).await?.stats().await?;
    let disks = stats.map(|stats| stats.disks).unwrap_or_default().into_iter();
    let of = |disk: DiskStats| {
        let poll = disk.polling.map(|polling| polling.set);
        (disk.id, (disk.caps.unwrap_or_default(), poll))
    };
    Ok(disks.map(of).collect())
}

/// Nothing for a device that is not plugged: it is served with its settings when it is.
fn settings(db: &Db, slot: &Ref) -> Result<Option<Settings>, ApiError> {
    db.read(|view| {
        if !flag(view, slot, vbd::Field::currently_attached)? {
            return Ok(None);
        }
        let disk = reference(view, slot, vbd::Field::VDI)?;
        let place = reference(view, &disk, vdi::Field::SR)?;
        let algorithm = text(view, slot, vbd::Field::qos_algorithm_type)?;
        let params = pairs(view, slot, vbd::Field::qos_algorithm_params)?;
        Ok(Some(Settings {
            vbd: VbdId(uuid(view, slot, vbd::Field::uuid)?),
            sr: SrId(uuid(view, &place, sr::Field::uuid)?),
            caps: limits(algorithm, &params).unwrap_or_default().caps,
            poll: tuning(&pairs(view, slot, vbd::Field::other_config)?).poll,
        }))
    })
}

async fn tell(house: &House, settings: &Settings) -> Result<(), IoError> {
    let datapath = house.drivers.io.of(settings.sr).await?;
    let id = settings.vbd.to_string();
    datapath.caps(&id, &settings.caps).await?;
    datapath.poll(&id, &settings.poll).await
}
