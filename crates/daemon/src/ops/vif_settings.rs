//! Live settings of VIFs.

use std::sync::Arc;

use model::id::VifId;
use model::nic::NicLimits;
use xenapi::table::vif;
use xenapi::{ApiError, codes};

use crate::app::AppState;
use crate::db::{Ref, Tx};
use crate::dispatch::{Ctx, Hook};
use crate::ops::live_settings::{LiveSettings, apply};
use crate::records::fields::uuid;
use crate::records::interface;

pub(crate) const HOOKS: &[Hook] = &[
    Hook { field: "VIF.locking_mode", check: kept, follow: Some(follow) },
    Hook { field: "VIF.ipv4_allowed", check: kept, follow: Some(follow) },
    Hook { field: "VIF.ipv6_allowed", check: kept, follow: Some(follow) },
    Hook { field: "VIF.qos_algorithm_type", check: kept, follow: Some(follow) },
    Hook { field: "VIF.qos_algorithm_params", check: kept, follow: Some(follow) },
    Hook { field: "VIF.other_config", check: kept, follow: Some(follow) },
];

fn kept(_: &Ctx, tx: &mut Tx<'_>, device: &Ref) -> Result<(), ApiError> {
    interface::check(&tx.view(), device)
}

/// Applies the settings to the switch. The call is answered when they are in force, so that an
/// address lock has a definite start.
fn follow(ctx: &Ctx, device: &Ref) {
    let (app, device) = (ctx.app.clone(), device.clone());
    ctx.after_commit(async move {
        let applied = apply(&app, &device, interface()).await;
        applied.map_err(|why| {
            let why = format!("recorded, but {why}");
            codes::device_attach_rejected("VIF", device.as_str(), why)
        })
    });
}

/// Applies settings that a former daemon stored and may not have applied, in the background.
pub(crate) fn reapply(app: &Arc<AppState>) {
    let app = app.clone();
    tokio::spawn(async move {
        let devices: Vec<Ref> = app.db.read(|view| view.attached(&vif::CLASS).cloned().collect());
        for device in devices {
            // The VIF's status fields have the error.
            let _failed = apply(&app, &device, interface()).await;
        }
    });
}

fn interface() -> LiveSettings<(VifId, NicLimits)> {
    LiveSettings {
        uuid: vif::Field::uuid.into(),
        vm: vif::Field::VM.into(),
        attached: vif::Field::currently_attached.into(),
        current: vif::Field::current_operations.into(),
        status: [vif::Field::status_code.into(), vif::Field::status_detail.into()],
        read: |view, device| {
            let vif = VifId(uuid(view, device, vif::Field::uuid)?);
            Ok((vif, interface::may(view, device)?))
        },
        apply: |app, (vif, now)| Box::pin(async move { app.drivers.limit_vif(vif, &now).await }),
    }
}
