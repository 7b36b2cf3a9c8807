//! The weights of the slices, as the host's record says.

use std::sync::Arc;

use toolstack::cgroup::Weights;
use xenapi::table::host;
use xenapi::{ApiError, Value, codes};

use crate::app::AppState;
use crate::db::{Ref, Tx, View};
use crate::dispatch::{Ctx, text};

/// The weight of one of the slices.
type Weight = fn(&mut Weights) -> &mut u32;

/// The keys, each with the weight that it is.
const WEIGHTS: [(&str, Weight); 3] = [
    ("slice-weight-control", |weights| &mut weights.control),
    ("slice-weight-datapath", |weights| &mut weights.datapath),
    ("slice-weight-guests", |weights| &mut weights.guests),
];

/// The weights that are set; those of the configuration where nothing is.
fn weights(app: &AppState, view: &View<'_>, it: &Ref) -> Result<Weights, ApiError> {
    let mut weights = app.slices.usual();
    let Value::Map(set) = view.get(it, host::Field::other_config)? else { return Ok(weights) };
    for (key, weight) in WEIGHTS {
        if let Some(value) = set.get(key).map(text) {
            *weight(&mut weights) = value.parse().map_err(|_| codes::invalid_value(key, value))?;
            weights.check().map_err(|_| codes::invalid_value(key, value))?;
        }
    }
    Ok(weights)
}

pub(super) fn check(ctx: &Ctx, tx: &mut Tx<'_>, it: &Ref) -> Result<(), ApiError> {
    weights(&ctx.app, &tx.view(), it).map(drop)
}

pub(super) fn follow(ctx: &Ctx, it: &Ref) {
    apply(&ctx.app, it);
}

/// Who is in the slices goes on.
pub(super) fn apply(app: &Arc<AppState>, it: &Ref) {
    if app.slices.tree().is_none() {
        return;
    }
    let (app, it) = (Arc::clone(app), it.clone());
    // systemd may have to be asked. The thread reads what holds by then.
    tokio::task::spawn_blocking(move || {
        // It was looked at before it was written.
        app.slices.set(|| app.db.read(|view| weights(&app, view, &it)).ok());
    });
}
