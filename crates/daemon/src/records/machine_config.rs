//! VM records as the toolstack reads them.

use std::collections::BTreeMap;

use model::domain::pci::MAX_CDS;
use model::domain::{Boot, BootFrom, DomainSpec};
use model::id::{SrId, VbdId, VdiId, VifId, VmId};
use model::plan::Deadlines;
use model::vbd::{DeviceNumber, DiskLimits, Tuning, VbdKind, limits, tuning};
use model::vdi::automaton::Access;
use model::vif::queues;
use model::vm::exits::{ExitPolicy, OnCrash, OnExit};
use model::vm::{PowerState, VmOp};
use toolstack::machines::{DiskRecord, MachineRecord, VifRecord, VolumeRef};
use xenapi::ApiError;
use xenapi::table::{network, sr, vbd, vdi, vif, vm};

use super::boot::{BootRequest, Bootable};
use super::fields::{bytes, flag, int, pairs, reference, references, text, uuid};
use super::interface;
use crate::db::{Object, Ref, View};
use crate::facts;
use crate::ops::pending_op;

/// MTU in bytes where the network sets none.
const MTU: u32 = 1500;

/// A VM record with an unresolved boot request. Its `boot` is empty firmware until then, so that a
/// VM can be shut down even if its kernel is missing.
pub(super) struct MachineConfig {
    pub(super) machine_record: MachineRecord,
    pub(super) boot_request: BootRequest,
    pub(super) bootable: Bootable,
}

pub(super) fn read(
    view: &View<'_>,
    machine: &Ref,
    deadlines: Deadlines,
) -> Result<MachineConfig, ApiError> {
    let mut disks = disks(view, machine)?;
    let mut vifs = vifs(view, machine)?;
    let bootable = bootable(view, &disks, &vifs)?;
    let boot_request = BootRequest::read(view, machine)?;
    for (index, from) in (0..).zip(boot_request.order(&bootable).unwrap_or_default()) {
        match from {
            BootFrom::Disk(vbd) | BootFrom::Cd(vbd) => {
                let found = disks.iter_mut().find(|disk| disk.vbd == vbd);
                found.into_iter().for_each(|disk| disk.boot_index = Some(index));
            }
            BootFrom::Network(vif) => {
                let found = vifs.iter_mut().find(|one| one.vif == vif);
                found.into_iter().for_each(|one| one.boot_index = Some(index));
            }
        }
    }
    let vcpus = int(view, machine, vm::Field::VCPUs_at_startup)?;
    let spec = DomainSpec {
        memory_bytes: bytes(view, machine, vm::Field::memory_static_max)?,
        vcpus: u16::try_from(vcpus).unwrap_or(u16::MAX),
        boot: Boot::Firmware(Vec::new()),
        cds: bootable.drives.clone(),
    };
    let power = power(view, machine)?;
    let after = after(view, machine)?;
    let followed = pending_op::of(view, machine).is_none();
    let machine_record = MachineRecord { power, spec, disks, vifs, after, followed, deadlines };
    Ok(MachineConfig { machine_record, boot_request, bootable })
}

/// Returns all VMs that may have resources on the host.
pub(crate) fn all(view: &View<'_>) -> Vec<VmId> {
    let has = |machine: &Ref, field: vm::Field| flag(view, machine, field).unwrap_or_default();
    let machines = view.all(&vm::CLASS).map(Object::reference).filter(|machine| {
        let stays = [vm::Field::is_a_template, vm::Field::is_control_domain];
        !stays.into_iter().any(|field| has(machine, field))
    });
    machines.filter_map(|machine| uuid(view, machine, vm::Field::uuid).ok().map(VmId)).collect()
}

/// Returns whether an operation creates a domain, which attaches the VM's disks.
pub(crate) fn makes_domain(op: VmOp) -> bool {
    matches!(op, VmOp::Start | VmOp::StartOn | VmOp::CleanReboot | VmOp::HardReboot)
}

/// Returns the power state of a VM.
pub(crate) fn power(view: &View<'_>, machine: &Ref) -> Result<PowerState, ApiError> {
    let name = text(view, machine, vm::Field::power_state)?;
    Ok(PowerState::parse(name).unwrap_or(PowerState::Halted))
}

/// Returns the configured actions for guest exits.
pub(crate) fn after(view: &View<'_>, machine: &Ref) -> Result<ExitPolicy, ApiError> {
    let exit = |field: vm::Field| {
        let name = text(view, machine, field)?;
        Ok::<_, ApiError>(OnExit::parse(name).unwrap_or(OnExit::Destroy))
    };
    let crash = text(view, machine, vm::Field::actions_after_crash)?;
    Ok(ExitPolicy {
        shutdown: exit(vm::Field::actions_after_shutdown)?,
        reboot: exit(vm::Field::actions_after_reboot)?,
        crash: OnCrash::parse(crash).unwrap_or(OnCrash::Destroy),
    })
}

/// Returns disks and CD drives by device number. VBDs with an invalid number are skipped: no call
/// creates them.
fn disks(view: &View<'_>, machine: &Ref) -> Result<Vec<DiskRecord>, ApiError> {
    let mut disks = BTreeMap::new();
    for slot in references(view, machine, vm::Field::VBDs)? {
        let number = DeviceNumber::parse(text(view, &slot, vbd::Field::userdevice)?);
        let kind = VbdKind::parse(text(view, &slot, vbd::Field::r#type)?);
        let (Some(number), Some(kind)) = (number, kind) else { continue };
        if kind != VbdKind::Floppy {
            disks.insert(number, disk(view, &slot, kind, number)?);
        }
    }
    Ok(disks.into_values().collect())
}

fn disk(
    view: &View<'_>,
    slot: &Ref,
    kind: VbdKind,
    number: DeviceNumber,
) -> Result<DiskRecord, ApiError> {
    let (limits, tuning) = disk_settings(view, slot)?;
    let mode = Access::parse(text(view, slot, vbd::Field::mode)?).unwrap_or(Access::Ro);
    Ok(DiskRecord {
        vbd: VbdId(uuid(view, slot, vbd::Field::uuid)?),
        kind,
        userdevice: number.get(),
        access: if kind == VbdKind::Cd { Access::Ro } else { mode },
        resets: facts::resets(view, &reference(view, slot, vbd::Field::VDI)?),
        source: source(view, &reference(view, slot, vbd::Field::VDI)?)?,
        plugged: flag(view, slot, vbd::Field::currently_attached)?,
        boot_index: None,
        limits,
        tuning,
    })
}

/// Returns the settings of a disk.
///
/// # Errors
/// `HANDLE_INVALID` if the VBD does not exist.
pub(crate) fn disk_settings(view: &View<'_>, slot: &Ref) -> Result<(DiskLimits, Tuning), ApiError> {
    let algorithm = text(view, slot, vbd::Field::qos_algorithm_type)?;
    let params = pairs(view, slot, vbd::Field::qos_algorithm_params)?;
    let tuning = tuning(&pairs(view, slot, vbd::Field::other_config)?);
    // Calls reject invalid settings. Older invalid values impose no limit.
    Ok((limits(algorithm, &params).unwrap_or_default(), tuning))
}

/// Returns the volume of a VDI. `None` if there is no VDI.
fn source(view: &View<'_>, disk: &Ref) -> Result<Option<VolumeRef>, ApiError> {
    let Ok(id) = uuid(view, disk, vdi::Field::uuid) else { return Ok(None) };
    let place = reference(view, disk, vdi::Field::SR)?;
    Ok(Some(VolumeRef {
        vdi: VdiId(id),
        sr: SrId(uuid(view, &place, sr::Field::uuid)?),
        sr_kind: text(view, &place, sr::Field::r#type)?.to_owned(),
    }))
}

fn vifs(view: &View<'_>, machine: &Ref) -> Result<Vec<VifRecord>, ApiError> {
    let mut vifs = BTreeMap::new();
    for one in references(view, machine, vm::Field::VIFs)? {
        let Ok(device) = text(view, &one, vif::Field::device)?.parse::<u8>() else { continue };
        let net = reference(view, &one, vif::Field::network)?;
        // The MTU of the network applies to all of its VIFs, as in XenServer.
        let mtu = int(view, &net, network::Field::MTU).ok().and_then(|mtu| u32::try_from(mtu).ok());
        let record = VifRecord {
            vif: VifId(uuid(view, &one, vif::Field::uuid)?),
            device,
            mac: text(view, &one, vif::Field::MAC)?.to_owned(),
            bridge: text(view, &net, network::Field::bridge).unwrap_or_default().to_owned(),
            mtu: mtu.filter(|mtu| *mtu > 0).unwrap_or(MTU),
            limits: interface::may(view, &one)?,
            queues: queues(&pairs(view, &one, vif::Field::other_config)?),
            plugged: flag(view, &one, vif::Field::currently_attached)?,
            boot_index: None,
        };
        vifs.insert(device, record);
    }
    Ok(vifs.into_values().collect())
}

/// Returns the devices that firmware could boot from: the first disk marked as bootable or else the
/// first disk, the CD drives, and the first VIF.
fn bootable(
    view: &View<'_>,
    disks: &[DiskRecord],
    vifs: &[VifRecord],
) -> Result<Bootable, ApiError> {
    let of_kind = |kind| disks.iter().filter(move |disk| disk.kind == kind);
    let mut disk = of_kind(VbdKind::Disk).next().map(|disk| disk.vbd);
    for one in of_kind(VbdKind::Disk) {
        let slot = view.by_uuid(&vbd::CLASS, &one.vbd.to_string())?;
        if flag(view, slot, vbd::Field::bootable)? {
            disk = Some(one.vbd);
            break;
        }
    }
    let drives = of_kind(VbdKind::Cd).take(usize::from(MAX_CDS)).map(|drive| drive.vbd);
    Ok(Bootable { disk, drives: drives.collect(), vif: vifs.first().map(|vif| vif.vif) })
}
