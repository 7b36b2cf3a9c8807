//! Live settings of VBDs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use model::caps::Caps;
use model::id::{SrId, VbdId};
use model::poll::EffectivePolling;
use model::report::DiskStats;
use model::rpc::Replace;
use model::share::DiskShare;
use model::spec::{Backend, PollSpec};
use model::vbd::{DeviceNumber, algorithm_with};
use model::vm::PowerState;
use tokio::time::timeout;
use toolstack::ringway_io::{Datapath, DatapathError};
use xenapi::table::{FieldIx, sr, vbd, vdi, vm};
use xenapi::{ApiError, Value, codes};

use crate::app::AppState;
use crate::calls::vbd::create::{limited, tuned};
use crate::db::{Ref, Tx, View, WriteRecord};
use crate::dispatch::{Ctx, Hook};
use crate::ops::live_settings::{LiveSettings, apply};
use crate::records::fields::{flag, pairs, plain, reference, references, text, uuid};
use crate::records::machine_config::{disk_settings, power};

pub(crate) const HOOKS: &[Hook] = &[
    Hook { field: "VBD.mode", check: mode, follow: None },
    Hook { field: "VBD.type", check: halted, follow: None },
    Hook { field: "VBD.userdevice", check: number, follow: None },
    Hook { field: "VBD.qos_algorithm_type", check: kept, follow: Some(follow) },
    Hook { field: "VBD.qos_algorithm_params", check: kept_with_type, follow: Some(follow) },
    Hook { field: "VBD.other_config", check: other_config, follow: Some(follow) },
];

/// Time limit for the statistics of a datapath.
const ASK_DEADLINE: Duration = Duration::from_secs(30);

/// Caps, share and polling that a datapath reports for a disk, and its backend. Without a scheduler, the
/// datapath reports no share.
type ReportedSettings = ((Caps, Option<DiskShare>, Option<EffectivePolling>), Backend);

/// Settings of a served disk.
#[derive(Clone, Debug, PartialEq)]
struct DiskSettings {
    vbd: VbdId,
    sr: SrId,
    caps: Caps,
    share: DiskShare,
    poll: PollSpec,
    /// Type of the SR.
    sr_kind: String,
    /// Limit of the overflow file of its write cache that the record wants, in bytes.
    overflow: Option<u64>,
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

/// Checks that the VBD's VM is halted.
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

/// Checks that no other VBD of the VM has the same device number.
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

fn other_config(_: &Ctx, tx: &mut Tx<'_>, slot: &Ref) -> Result<(), ApiError> {
    tuned(&pairs(&tx.view(), slot, vbd::Field::other_config)?)
}

fn kept(_: &Ctx, tx: &mut Tx<'_>, slot: &Ref) -> Result<(), ApiError> {
    let view = tx.view();
    let algorithm = text(&view, slot, vbd::Field::qos_algorithm_type)?;
    limited(algorithm, &pairs(&view, slot, vbd::Field::qos_algorithm_params)?)
}

/// Sets the type `ringway` if the type is empty and the change sets a parameter of `ringway`, and
/// checks the settings. A removal sets no type, so limits that are turned off stay so.
fn kept_with_type(ctx: &Ctx, tx: &mut Tx<'_>, slot: &Ref) -> Result<(), ApiError> {
    let params = FieldIx::from(vbd::Field::qos_algorithm_params);
    let former = tx.touched().find_map(|write| match write {
        WriteRecord::Set(field, of, former) if field == params && of == slot => Some(plain(former)),
        _ => None,
    });
    let Some(former) = former else { return kept(ctx, tx, slot) };
    let present = pairs(&tx.view(), slot, params)?;
    let set = present.iter().filter(|(key, value)| former.get(*key) != Some(*value));
    let algorithm = text(&tx.view(), slot, vbd::Field::qos_algorithm_type)?;
    let algorithm = algorithm_with(algorithm, set.map(|(key, _)| key.as_str())).to_owned();
    tx.set(slot, vbd::Field::qos_algorithm_type, Value::text(algorithm))?;
    kept(ctx, tx, slot)
}

/// Applies the settings in the background, because the SR may hang.
fn follow(ctx: &Ctx, slot: &Ref) {
    let (app, slot) = (ctx.app.clone(), slot.clone());
    let _handle = ctx.after_commit_detached(async move {
        // The VBD's status fields have the error.
        let _failed = apply(&app, &slot, disk()).await;
        Ok(())
    });
}

/// Applies settings that a former daemon stored and may not have applied. Each SR is handled in its
/// own background task, so that a hung SR does not delay the others.
pub(crate) fn reapply(app: &Arc<AppState>) {
    let slots: Vec<Ref> = app.db.read(|view| view.attached(&vbd::CLASS).cloned().collect());
    let mut by_sr: BTreeMap<SrId, Vec<(Ref, DiskSettings)>> = BTreeMap::new();
    for slot in slots {
        if let Ok(settings) = app.db.read(|view| settings(view, &slot)) {
            by_sr.entry(settings.sr).or_default().push((slot, settings));
        }
    }
    for (sr, disks) in by_sr {
        let app = app.clone();
        tokio::spawn(async move {
            // Without an answer of the datapath, no settings can be applied.
            let Ok(Ok(reported)) = timeout(ASK_DEADLINE, reported_settings(&app, sr)).await else {
                return;
            };
            for (slot, settings) in disks {
                let Some((now, backend)) = reported.get(&settings.vbd.to_string()) else {
                    continue;
                };
                let polling = settings.poll.resolve();
                if *now != (settings.caps, Some(settings.share), Some(polling))
                    || limited_overflow(&app, &settings, backend).is_some()
                {
                    // The VBD's status fields have the error.
                    let _failed = apply(&app, &slot, disk()).await;
                }
            }
        });
    }
}

/// Returns the caps, share, polling and backends of all disks of an SR's datapath, by ID.
async fn reported_settings(
    app: &AppState,
    sr: SrId,
) -> Result<HashMap<String, ReportedSettings>, DatapathError> {
    let stats = app.drivers.io.of(sr).await?.stats().await?;
    let disks = stats.map(|stats| stats.disks).unwrap_or_default().into_iter();
    let of = |disk: DiskStats| {
        let poll = disk.polling.map(|polling| polling.set);
        let share = disk.share.map(|report| report.share);
        (disk.id, ((disk.caps.unwrap_or_default(), share, poll), disk.backend))
    };
    Ok(disks.map(of).collect())
}

fn disk() -> LiveSettings<DiskSettings> {
    LiveSettings {
        uuid: vbd::Field::uuid.into(),
        vm: vbd::Field::VM.into(),
        attached: vbd::Field::currently_attached.into(),
        current: vbd::Field::current_operations.into(),
        status: [vbd::Field::status_code.into(), vbd::Field::status_detail.into()],
        read: settings,
        apply: |app, settings| Box::pin(async move { apply_to_datapath(&app, settings).await }),
    }
}

fn settings(view: &View<'_>, slot: &Ref) -> Result<DiskSettings, ApiError> {
    let (limits, tuning) = disk_settings(view, slot)?;
    let disk = reference(view, slot, vbd::Field::VDI)?;
    // An empty drive has no VDI.
    let place = reference(view, &disk, vdi::Field::SR)?;
    Ok(DiskSettings {
        vbd: VbdId(uuid(view, slot, vbd::Field::uuid)?),
        sr: SrId(uuid(view, &place, sr::Field::uuid)?),
        caps: limits.caps,
        share: limits.share,
        poll: tuning.poll,
        sr_kind: text(view, &place, sr::Field::r#type)?.to_owned(),
        overflow: tuning.write_cache_overflow,
    })
}

async fn apply_to_datapath(app: &AppState, settings: DiskSettings) -> Result<(), DatapathError> {
    let datapath = app.drivers.io.of(settings.sr).await?;
    let id = settings.vbd.to_string();
    let applied = async {
        datapath.caps(&id, &settings.caps).await?;
        datapath.poll(&id, &settings.poll).await?;
        datapath.share(&id, &settings.share).await?;
        limit_overflow(app, &*datapath, (&id, &settings)).await
    };
    match applied.await {
        // The next attach reads the settings again.
        Err(error) if error.is_not_served() => Ok(()),
        result => result,
    }
}

/// Applies the limit of the overflow file of a disk's write cache. One that is lower than the file loses
/// nothing: the file grows no more.
async fn limit_overflow(
    app: &AppState,
    datapath: &dyn Datapath,
    (id, settings): (&str, &DiskSettings),
) -> Result<(), DatapathError> {
    if overflow_size(app, settings).is_none() {
        return Ok(());
    }
    let disks = datapath.stats().await?.map(|stats| stats.disks).unwrap_or_default();
    let Some(disk) = disks.into_iter().find(|disk| disk.id == id) else { return Ok(()) };
    match limited_overflow(app, settings, &disk.backend) {
        Some(backend) => {
            datapath.replace(&Replace { id: id.into(), backend, expect: disk.backend }).await
        }
        None => Ok(()),
    }
}

/// Returns the limit of the overflow file that a disk should have. `None` if the SR has no write caches.
fn overflow_size(app: &AppState, settings: &DiskSettings) -> Option<Option<u64>> {
    app.drivers.sr(&settings.sr_kind)?.overflow_size(settings.sr, settings.overflow).ok()
}

/// Returns the backend of a disk with the limit of its overflow file that it should have, and does not.
fn limited_overflow(app: &AppState, settings: &DiskSettings, present: &Backend) -> Option<Backend> {
    present.with_overflow_size(overflow_size(app, settings)?)
}
