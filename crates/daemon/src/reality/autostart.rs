//! Machines that are started with their host.

use std::sync::Arc;

use model::plan::Op;
use model::vm::VmOp;
use toolstack::machines::OpError;
use xenapi::table::{host, pool, vm};
use xenapi::{ApiError, Value};

use crate::calls::carry::{Caller, carry_out};
use crate::calls::message::{Note, raise};
use crate::calls::vm_lifecycle;
use crate::db::{Object, Ref, View};
use crate::errors::sentence;
use crate::house::House;
use crate::records::fields::{flag, pairs, text};

/// The key of `other_config`, of the pool and of a machine, that both must be `true`.
const AUTO_POWERON: &str = "auto_poweron";
/// The key of the host's `other_config` that names the boot at which the daemon last started.
const BOOT_ID: &str = "boot_id";

/// Whether the host has gone on running since the daemon last started. From now on this boot is
/// the one to compare with.
pub(super) fn same_boot(house: &House, boot: &str) -> bool {
    let compared = house.db.note(|tx| {
        let view = tx.view();
        let Some(host) = view.all(&host::CLASS).next().map(|host| host.reference().clone()) else {
            return Ok(true);
        };
        let config = pairs(&view, &host, host::Field::other_config)?;
        let same = config.get(BOOT_ID).is_some_and(|known| known == boot);
        tx.set_key(&host, host::Field::other_config, BOOT_ID, Some(Value::text(boot)))?;
        Ok(same)
    });
    compared.unwrap_or(true)
}

/// Starts those machines for which it is set. Nobody waits for them.
pub(super) fn start(house: &Arc<House>) {
    let machines = house.db.read(chosen).unwrap_or_default();
    for machine in machines {
        let house = house.clone();
        tokio::spawn(async move {
            if let Err(error) = begin(&house, &machine).await {
                failed(&house, &machine, &error);
            }
        });
    }
}

async fn begin(house: &House, machine: &Ref) -> Result<(), OpError> {
    let op = Op::Start { paused: false };
    let work = vm_lifecycle::work(house, machine, VmOp::Start, op)?;
    carry_out(house, &Caller::nobody(), &work).await
}

fn chosen(view: &View<'_>) -> Result<Vec<Ref>, ApiError> {
    let set = |of: &Ref, field: xenapi::table::FieldIx| {
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

fn failed(house: &House, machine: &Ref, error: &OpError) {
    let uuid = house.db.read(|view| text(view, machine, vm::Field::uuid).map(str::to_owned));
    let Ok(uuid) = uuid else { return };
    let body = format!("It was not started with its host: {}", sentence(error));
    let (name, cls) = ("VM_AUTO_POWERON_FAILED", "VM");
    let note = Note { name, priority: 2, cls, uuid: &uuid, body: &body };
    raise(&house.db, &note, house.clock.date());
}
