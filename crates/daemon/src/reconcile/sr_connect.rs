//! Attaches SRs at the start of the daemon: every recorded PBD is attached again.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use toolstack::sr::Config;
use toolstack::sr::golden::CACHE_SR;
use xenapi::table::{pbd, sr};
use xenapi::{ApiError, Value};

use crate::app::AppState;
use crate::db::{Object, Ref, View};
use crate::ops::message::{MessageDraft, create_message};
use crate::records::fields::{pairs, reference, references, text};
use crate::storage::{self, SrHandle};

/// Attaches every SR in a task of its own. An SR whose cache is in another one waits for that.
pub(super) fn all(app: &Arc<AppState>) -> JoinSet<()> {
    let connections: Vec<Ref> =
        app.db.read(|view| view.all(&pbd::CLASS).map(Object::reference).cloned().collect());
    let caches = app.db.read(|view| connections.iter().map(|one| cache_sr(view, one)).collect());
    let pending: BTreeSet<Ref> = connections.iter().cloned().collect();
    let pending = Arc::new(watch::Sender::new(pending));
    let mut all = JoinSet::new();
    for (connection, cache) in connections.into_iter().zip::<Vec<_>>(caches) {
        let (app, pending) = (app.clone(), Arc::clone(&pending));
        all.spawn(async move {
            let mut waits = pending.subscribe();
            // The sender lives as long as this task.
            let _ = waits.wait_for(|pending| cache.iter().all(|one| !pending.contains(one))).await;
            if let Err(error) = connect(&app, &connection).await {
                failed(&app, &connection, &error);
            }
            pending.send_modify(|pending| {
                pending.remove(&connection);
            });
        });
    }
    all
}

/// Returns the PBDs of the SR in which the SR of this PBD has its cache.
fn cache_sr(view: &View<'_>, connection: &Ref) -> Vec<Ref> {
    let named = |connection: &Ref| -> Option<String> {
        let config: Config = pairs(view, connection, pbd::Field::device_config).ok()?;
        config.get(CACHE_SR).cloned()
    };
    let place = named(connection).and_then(|uuid| view.by_uuid(&sr::CLASS, &uuid).ok());
    let others = place.map(|place| references(view, place, sr::Field::PBDs).unwrap_or_default());
    // Two that name each other do not wait. Their attaches are refused.
    others.unwrap_or_default().into_iter().filter(|other| named(other).is_none()).collect()
}

async fn connect(app: &Arc<AppState>, connection: &Ref) -> Result<(), ApiError> {
    let (storage, config): (SrHandle, Config) = app.db.read(|view| {
        let place = reference(view, connection, pbd::Field::SR)?;
        Ok::<_, ApiError>((
            app.storage.of(view, &place)?,
            pairs(view, connection, pbd::Field::device_config)?,
        ))
    })?;
    let space = storage.attach(&config).await?;
    app.db.write_observed(|tx| {
        tx.set(connection, pbd::Field::currently_attached, Value::Bool(true))?;
        storage::measured(tx, &storage.sr, space)
    })?;
    storage.tidy(app).await;
    storage.calibrate(app);
    // The SR stays attached even if the scan fails.
    if let Err(error) = storage::scan(app, &storage).await {
        report_scan(app, &storage, &error);
    }
    storage.coalesce(app);
    Ok(())
}

/// Reports a failed scan. The VDI records stay as they were.
fn report_scan(app: &AppState, storage: &SrHandle, error: &ApiError) {
    let body = format!("The storage repository was not scanned: {error}. Fix that, then scan it.");
    let (name, cls, uuid) = ("SR_SCAN_FAILED_ON_SERVER_START", "SR", storage.id.to_string());
    tracing::warn!(sr = %storage.id, "{body}");
    let message_draft = MessageDraft { name, priority: 3, cls, uuid: &uuid, body: &body };
    create_message(&app.db, &message_draft, app.clock.date());
}

/// Records that the PBD is not attached, and reports it.
fn failed(app: &AppState, connection: &Ref, error: &ApiError) {
    let noted = app.db.write_observed(|tx| {
        tx.set(connection, pbd::Field::currently_attached, Value::Bool(false))?;
        let place = reference(&tx.view(), connection, pbd::Field::SR)?;
        text(&tx.view(), &place, sr::Field::uuid).map(str::to_owned)
    });
    let Ok(uuid) = noted else { return };
    let body =
        format!("The storage repository is not attached: {error}. Fix that, then plug its PBD.");
    let (name, cls) = ("PBD_PLUG_FAILED_ON_SERVER_START", "SR");
    let message_draft = MessageDraft { name, priority: 2, cls, uuid: &uuid, body: &body };
    create_message(&app.db, &message_draft, app.clock.date());
}
