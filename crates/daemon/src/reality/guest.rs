//! What guests tell, and devices that they let go of late.

use std::collections::BTreeMap;
use std::time::Duration;

use model::id::{VbdId, VmId};
use model::plan::Op;
use tokio::time::timeout;
use toolstack::hv::GuestSeen;
use xenapi::table::{vm, vm_guest_metrics};
use xenapi::{ApiError, Value};

use crate::calls::carry::{Caller, Work, carry_out};
use crate::db::Tx;
use crate::house::House;
use crate::records::fields::{map, reference};

/// Most time for a guest's agent to answer.
const GUEST_DEADLINE: Duration = Duration::from_secs(10);
/// What every guest can do whose agent answers.
const FEATURES: [(&str, &str); 2] = [("feature-shutdown", "1"), ("feature-reboot", "1")];

/// A guest's agent answers: what it tells is recorded.
pub(super) async fn ready(house: &House, vm: VmId) {
    let told = timeout(GUEST_DEADLINE, house.drivers.hv.guest(vm)).await;
    if let Ok(Ok(Some(seen))) = told {
        let now = house.clock.date();
        // A machine that is gone meanwhile tells nothing.
        let _ = house.db.note(|tx| record(tx, vm, seen, Value::Date(now)));
    }
}

fn record(tx: &mut Tx<'_>, vm: VmId, seen: GuestSeen, now: Value) -> Result<(), ApiError> {
    let machine = tx.view().by_uuid(&vm::CLASS, &vm.to_string())?.clone();
    let known = reference(&tx.view(), &machine, vm::Field::guest_metrics)?;
    let metrics = match tx.view().object(&vm_guest_metrics::CLASS, &known) {
        Ok(_) => known,
        Err(_) => {
            let made = tx.create(&vm_guest_metrics::CLASS, Vec::new())?;
            tx.set(&machine, vm::Field::guest_metrics, made.value())?;
            made
        }
    };
    let features = FEATURES.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let agent = BTreeMap::from([("agent".to_owned(), seen.agent)]);
    let yes = || Value::text("yes");
    for (field, value) in [
        (vm_guest_metrics::Field::os_version, map(seen.os)),
        (vm_guest_metrics::Field::networks, map(seen.networks)),
        (vm_guest_metrics::Field::other, map(features)),
        (vm_guest_metrics::Field::PV_drivers_version, map(agent)),
        (vm_guest_metrics::Field::PV_drivers_up_to_date, Value::Bool(true)),
        (vm_guest_metrics::Field::PV_drivers_detected, Value::Bool(true)),
        (vm_guest_metrics::Field::can_use_hotplug_vbd, yes()),
        (vm_guest_metrics::Field::can_use_hotplug_vif, yes()),
        (vm_guest_metrics::Field::live, Value::Bool(true)),
        (vm_guest_metrics::Field::last_updated, now),
    ] {
        tx.set(&metrics, field, value)?;
    }
    Ok(())
}

/// A guest has let go of a disk after everybody had given up: what it held is free.
pub(super) async fn let_go(house: &House, vm: VmId, vbd: VbdId) {
    let op = Op::VbdUnplug { vbd, force: false };
    // One that is free already is refused.
    let _ = carry_out(house, &Caller::nobody(), &Work::quiet(vm, op)).await;
}
