//! Layers that slots have over volumes that are never written.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::id::VbdId;
use toolstack::sr::golden::GOLDEN;
use xenapi::ApiError;
use xenapi::table::{sr, vbd, vdi};

use super::SrHandle;
use crate::app::AppState;
use crate::db::{Ref, View};
use crate::dispatch::Ctx;
use crate::records::fields::{reference, text, uuid};

/// Returns whether each slot that writes the volume of this VDI has a layer of its own.
pub(crate) fn has_layers(view: &View<'_>, disk: &Ref) -> Result<bool, ApiError> {
    let place = reference(view, disk, vdi::Field::SR)?;
    Ok(text(view, &place, sr::Field::r#type)? == GOLDEN)
}

/// Removes the layers of these VBDs after the changes of this call, which destroys them. The call does
/// not wait: the storage may hang. A scan reports layers that are left.
pub(crate) fn destroy(ctx: &Ctx, slots: &[Ref]) {
    let found = slots.iter().filter_map(|slot| ctx.read(|view| owner(ctx, view, slot)).ok()?);
    let layers: Vec<_> = found.collect();
    if layers.is_empty() {
        return;
    }
    let app = Arc::clone(&ctx.app);
    let _detached = ctx.after_commit_detached(async move {
        for (storage, slot) in layers {
            // Changes that were rolled back destroyed no VBD.
            if !app.db.read(|view| is_recorded(view, slot))
                && let Err(error) = storage.destroy_layers(slot).await
            {
                tracing::warn!(sr = %storage.id, vbd = %slot, "its layer is left: {error}");
            }
        }
        Ok(())
    });
}

/// Returns the slot of a VBD and its SR, if its volume has layers.
fn owner(ctx: &Ctx, view: &View<'_>, slot: &Ref) -> Result<Option<(SrHandle, VbdId)>, ApiError> {
    let disk = reference(view, slot, vbd::Field::VDI)?;
    if disk.is_null() || !has_layers(view, &disk)? {
        return Ok(None);
    }
    let storage = ctx.app.storage.of(view, &reference(view, &disk, vdi::Field::SR)?)?;
    Ok(Some((storage, VbdId(uuid(view, slot, vbd::Field::uuid)?))))
}

fn is_recorded(view: &View<'_>, slot: VbdId) -> bool {
    view.by_uuid(&vbd::CLASS, &slot.to_string()).is_ok()
}

/// Returns the slots without a record that have layers in an SR.
pub(super) async fn left(app: &AppState, storage: &SrHandle) -> BTreeSet<VbdId> {
    let layers = storage.layers().await.unwrap_or_default();
    app.db.read(|view| layers.into_iter().filter(|slot| !is_recorded(view, *slot)).collect())
}
