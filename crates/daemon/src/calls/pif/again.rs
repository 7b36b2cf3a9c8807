//! Cards that were plugged before this daemon.
//!
//! A host that starts shows its cards one by one, and not under their names at first; and somebody may
//! just be at one. What cannot be plugged yet is not plugged, as everybody is told, and is when the
//! network devices of the host have changed so that it can be: by this daemon or a later one.
//!
//! A card by which the host is reached is not owed that: its address may be gone for a moment only, as
//! in a restart of the host's networks, and whoever plugged it then would cut the host off.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use toolstack::net::NetError;
use xenapi::table::pif;
use xenapi::{ApiError, Value};

use super::{PifTarget, cards, join, seen, set_attached, turn};
use crate::app::AppState;
use crate::db::{Ref, Tx, View};
use crate::records::fields::{flag, text};

/// The key, in `PIF.other_config`, of one that is to be plugged when it can be.
const OWED: &str = "owed_plug";
/// From a change on so long, others are waited for: a start of a host makes many at once.
const SETTLES: Duration = Duration::from_millis(200);

/// Plugs what was plugged before, also where the host has started anew since. Nobody waits for that.
pub(crate) fn replug(app: &Arc<AppState>) {
    tokio::spawn(plug_all(Arc::clone(app)));
}

async fn plug_all(app: Arc<AppState>) {
    let mut changes = app.drivers.net.changes();
    let mut left: Vec<Ref> = app.db.read(|view| {
        let all = view.all(&pif::CLASS).map(|one| one.reference().clone());
        all.filter(|pif| is_wanted(view, pif)).collect()
    });
    let mut is_first = true;
    loop {
        let mut still = Vec::new();
        for pif in left {
            if !again(&app, &pif, is_first).await {
                still.push(pif);
            }
        }
        (left, is_first) = (still, false);
        if left.is_empty() || changes.changed().await.is_err() {
            return;
        }
        sleep(SETTLES).await;
        changes.mark_unchanged();
    }
}

/// Plugs one if that is wanted still; false: it cannot be plugged yet.
async fn again(app: &AppState, pif: &Ref, is_first: bool) -> bool {
    let Ok(_turn) = turn(app, pif).await else { return true };
    if !app.db.read(|view| is_wanted(view, pif)) {
        return true;
    }
    // Each try asks the kernel for several things.
    if !is_first && !is_there(app, pif).await {
        return false;
    }
    // One that was forgotten meanwhile has no place.
    let Ok(pif_target) = app.db.read(|view| PifTarget::of(view, pif)) else { return true };
    if let Err(error) = join(app, &pif_target).await {
        let is_owed = !matches!(error, NetError::Reached { .. });
        if is_first || !is_owed {
            tracing::warn!(pif = pif.as_str(), is_owed, %error, "a card cannot be plugged again");
        }
        cannot_be(app, pif, is_owed).await;
        return !is_owed;
    }
    tracing::info!(device = pif_target.device, "plugged as before");
    if app.db.write_observed(|tx| set_attached(tx, pif, true)).is_err() {
        // Somebody has forgotten it meanwhile: nobody could unplug it by its record.
        let _left = app.drivers.net.leave(&pif_target.device, &pif_target.bridge).await;
        return true;
    }
    seen(app, pif).await;
    true
}

/// It is not plugged, and is to be where that is owed to it.
async fn cannot_be(app: &AppState, pif: &Ref, is_owed: bool) {
    let was = app.db.read(|view| flag(view, pif, pif::Field::currently_attached));
    // One that was forgotten meanwhile has no record.
    let _gone = app.db.write_observed(|tx| {
        tx.set(pif, pif::Field::currently_attached, Value::Bool(false))?;
        owe(tx, pif, is_owed)
    });
    // Not at each try: it is a change of the record, of which everybody hears.
    if was == Ok(true) {
        seen(app, pif).await;
    }
}

async fn is_there(app: &AppState, pif: &Ref) -> bool {
    let Ok(host_nics) = cards(app).await else { return false };
    let device = app.db.read(|view| text(view, pif, pif::Field::device).map(str::to_owned));
    device.is_ok_and(|device| host_nics.iter().any(|host_nic| host_nic.name == device))
}

fn is_wanted(view: &View<'_>, pif: &Ref) -> bool {
    let is_owed = matches!(
        view.get(pif, pif::Field::other_config),
        Ok(Value::Map(config)) if config.contains_key(OWED)
    );
    is_owed || flag(view, pif, pif::Field::currently_attached) == Ok(true)
}

/// It is to be plugged when it can be, or not.
pub(super) fn owe(tx: &mut Tx<'_>, pif: &Ref, owed: bool) -> Result<(), ApiError> {
    tx.set_key(pif, pif::Field::other_config, OWED, owed.then(|| Value::text("true")))
}
