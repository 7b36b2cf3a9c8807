//! Weights of the slices from the host's record.

use std::sync::Arc;

use toolstack::cgroup::Weights;
use xenapi::table::host;
use xenapi::{ApiError, Value, codes};

use crate::app::AppState;
use crate::db::{Ref, Tx, View};
use crate::dispatch::{Ctx, text};

/// Selects the weight of a slice.
type Weight = fn(&mut Weights) -> &mut u32;

/// Keys in `other_config` with their weights.
const WEIGHTS: [(&str, Weight); 3] = [
    ("slice-weight-control", |weights| &mut weights.control),
    ("slice-weight-datapath", |weights| &mut weights.datapath),
    ("slice-weight-guests", |weights| &mut weights.guests),
];

/// Returns the weights. Keys that are not set have the configured values.
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

/// Applies the weights. Processes in the slices continue.
pub(super) fn apply(app: &Arc<AppState>, it: &Ref) {
    if app.slices.tree().is_none() {
        return;
    }
    let (app, it) = (Arc::clone(app), it.clone());
    // systemd may have to set them. The thread reads the weights that are in force by then.
    tokio::task::spawn_blocking(move || {
        // The hook checked the record before it was written.
        app.slices.set(|| app.db.read(|view| weights(&app, view, &it)).ok());
    });
}
