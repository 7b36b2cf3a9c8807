//! Live settings: applies settings of a device to its datapath.
//!
//! The last recorded change must win. So the caller takes the lock of the device
//! ([`Machines::lock_settings`](toolstack::machines::Machines::lock_settings)) and then reads the
//! settings. An attach does the same. A caller whose change was already read by the previous holder
//! does nothing.

use std::sync::Arc;

use error_causes::error_chain;
use model::vm::PowerState;
use toolstack::boxed_future::BoxFuture;
use toolstack::machines::AppliedSettings;
use toolstack::ringway_io::DatapathError;
use xenapi::table::{FieldIx, vm};
use xenapi::{ApiError, Value};

use crate::app::AppState;
use crate::db::{Ref, View};
use crate::records::fields::{flag, reference, uuid};
use crate::records::machine_config::power;

/// Fields and functions of a kind of device.
pub(crate) struct LiveSettings<S> {
    /// UUID field.
    pub(crate) uuid: FieldIx,
    /// VM field.
    pub(crate) vm: FieldIx,
    /// Field that says whether the device is plugged.
    pub(crate) attached: FieldIx,
    /// Field of the operations under way.
    pub(crate) current: FieldIx,
    /// Fields for the status code and its detail.
    pub(crate) status: [FieldIx; 2],
    /// Reads the settings from the record.
    pub(crate) read: fn(&View<'_>, &Ref) -> Result<S, ApiError>,
    /// Applies the settings. A device that is not served is no failure, because an attach reads
    /// them again.
    pub(crate) apply: fn(Arc<AppState>, S) -> BoxFuture<'static, Result<(), DatapathError>>,
}

/// Applies the device's settings to its datapath and records the outcome in the device's status
/// fields. Does nothing if the device does not exist or is not served.
///
/// # Errors
/// A sentence that says why the settings are not in force.
pub(crate) async fn apply<S>(
    app: &Arc<AppState>,
    device: &Ref,
    kind: LiveSettings<S>,
) -> Result<(), String> {
    let asked = app.db.read(|view| {
        let id = uuid(view, device, kind.uuid)?;
        Ok::<_, ApiError>((id, view.generation()))
    });
    let Ok((id, since)) = asked else { return Ok(()) };
    let mut applied = app.machines.lock_settings(&id.to_string()).await;
    if let Some(applied_settings) =
        applied.as_ref().filter(|applied_settings| applied_settings.at >= since)
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
        Some(settings) => (kind.apply)(Arc::clone(app), settings).await.err(),
        None => None,
    };
    let failure = failure.map(|error| match error {
        // After a timeout, the datapath may still apply the settings.
        DatapathError::Late { .. } => {
            format!("setting may not be in force: {}", error_chain(&error))
        }
        _ => format!("setting not in force: {}", error_chain(&error)),
    });
    note(app, device, kind.status, failure.as_deref());
    *applied = Some(AppliedSettings { at, failure: failure.clone() });
    failure.map_or(Ok(()), Err)
}

/// Returns whether a datapath may serve the device: it is plugged, or an operation may plug it.
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
    // A destroyed device has no status.
    drop(noted);
}
