//! Names of VDIs, which their SRs store so that an empty database gets them back.

use std::sync::Arc;

use model::id::VdiId;
use toolstack::sr::Names;
use xenapi::ApiError;
use xenapi::table::vdi;

use super::SrHandle;
use crate::app::AppState;
use crate::db::{Ref, View};
use crate::dispatch::Ctx;
use crate::records::fields::{reference, text, uuid};

/// Stores the names of a VDI in its SR after the changes of this call. The call does not wait: the
/// storage may hang, and a scan stores what it finds to be different.
pub(crate) fn store(ctx: &Ctx, disk: &Ref) {
    let (app, disk) = (Arc::clone(&ctx.app), disk.clone());
    let _detached = ctx.after_commit_detached(async move {
        store_present(&app, &disk).await;
        Ok(())
    });
}

/// Stores the present names of a VDI in its SR.
pub(crate) async fn store_present(app: &AppState, disk: &Ref) {
    let id = app.db.read(|view| uuid(view, disk, vdi::Field::uuid)).map(VdiId);
    // The VDI may have gone meanwhile.
    let Ok(id) = id else { return };
    // The last of several calls stores the last names: the lock comes before the read.
    let _lock = app.machines.lock_settings(&id.to_string()).await;
    let Ok((storage, names)) = app.db.read(|view| found(app, view, disk)) else { return };
    if !names.are_short() {
        tracing::info!(vdi = %id, "its names are too long to be stored in its storage repository");
        return;
    }
    if let Err(error) = storage.set_names(id, names).await {
        tracing::warn!(vdi = %id, "its names are not stored in its storage repository: {error}");
    }
}

fn found(app: &AppState, view: &View<'_>, disk: &Ref) -> Result<(SrHandle, Names), ApiError> {
    let storage = app.storage.of(view, &reference(view, disk, vdi::Field::SR)?)?;
    Ok((storage, of(view, disk)?))
}

/// Returns the recorded names of a VDI.
pub(super) fn of(view: &View<'_>, disk: &Ref) -> Result<Names, ApiError> {
    Ok(Names {
        label: text(view, disk, vdi::Field::name_label)?.to_owned(),
        description: text(view, disk, vdi::Field::name_description)?.to_owned(),
    })
}
