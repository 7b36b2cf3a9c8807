//! Limits of concurrent steps from the host's record.

use model::admission::StepLimits;
use xenapi::table::host;
use xenapi::{ApiError, Value, codes};

use crate::app::AppState;
use crate::db::{Ref, Tx, View};
use crate::dispatch::{Ctx, text};

/// Selects one of the limits.
type Limit = fn(&mut StepLimits) -> &mut u16;

/// Keys in `other_config` with their limits.
const LIMITS: [(&str, Limit); 4] = [
    ("worker-pool-size", |limits| &mut limits.host),
    ("worker-pool-size-machine", |limits| &mut limits.machine),
    ("worker-pool-size-sr", |limits| &mut limits.sr),
    ("boots", |limits| &mut limits.boots),
];

/// Returns the limits. Keys that are not set have the configured values.
fn limits(app: &AppState, view: &View<'_>, it: &Ref) -> Result<StepLimits, ApiError> {
    let mut limits = app.settings.limits;
    let Value::Map(set) = view.get(it, host::Field::other_config)? else { return Ok(limits) };
    for (key, limit) in LIMITS {
        if let Some(value) = set.get(key).map(text) {
            *limit(&mut limits) = value.parse().map_err(|_| codes::invalid_value(key, value))?;
        }
    }
    let wrong =
        |error: model::spec::SpecError| codes::invalid_value(error.field, error.to_string());
    limits.validate().map_err(wrong)?;
    Ok(limits)
}

pub(super) fn check(ctx: &Ctx, tx: &mut Tx<'_>, it: &Ref) -> Result<(), ApiError> {
    limits(&ctx.app, &tx.view(), it).map(drop)
}

pub(super) fn follow(ctx: &Ctx, it: &Ref) {
    apply(&ctx.app, it);
}

/// Applies the limits. Running steps continue.
pub(super) fn apply(app: &AppState, it: &Ref) {
    // The hook checked the record before it was written.
    if let Ok(limits) = app.db.read(|view| limits(app, view, it)) {
        app.machines.set_limits(limits);
    }
}
