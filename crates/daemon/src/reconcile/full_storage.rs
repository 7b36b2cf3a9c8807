//! Disks that wait because their storage is full.
//!
//! `ringway-io` reports them when they change. [`KEY`] in `other_config` of the SR and of each VM
//! lists the VBDs that wait, so clients see it, and a restarted daemon knows what it has reported.
//! A message and a line of the log name disk, VM and SR at each onset. `ringway-io` limits how often
//! a disk is reported.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::id::{Uuid, VbdId};
use model::vbd::WRITE_CACHE_OVERFLOW;
use tokio::sync::mpsc::Receiver;
use toolstack::ringway_io::FullDisks;
use toolstack::sr::golden::GOLDEN;
use xenapi::table::{FieldIx, sr, vbd, vdi, vm};
use xenapi::{ApiError, Date, Value};

use crate::app::AppState;
use crate::db::{Object, Ref, Tx, View};
use crate::ops::message::{MessageDraft, write};
use crate::records::fields::{pairs, reference, text, uuid};

/// Key in `SR.other_config` and `VM.other_config`: UUIDs of the VBDs that wait, comma-separated.
pub(crate) const KEY: &str = "storage-full";
/// Name of the message.
const MESSAGE: &str = "SR_FULL";

/// Records the disks that wait, after each change.
pub(super) async fn follow(app: Arc<AppState>, mut changes: Receiver<FullDisks>) {
    while let Some(full_disks) = changes.recv().await {
        note(&app, &full_disks);
    }
}

/// Removes what an earlier boot of the host has left: no process of that time runs.
pub(super) fn forget(app: &AppState) {
    let marked = app.db.read(|view| {
        let all = view.all(&sr::CLASS).map(Object::reference);
        let marked = all.filter(|place| !listed(view, place, sr::Field::other_config).is_empty());
        let ids = marked.map(|place| uuid(view, place, sr::Field::uuid));
        ids.filter_map(Result::ok).map(model::id::SrId).collect::<Vec<_>>()
    });
    for sr in marked {
        note(app, &FullDisks { sr, disks: BTreeSet::new() });
    }
}

/// Returns the number of disks that wait.
pub(crate) fn count(view: &View<'_>) -> usize {
    let places = view.all(&sr::CLASS).map(Object::reference);
    places.map(|place| listed(view, place, sr::Field::other_config).len()).sum()
}

fn note(app: &AppState, full_disks: &FullDisks) {
    let now = app.clock.date();
    let noted = app.db.write_observed(|tx| record(tx, full_disks, now));
    if let Err(error) = noted {
        tracing::warn!(sr = %full_disks.sr, "disks on full storage are not recorded: {error}");
    }
}

fn record(tx: &mut Tx<'_>, FullDisks { sr, disks }: &FullDisks, now: Date) -> Result<(), ApiError> {
    let sr_uuid = sr.to_string();
    let place = tx.view().by_uuid(&sr::CLASS, &sr_uuid)?.clone();
    let before = listed(&tx.view(), &place, sr::Field::other_config);
    for vbd in disks.difference(&before) {
        let names = names(&tx.view(), &place, *vbd);
        let body = format!(
            "Storage is full: writes of {names} wait until there is room. {}",
            advice(&tx.view(), &place, *vbd)
        );
        tracing::warn!(%sr, %vbd, "{body}");
        let draft =
            MessageDraft { name: MESSAGE, priority: 2, cls: "SR", uuid: &sr_uuid, body: &body };
        write(tx, &draft, now)?;
    }
    for vbd in before.difference(disks) {
        let names = names(&tx.view(), &place, *vbd);
        tracing::info!(%sr, %vbd, "no write of {names} waits for room any more");
    }
    list(tx, &place, sr::Field::other_config.into(), disks)?;
    let machines: Vec<Ref> = tx.view().all(&vm::CLASS).map(Object::reference).cloned().collect();
    for machine in machines {
        let view = tx.view();
        let known = listed(&view, &machine, vm::Field::other_config);
        let has = |vbd: &&VbdId| is_of(&view, **vbd, &machine);
        let now_full: BTreeSet<VbdId> =
            known.difference(&before).chain(disks.iter().filter(has)).copied().collect();
        list(tx, &machine, vm::Field::other_config.into(), &now_full)?;
    }
    Ok(())
}

/// Says what makes room for the writes of a VBD. Those of a golden image may be at a limit of their own.
fn advice(view: &View<'_>, place: &Ref, vbd: VbdId) -> String {
    match text(view, place, sr::Field::r#type) {
        Ok(GOLDEN) => format!(
            "Free space, or raise the limit of its overflow file (xe vbd-param-set uuid={vbd} \
             other-config:{WRITE_CACHE_OVERFLOW}=BYTES). `ringway why` says which of them is full."
        ),
        _ => "Free space, or add some.".into(),
    }
}

/// Returns the listed VBDs.
fn listed(view: &View<'_>, of: &Ref, config: impl Into<FieldIx>) -> BTreeSet<VbdId> {
    let config = pairs(view, of, config).unwrap_or_default();
    let list = config.get(KEY).map_or("", String::as_str).split(',');
    list.filter_map(|one| one.parse::<Uuid>().ok()).map(VbdId).collect()
}

/// Lists these VBDs. An unchanged list makes no change.
fn list(
    tx: &mut Tx<'_>,
    of: &Ref,
    config: FieldIx,
    vbds: &BTreeSet<VbdId>,
) -> Result<(), ApiError> {
    if listed(&tx.view(), of, config) == *vbds {
        return Ok(());
    }
    let all: Vec<String> = vbds.iter().map(ToString::to_string).collect();
    tx.set_key(of, config, KEY, (!all.is_empty()).then(|| Value::Str(all.join(","))))
}

fn is_of(view: &View<'_>, vbd: VbdId, machine: &Ref) -> bool {
    let slot = view.by_uuid(&vbd::CLASS, &vbd.to_string());
    slot.is_ok_and(|slot| reference(view, slot, vbd::Field::VM).is_ok_and(|vm| vm == *machine))
}

/// Names disk, VM and SR. An object may be destroyed meanwhile.
fn names(view: &View<'_>, place: &Ref, vbd: VbdId) -> String {
    let known = || {
        let slot = view.by_uuid(&vbd::CLASS, &vbd.to_string())?;
        let disk = reference(view, slot, vbd::Field::VDI)?;
        let machine = reference(view, slot, vbd::Field::VM)?;
        let disk = text(view, &disk, vdi::Field::name_label)?;
        let machine = text(view, &machine, vm::Field::name_label)?;
        Ok::<_, ApiError>(format!("disk `{disk}` of machine `{machine}`"))
    };
    let disk = known().unwrap_or_else(|_| format!("device {vbd}"));
    let place = text(view, place, sr::Field::name_label).unwrap_or_default();
    format!("{disk} in storage repository `{place}`")
}
