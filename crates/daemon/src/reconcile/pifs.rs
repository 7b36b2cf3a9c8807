//! Replug of PIFs that were plugged before the daemon started.
//!
//! A booting host shows its NICs one by one, at first under other names, or another process may be
//! changing them. A PIF that cannot be plugged yet is recorded as unplugged. It is plugged when
//! host NICs change so that it can be, by this daemon or a later one.
//!
//! A NIC by which the host is reached gets no pending plug. Its address may be missing only for a
//! moment, such as during a restart of the host's networking. A plug then would disconnect the
//! host.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use toolstack::net::NetError;
use xenapi::table::pif;
use xenapi::{ApiError, Value};

use crate::app::AppState;
use crate::calls::pif::{PifTarget, cards, join, seen, set_attached, turn};
use crate::db::{Ref, Tx, View};
use crate::records::fields::{flag, text};

/// Key in `PIF.other_config` of a pending plug.
const OWED: &str = "owed_plug";
/// Delay after a change of host NICs to collect further ones, because a boot causes many at once.
const SETTLES: Duration = Duration::from_millis(200);

/// Plugs the PIFs that were plugged before, also after a host boot, in the background.
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

/// Plugs a PIF if this is still requested. Returns false if it cannot be plugged yet.
async fn again(app: &AppState, pif: &Ref, is_first: bool) -> bool {
    let Ok(_turn) = turn(app, pif).await else { return true };
    if !app.db.read(|view| is_wanted(view, pif)) {
        return true;
    }
    // The check avoids the several kernel requests of an attempt.
    if !is_first && !is_there(app, pif).await {
        return false;
    }
    // The PIF was forgotten meanwhile.
    let Ok(pif_target) = app.db.read(|view| PifTarget::of(view, pif)) else { return true };
    if let Err(error) = join(app, &pif_target).await {
        let is_owed = !matches!(error, NetError::Reached { .. });
        if is_first || !is_owed {
            tracing::warn!(pif = pif.as_str(), is_owed, %error, "cannot plug the PIF again");
        }
        cannot_be(app, pif, is_owed).await;
        return !is_owed;
    }
    tracing::info!(device = pif_target.device, "PIF plugged again");
    if app.db.write_observed(|tx| set_attached(tx, pif, true)).is_err() {
        // The PIF was forgotten meanwhile, so no later call could unplug it.
        let _left = app.drivers.net.leave(&pif_target.device, &pif_target.bridge).await;
        return true;
    }
    seen(app, pif).await;
    true
}

/// Records the PIF as unplugged, with a pending plug if `is_owed`.
async fn cannot_be(app: &AppState, pif: &Ref, is_owed: bool) {
    let was = app.db.read(|view| flag(view, pif, pif::Field::currently_attached));
    // The PIF may be forgotten meanwhile.
    let _gone = app.db.write_observed(|tx| {
        tx.set(pif, pif::Field::currently_attached, Value::Bool(false))?;
        owe(tx, pif, is_owed)
    });
    // Only the first attempt updates the record, because each change sends an event.
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
    let is_plugged = is_owed || flag(view, pif, pif::Field::currently_attached) == Ok(true);
    // The toolstack does not plug what the host's own tools manage.
    is_plugged && flag(view, pif, pif::Field::managed) == Ok(true)
}

/// Sets or removes the pending plug of a PIF.
pub(crate) fn owe(tx: &mut Tx<'_>, pif: &Ref, owed: bool) -> Result<(), ApiError> {
    tx.set_key(pif, pif::Field::other_config, OWED, owed.then(|| Value::text("true")))
}
