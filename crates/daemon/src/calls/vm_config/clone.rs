//! Clones of VMs and templates.

use std::collections::{BTreeMap, BTreeSet};

use model::vbd::WriteCache;
use model::vm::VmOp;
use xenapi::table::{FieldIx, vbd, vm};
use xenapi::{ApiError, Value, codes};

use super::snapshot::begin;
use super::{MAC_SEED, allowed, create};
use crate::calls::vdi::{clone_disk, copy_disk, destroy_disk};
use crate::calls::vif;
use crate::db::{Ref, Tx, View};
use crate::dispatch::{Args, CallResult, Ctx};
use crate::ops::pending_op::OWED;
use crate::reconcile::full_storage;
use crate::records::fields::{flag, reference, references, text};
use crate::records::machine_config::disk_settings;
use crate::storage::layers;

/// Fields that a clone does not inherit.
const OWN: [vm::Field; 15] = [
    vm::Field::uuid,
    vm::Field::name_label,
    vm::Field::power_state,
    vm::Field::is_default_template,
    vm::Field::is_control_domain,
    vm::Field::is_a_snapshot,
    vm::Field::snapshot_of,
    vm::Field::resident_on,
    vm::Field::scheduled_to_be_resident_on,
    vm::Field::domid,
    vm::Field::metrics,
    vm::Field::guest_metrics,
    vm::Field::suspend_VDI,
    vm::Field::blobs,
    vm::Field::generation_id,
];
/// Keys in `other_config` that a clone does not inherit.
const OWN_CONFIG: [&str; 3] = ["default_template", OWED, full_storage::KEY];
/// Fields of a snapshot that its clone does not inherit.
const OF_SNAPSHOT: [vm::Field; 5] = [
    vm::Field::snapshot_time,
    vm::Field::snapshot_info,
    vm::Field::snapshot_metadata,
    vm::Field::transportable_snapshot_id,
    vm::Field::parent,
];
/// Type of a VBD whose image is not copied.
const CD: &str = "CD";
/// Fields of a VBD that a clone inherits.
const OF_DEVICE: [vbd::Field; 10] = [
    vbd::Field::userdevice,
    vbd::Field::bootable,
    vbd::Field::mode,
    vbd::Field::r#type,
    vbd::Field::unpluggable,
    vbd::Field::empty,
    vbd::Field::other_config,
    vbd::Field::qos_algorithm_type,
    vbd::Field::qos_algorithm_params,
    vbd::Field::qos_supported_algorithms,
];

/// Copies of VDIs, by VDI.
pub(super) type Copied = BTreeMap<Ref, Ref>;

pub(super) async fn clone(ctx: Ctx, args: Args, op: VmOp) -> CallResult {
    let from = args.object();
    if ctx.read(|view| copied_disks(view, &from))?.is_empty() {
        // Without disks it is one change, for which nothing waits.
        let made = ctx.change(|tx| {
            allowed(tx, &from, op)?;
            record(tx, &from, args.text("new_name"), &Copied::new())
        })?;
        return Ok(made.value());
    }
    let under_way = begin(&ctx, &from, op, |_| Ok(())).await?;
    let all = ctx.read(|view| copied_disks(view, &from))?;
    let copies = clone_disks(&ctx, &all).await?;
    let made = finish(&ctx, &from, args.text("new_name"), copies).await?;
    drop(under_way);
    Ok(made.value())
}

/// Copies a VM with all bytes of its disks.
pub(super) async fn copy(ctx: Ctx, args: Args, op: VmOp) -> CallResult {
    let (from, to) = (args.object(), args.reference("sr"));
    let to = Some(to).filter(|place| !place.is_null());
    let under_way = begin(&ctx, &from, op, |_| Ok(())).await?;
    let all = ctx.read(|view| copied_disks(view, &from))?;
    let mut copies = Copied::new();
    for (done, disk) in all.iter().enumerate() {
        let progress = |part: f64| ctx.progress((done as f64 + part) / all.len() as f64);
        match copy_disk(&ctx, disk, to.as_ref(), &progress).await {
            Ok(copy) => copies.insert(disk.clone(), copy),
            Err(error) => {
                destroy_disks(&ctx, copies.into_values().collect()).await;
                return Err(error);
            }
        };
    }
    let made = finish(&ctx, &from, args.text("new_name"), copies).await?;
    drop(under_way);
    Ok(made.value())
}

/// Records a VM with these copies of its VDIs.
async fn finish(ctx: &Ctx, from: &Ref, name: &str, copies: Copied) -> Result<Ref, ApiError> {
    let recorded = ctx.change_stored(|tx| record(tx, from, name, &copies)).await;
    if recorded.is_err() {
        destroy_disks(ctx, copies.into_values().collect()).await;
    }
    recorded
}

/// Returns the VDIs of a VM's disks that a clone gets copies of. It shares the others: those whose
/// volumes have a layer of each VBD.
///
/// # Errors
/// `OPERATION_NOT_ALLOWED` if the VM has a layer that outlives its runs: a clone would lose it.
fn copied_disks(view: &View<'_>, machine: &Ref) -> Result<Vec<Ref>, ApiError> {
    let is_template = flag(view, machine, vm::Field::is_a_template)?;
    for slot in references(view, machine, vm::Field::VBDs)? {
        let disk = reference(view, &slot, vbd::Field::VDI)?;
        let (_, tuning) = disk_settings(view, &slot)?;
        let stays = tuning.write_cache == Some(WriteCache::Persistent);
        if stays && !is_template && !disk.is_null() && layers::has_layers(view, &disk)? {
            let why = "the writes of its disks with write-cache=persistent would not be in the \
                       clone; clone the template of the machine instead";
            return Err(codes::operation_not_allowed(why));
        }
    }
    let mut disks = disks(view, machine)?;
    let shared: BTreeSet<Ref> = shared_disks(view, &disks)?.into_iter().collect();
    disks.retain(|disk| !shared.contains(disk));
    Ok(disks)
}

/// Returns those of these VDIs that clones share.
fn shared_disks(view: &View<'_>, disks: &[Ref]) -> Result<Vec<Ref>, ApiError> {
    let mut shared = Vec::new();
    for disk in disks {
        if layers::has_layers(view, disk)? {
            shared.push(disk.clone());
        }
    }
    Ok(shared)
}

fn record(tx: &mut Tx<'_>, from: &Ref, name: &str, copies: &Copied) -> Result<Ref, ApiError> {
    let mut copies = copies.clone();
    let shared = shared_disks(&tx.view(), &disks(&tx.view(), from)?)?;
    copies.extend(shared.into_iter().map(|disk| (disk.clone(), disk)));
    let mut fields = copy_fields(&tx.view(), from)?;
    fields.push((vm::Field::name_label.into(), Value::text(name)));
    let own = OF_SNAPSHOT.map(FieldIx::from);
    fields.retain(|(field, _)| !own.contains(field));
    let made = tx.create(&vm::CLASS, fields)?;
    tx.set_key(&made, vm::Field::other_config, MAC_SEED, None)?;
    create::completed(tx, &made)?;
    copy_devices(tx, from, &made, &copies, false)?;
    Ok(made)
}

/// Returns the VDIs of a VM's disks, each once. CDs are not among them.
pub(super) fn disks(view: &View<'_>, machine: &Ref) -> Result<Vec<Ref>, ApiError> {
    let mut disks = Vec::new();
    for slot in references(view, machine, vm::Field::VBDs)? {
        let disk = reference(view, &slot, vbd::Field::VDI)?;
        if text(view, &slot, vbd::Field::r#type)? != CD && !disk.is_null() && !disks.contains(&disk)
        {
            disks.push(disk);
        }
    }
    Ok(disks)
}

/// Clones VDIs.
///
/// # Errors
/// Those of the SRs. No clone exists then.
pub(super) async fn clone_disks(ctx: &Ctx, disks: &[Ref]) -> Result<Copied, ApiError> {
    let mut copies = Copied::new();
    for disk in disks {
        match clone_disk(ctx, disk).await {
            Ok(clone) => copies.insert(disk.clone(), clone),
            Err(error) => {
                destroy_disks(ctx, copies.into_values().collect()).await;
                return Err(error);
            }
        };
    }
    Ok(copies)
}

/// Destroys VDIs. One that cannot be destroyed remains in the list of VDIs.
pub(super) async fn destroy_disks(ctx: &Ctx, disks: Vec<Ref>) {
    for disk in disks {
        if let Err(error) = destroy_disk(ctx, &disk).await {
            tracing::warn!(%disk, %error, "a disk that nothing uses could not be destroyed");
        }
    }
}

/// Returns the fields of a VM that a clone or a snapshot has, too.
pub(super) fn copy_fields(view: &View<'_>, from: &Ref) -> Result<Vec<(FieldIx, Value)>, ApiError> {
    let own = OWN.map(FieldIx::from);
    let copied = vm::CLASS.numbers().filter(|(number, field)| {
        field.inverse.is_none() && !field.volatile && !own.contains(number)
    });
    let other_config = FieldIx::from(vm::Field::other_config);
    copied
        .map(|(number, _)| {
            let mut value = view.get(from, number)?.clone();
            if let (true, Value::Map(pairs)) = (number == other_config, &mut value) {
                pairs.retain(|key, _| !OWN_CONFIG.contains(&key.as_str()));
            }
            Ok((number, value))
        })
        .collect()
}

/// Copies the VBDs and VIFs of a VM. VBDs get the copies of their VDIs; those of a disk without a
/// copy are left out. With `same_macs`, VIFs keep their MAC addresses.
pub(super) fn copy_devices(
    tx: &mut Tx<'_>,
    from: &Ref,
    to: &Ref,
    copies: &Copied,
    same_macs: bool,
) -> Result<(), ApiError> {
    for slot in references(&tx.view(), from, vm::Field::VBDs)? {
        let view = tx.view();
        let disk = reference(&view, &slot, vbd::Field::VDI)?;
        let is_disk = text(&view, &slot, vbd::Field::r#type)? != CD;
        let disk = match copies.get(&disk) {
            Some(copy) => copy.value(),
            None if is_disk && !disk.is_null() => continue,
            None => disk.value(),
        };
        let mut fields = vec![(vbd::Field::VM.into(), to.value()), (vbd::Field::VDI.into(), disk)];
        for field in OF_DEVICE {
            fields.push((field.into(), view.get(&slot, field)?.clone()));
        }
        tx.create(&vbd::CLASS, fields)?;
    }
    vif::copied(tx, from, to, same_macs)
}
