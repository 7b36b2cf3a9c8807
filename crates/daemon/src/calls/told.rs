//! What is set of a device is told to whoever serves it.
//!
//! Of two changes the one that is recorded last is the one in force: whoever tells takes the device's
//! turn ([`Machines::lock_settings`](toolstack::machines::Machines::lock_settings)) and reads then, and so does
//! whoever attaches it. Those who waited while somebody read their change have been told for.

use std::sync::Arc;

use model::vm::PowerState;
use toolstack::boxed_future::BoxFuture;
use toolstack::machines::AppliedSettings;
use toolstack::ringway_io::DatapathError;
use xenapi::table::{FieldIx, vm};
use xenapi::{ApiError, Value};

use crate::app::AppState;
use crate::db::{Ref, View};
use crate::errors::sentence;
use crate::records::fields::{flag, reference, uuid};
use crate::records::machine_config::power;

/// A kind of device.
pub(super) struct LiveSettings<S> {
    /// Its identity.
    pub(super) uuid: FieldIx,
    /// The machine that it is of.
    pub(super) vm: FieldIx,
    /// Whether the guest has it.
    pub(super) attached: FieldIx,
    /// What is done to it.
    pub(super) current: FieldIx,
    /// Whether what is set is in force, and why not.
    pub(super) status: [FieldIx; 2],
    /// Reads what is set.
    pub(super) read: fn(&View<'_>, &Ref) -> Result<S, ApiError>,
    /// Tells it. One that nobody serves by now is no failure: whoever attaches it reads for itself.
    pub(super) tell: fn(Arc<AppState>, S) -> BoxFuture<'static, Result<(), DatapathError>>,
}

/// Has what is set of a device told, and its status say how that went. Nothing is told of one that is
/// gone, or that nobody can serve.
///
/// # Errors
/// Why it is not in force.
pub(super) async fn apply<S>(
    app: &Arc<AppState>,
    device: &Ref,
    kind: LiveSettings<S>,
) -> Result<(), String> {
    let asked = app.db.read(|view| {
        let id = uuid(view, device, kind.uuid)?;
        Ok::<_, ApiError>((id, view.generation()))
    });
    let Ok((id, since)) = asked else { return Ok(()) };
    let mut told = app.machines.lock_settings(&id.to_string()).await;
    if let Some(applied_settings) =
        told.as_ref().filter(|applied_settings| applied_settings.at >= since)
    {
        return applied_settings.failure.clone().map_or(Ok(()), Err);
    }
    let read = app.db.read(|view| {
        let settings = (kind.read)(view, device)?;
        let settings = is_served(view, device, &kind)?.then_some(settings);
        Ok::<_, ApiError>((view.generation(), settings))
    });
    let Ok((at, settings)) = read else { return Ok(()) };
    let failure = match settings {
        Some(settings) => (kind.tell)(Arc::clone(app), settings).await.err(),
        None => None,
    };
    let failure = failure.map(|error| match error {
        // Whoever serves it may do so yet.
        DatapathError::Late { .. } => format!("it may not be in force yet: {}", sentence(&error)),
        _ => format!("it is not in force: {}", sentence(&error)),
    });
    note(app, device, kind.status, failure.as_deref());
    *told = Some(AppliedSettings { at, failure: failure.clone() });
    failure.map_or(Ok(()), Err)
}

/// Whether somebody may serve it: it is plugged, or something is under way that may plug it.
fn is_served<S>(view: &View<'_>, device: &Ref, kind: &LiveSettings<S>) -> Result<bool, ApiError> {
    let machine = reference(view, device, kind.vm)?;
    let is_busy = |what: &Ref, field: FieldIx| {
        let under_way = view.get(what, field)?;
        Ok::<_, ApiError>(matches!(under_way, Value::Map(some) if !some.is_empty()))
    };
    Ok(flag(view, device, kind.attached)?
        || power(view, &machine)? != PowerState::Halted
        || is_busy(device, kind.current)?
        || is_busy(&machine, vm::Field::current_operations.into())?)
}

fn note(app: &AppState, device: &Ref, [code, detail]: [FieldIx; 2], failure: Option<&str>) {
    let noted = app.db.write_observed(|tx| {
        tx.set(device, code, Value::Int(i64::from(failure.is_some())))?;
        tx.set(device, detail, Value::text(failure.unwrap_or_default()))
    });
    // A device that is gone by now has no status.
    drop(noted);
}
