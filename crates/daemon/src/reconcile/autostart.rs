//! Start of VMs with their host.

use model::vm::VmOp;
use xenapi::table::{FieldIx, host, pool, vm};
use xenapi::{ApiError, Value};

use crate::app::AppState;
use crate::db::{Object, Ref, Tx, View};
use crate::ops::pending_op::{self, PendingOpIntent};
use crate::records::fields::{flag, pairs};

/// Key in `other_config` of the pool and of a VM. Both must be `true`.
const AUTO_POWERON: &str = "auto_poweron";
/// Key in the host's `other_config` with the boot ID of the last start of the daemon.
const BOOT_ID: &str = "boot_id";

/// Returns whether the host has run on since the daemon last started. Stores the new boot ID. After
/// a host boot, the same change adds a pending start to all VMs with automatic power-on. So a crash
/// of the daemon in between loses no start. Earlier pending ops ended with the host.
pub(super) fn same_boot(app: &AppState, boot: &str) -> bool {
    let compared = app.db.write_observed(|tx| {
        let view = tx.view();
        let Some(host) = view.all(&host::CLASS).next().map(|host| host.reference().clone()) else {
            return Ok(true);
        };
        let config = pairs(&view, &host, host::Field::other_config)?;
        let same = config.get(BOOT_ID).is_some_and(|known| known == boot);
        tx.set_key(&host, host::Field::other_config, BOOT_ID, Some(Value::text(boot)))?;
        if !same {
            owe_starts(tx, app)?;
        }
        Ok(same)
    });
    compared.unwrap_or(true)
}

fn owe_starts(tx: &mut Tx<'_>, app: &AppState) -> Result<(), ApiError> {
    let machines: Vec<Ref> = tx.view().all(&vm::CLASS).map(Object::reference).cloned().collect();
    for machine in machines {
        pending_op::forget(tx, &machine)?;
    }
    for machine in chosen(&tx.view())? {
        pending_op::begin(
            tx,
            &machine,
            PendingOpIntent::this(VmOp::Start),
            app.new_ref().as_str(),
        )?;
    }
    Ok(())
}

fn chosen(view: &View<'_>) -> Result<Vec<Ref>, ApiError> {
    let set = |of: &Ref, field: FieldIx| {
        let config = pairs(view, of, field)?;
        Ok::<_, ApiError>(config.get(AUTO_POWERON).is_some_and(|value| value == "true"))
    };
    let pools = view.all(&pool::CLASS).map(Object::reference);
    let mut all = false;
    for pool in pools {
        all |= set(pool, pool::Field::other_config.into())?;
    }
    let mut chosen = Vec::new();
    for machine in view.all(&vm::CLASS).map(Object::reference).filter(|_| all) {
        let template = flag(view, machine, vm::Field::is_a_template)?;
        if !template && set(machine, vm::Field::other_config.into())? {
            chosen.push(machine.clone());
        }
    }
    Ok(chosen)
}
