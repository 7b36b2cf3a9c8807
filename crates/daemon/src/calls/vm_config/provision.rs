//! Creation of the disks that a template requests.

use model::vbd::ALGORITHMS;
use model::vm::VmOp;
use xenapi::table::{pool, sr, vbd, vdi, vm};
use xenapi::{ApiError, Value, codes};

use super::disks::{Disk, parse};
use super::snapshot::begin;
use crate::calls::vbd as devices;
use crate::calls::vdi::{create_disk, destroy_disk};
use crate::db::{Ref, View};
use crate::dispatch::generic::nothing;
use crate::dispatch::{Args, CallResult, Ctx};
use crate::records::fields::{pairs, reference, text};

/// Key in `other_config` with the disks.
const DISKS: &str = "disks";

pub(super) async fn provision(ctx: Ctx, args: Args, op: VmOp) -> CallResult {
    let machine = args.object();
    let under_way = begin(&ctx, &machine, op, |_| Ok(())).await?;
    let wanted = ctx.read(|view| wanted(view, &machine))?;
    let mut made = Vec::new();
    let ended = make_all(&ctx, &machine, &wanted, &mut made).await;
    if ended.is_err() {
        for disk in made {
            // A VDI that cannot be destroyed remains in the list of VDIs.
            let _ = destroy_disk(&ctx, &disk).await;
        }
    }
    drop(under_way);
    ended.map(|()| nothing())
}

/// Returns the requested disks with their SRs.
fn wanted(view: &View<'_>, machine: &Ref) -> Result<Vec<(Disk, Ref)>, ApiError> {
    let asked = pairs(view, machine, vm::Field::other_config)?.remove(DISKS).unwrap_or_default();
    let disks = parse(&asked)
        .map_err(|why| codes::value_not_supported("other_config:disks", asked.as_str(), why))?;
    let taken = devices::numbers(view, machine)?;
    let mut wanted = Vec::new();
    for disk in disks {
        if taken.contains(&disk.device) {
            return Err(codes::device_already_exists(disk.device.to_string()));
        }
        let place = match disk.place {
            Some(uuid) => view.by_uuid(&sr::CLASS, &uuid.to_string())?.clone(),
            None => default_place(view)?,
        };
        wanted.push((disk, place));
    }
    Ok(wanted)
}

fn default_place(view: &View<'_>) -> Result<Ref, ApiError> {
    let of_pool =
        |pool: &crate::db::Object| reference(view, pool.reference(), pool::Field::default_SR);
    let place = view.all(&pool::CLASS).next().map(of_pool).transpose()?;
    let place = place.filter(|place| view.object(&sr::CLASS, place).is_ok());
    place.ok_or_else(|| {
        let way = "set the pool's default-SR, or name one in other-config:disks";
        codes::operation_not_allowed(format!("no storage repository is set for the disks: {way}"))
    })
}

async fn make_all(
    ctx: &Ctx,
    machine: &Ref,
    wanted: &[(Disk, Ref)],
    made: &mut Vec<Ref>,
) -> Result<(), ApiError> {
    let mut done = 0.0;
    for (disk, place) in wanted {
        goes_on(ctx)?;
        let fields = ctx.read(|view| fields(view, machine, disk, place))?;
        made.push(create_disk(ctx, place, disk.size, fields).await?);
        done += 1.0;
        ctx.progress(done / wanted.len() as f64);
    }
    goes_on(ctx)?;
    if let Some(task) = &ctx.task {
        task.no_cancel();
    }
    let devices = ctx.change_stored(|tx| {
        for ((disk, _), made) in wanted.iter().zip(made.iter()) {
            tx.create(&vbd::CLASS, device(machine, disk, made))?;
        }
        tx.set_key(machine, vm::Field::other_config, DISKS, None)?;
        tx.set(machine, vm::Field::is_default_template, Value::Bool(false))?;
        tx.set(machine, vm::Field::is_a_template, Value::Bool(false))
    });
    devices.await
}

/// Checks that the call was not cancelled.
fn goes_on(ctx: &Ctx) -> Result<(), ApiError> {
    match &ctx.task {
        Some(task) if task.cancel().is_cancelled() => {
            Err(codes::task_cancelled(task.reference().as_str()))
        }
        _ => Ok(()),
    }
}

type Fields = Vec<(xenapi::table::FieldIx, Value)>;

fn fields(view: &View<'_>, machine: &Ref, disk: &Disk, place: &Ref) -> Result<Fields, ApiError> {
    let name = text(view, machine, vm::Field::name_label)?;
    Ok(vec![
        (vdi::Field::name_label.into(), Value::text(format!("{name} {}", disk.device))),
        (vdi::Field::name_description.into(), Value::text("Made with its machine")),
        (vdi::Field::SR.into(), place.value()),
        (vdi::Field::r#type.into(), Value::text(disk.kind)),
    ])
}

fn device(machine: &Ref, disk: &Disk, made: &Ref) -> Fields {
    let known = ALGORITHMS.iter().map(|name| Value::text(*name)).collect();
    vec![
        (vbd::Field::VM.into(), machine.value()),
        (vbd::Field::VDI.into(), made.value()),
        (vbd::Field::userdevice.into(), Value::text(disk.device.to_string())),
        (vbd::Field::bootable.into(), Value::Bool(disk.bootable)),
        (vbd::Field::mode.into(), Value::text("RW")),
        (vbd::Field::r#type.into(), Value::text("Disk")),
        (vbd::Field::qos_supported_algorithms.into(), Value::Set(known)),
    ]
}
