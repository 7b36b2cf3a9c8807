//! What guests tell and what is seen of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use model::id::{VifId, VmId};
use model::vm::PowerState;
use tokio::time::timeout;
use toolstack::hv::GuestSeen;
use toolstack::net::named;
use xenapi::table::{vif, vm, vm_guest_metrics};
use xenapi::{ApiError, Value};

use crate::db::{Ref, Tx, View};
use crate::house::House;
use crate::records::fields::{flag, map, reference, references, text, uuid};
use crate::records::machine;

/// Most time for a guest's agent to answer.
const GUEST_DEADLINE: Duration = Duration::from_secs(10);
/// What every guest can do whose agent answers.
const FEATURES: [(&str, &str); 2] = [("feature-shutdown", "1"), ("feature-reboot", "1")];

/// A guest's agent answers: what it tells is recorded. Says whether it has told anything.
pub(super) async fn ready(house: &House, vm: VmId) -> bool {
    let told = timeout(GUEST_DEADLINE, house.drivers.hv.guest(vm)).await;
    let Ok(Ok(Some(seen))) = told else { return false };
    let now = house.clock.date();
    // A machine that is gone meanwhile tells nothing.
    house.db.note(|tx| record(tx, vm, seen, Value::Date(now))).is_ok()
}

fn record(tx: &mut Tx<'_>, vm: VmId, seen: GuestSeen, now: Value) -> Result<(), ApiError> {
    let machine = tx.view().by_uuid(&vm::CLASS, &vm.to_string())?.clone();
    let metrics = metrics(tx, &machine)?;
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

/// What is known of a machine's guest; made if nothing was.
fn metrics(tx: &mut Tx<'_>, machine: &Ref) -> Result<Ref, ApiError> {
    let known = reference(&tx.view(), machine, vm::Field::guest_metrics)?;
    if tx.view().object(&vm_guest_metrics::CLASS, &known).is_ok() {
        return Ok(known);
    }
    let made = tx.create(&vm_guest_metrics::CLASS, Vec::new())?;
    tx.set(machine, vm::Field::guest_metrics, made.value())?;
    Ok(made)
}

/// A guest has claimed addresses by one of its interfaces. Its agent, if it has one, tells all that
/// it has now; else what was seen is recorded.
pub(super) async fn claimed(house: &House, vif: VifId) {
    let Ok(vm) = house.db.read(|view| whose(view, vif)) else { return };
    if ready(house, vm).await {
        return;
    }
    let (net, now) = (&house.drivers.net, Value::Date(house.clock.date()));
    // One that is gone meanwhile has no addresses.
    let _ = house.db.note(|tx| seen(tx, vm, |vif| net.addresses(vif), now));
}

fn whose(view: &View<'_>, vif: VifId) -> Result<VmId, ApiError> {
    let device = view.by_uuid(&vif::CLASS, &vif.to_string())?;
    let machine = reference(view, device, vif::Field::VM)?;
    Ok(VmId(uuid(view, &machine, vm::Field::uuid)?))
}

/// Records addresses of a guest that tells nothing itself.
fn seen(
    tx: &mut Tx<'_>,
    vm: VmId,
    addresses: impl Fn(VifId) -> Vec<IpAddr>,
    now: Value,
) -> Result<(), ApiError> {
    let machine = tx.view().by_uuid(&vm::CLASS, &vm.to_string())?.clone();
    if !matches!(machine::power(&tx.view(), &machine)?, PowerState::Running | PowerState::Paused) {
        return Ok(());
    }
    let metrics = metrics(tx, &machine)?;
    // An agent that does not answer now has told more than can be seen.
    if flag(&tx.view(), &metrics, vm_guest_metrics::Field::PV_drivers_detected)? {
        return Ok(());
    }
    let mut networks = Vec::new();
    for device in references(&tx.view(), &machine, vm::Field::VIFs)? {
        let vif = VifId(uuid(&tx.view(), &device, vif::Field::uuid)?);
        let number = text(&tx.view(), &device, vif::Field::device)?.parse().unwrap_or_default();
        let (v4, v6): (Vec<_>, Vec<_>) = addresses(vif).into_iter().partition(IpAddr::is_ipv4);
        let texts = |all: Vec<IpAddr>| all.iter().map(ToString::to_string).collect();
        networks.extend(named(number, texts(v4), texts(v6)));
    }
    let networks = map(networks);
    if tx.view().get(&metrics, vm_guest_metrics::Field::networks)? != &networks {
        tx.set(&metrics, vm_guest_metrics::Field::networks, networks)?;
        tx.set(&metrics, vm_guest_metrics::Field::last_updated, now)?;
    }
    Ok(())
}
