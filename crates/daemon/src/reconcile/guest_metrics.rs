//! Guest metrics: reports of guest agents and observed addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use model::id::{VifId, VmId};
use model::vm::PowerState;
use tokio::time::timeout;
use toolstack::hv::GuestInfo;
use toolstack::net::{Net, named};
use xenapi::table::{vif, vm, vm_guest_metrics};
use xenapi::{ApiError, Value};

use crate::app::AppState;
use crate::db::{Ref, Tx, View};
use crate::ops::pending_op;
use crate::records::fields::{flag, map, pairs, reference, references, text, uuid};
use crate::records::machine_config;

/// Time limit for the answer of a guest agent.
const GUEST_DEADLINE: Duration = Duration::from_secs(10);
/// Features of every guest whose agent answers.
const FEATURES: [(&str, &str); 2] = [("feature-shutdown", "1"), ("feature-reboot", "1")];

/// Data still missing from a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestPoll {
    /// Nothing: the agent answers, and all observed addresses are reported.
    Complete,
    /// Some data is missing, and no event will announce it.
    Incomplete,
    /// Everything: the VM is not recorded as running.
    Start,
}

/// Records the report of the guest's agent. Without an agent, records the observed addresses.
pub(super) async fn update_guest_metrics(app: &AppState, vm: VmId) -> GuestPoll {
    if is_started(app, vm) != Some(true) {
        return GuestPoll::Start;
    }
    let report = timeout(GUEST_DEADLINE, app.drivers.hv.guest(vm)).await.ok().and_then(Result::ok);
    let (is_silent, now) = (report.is_none(), Value::Date(app.clock.date()));
    let noted = app.db.write_observed(|tx| record(tx, vm, &app.drivers.net, report.flatten(), now));
    // The VM may be destroyed meanwhile.
    match noted {
        Ok(GuestPoll::Complete) if is_silent => GuestPoll::Incomplete,
        Ok(guest_poll) => guest_poll,
        Err(_) => GuestPoll::Complete,
    }
}

/// Returns whether a VM is recorded as running. `None` if it is not and no operation can start it.
pub(super) fn is_started(app: &AppState, vm: VmId) -> Option<bool> {
    let seen = app.db.read(|view| {
        let machine = view.by_uuid(&vm::CLASS, &vm.to_string())?;
        let is_idle = view.get(machine, vm::Field::current_operations)? == &map(BTreeMap::new())
            && pending_op::of(view, machine).is_none();
        Ok::<_, ApiError>(match runs(machine_config::power(view, machine)?) {
            true => Some(true),
            false if is_idle => None,
            false => Some(false),
        })
    });
    // A destroyed VM does not run.
    seen.ok().flatten()
}

fn runs(power: PowerState) -> bool {
    matches!(power, PowerState::Running | PowerState::Paused)
}

fn record(
    tx: &mut Tx<'_>,
    vm: VmId,
    net: &Arc<dyn Net>,
    report: Option<GuestInfo>,
    now: Value,
) -> Result<GuestPoll, ApiError> {
    let machine = tx.view().by_uuid(&vm::CLASS, &vm.to_string())?.clone();
    // The guest may claim addresses before its start operation ends.
    if !runs(machine_config::power(&tx.view(), &machine)?) {
        return Ok(GuestPoll::Start);
    }
    let interfaces = interfaces(&tx.view(), &machine, net)?;
    let metrics = metrics(tx, &machine)?;
    let detected = flag(&tx.view(), &metrics, vm_guest_metrics::Field::PV_drivers_detected)?;
    match report {
        Some(report) => record_report(tx, &metrics, report, now)?,
        // An agent that does not answer now has reported more than can be observed.
        None if detected => {}
        None => {
            seen(tx, &metrics, &interfaces, now)?;
            return Ok(GuestPoll::Complete);
        }
    }
    let networks = pairs(&tx.view(), &metrics, vm_guest_metrics::Field::networks)?;
    let all = interfaces.iter().all(|(number, claimed)| are_reported(&networks, *number, claimed));
    Ok(if all { GuestPoll::Complete } else { GuestPoll::Incomplete })
}

/// Returns whether the agent reports the latest observed IPv4 and IPv6 address of an interface.
/// Earlier addresses may be obsolete.
fn are_reported(networks: &BTreeMap<String, String>, number: u8, claimed: &[IpAddr]) -> bool {
    let of = format!("{number}/");
    let is_reported = |address: &IpAddr| {
        let all = networks.iter().filter(|(key, _)| key.starts_with(&of));
        all.into_iter().any(|(_, text)| text.parse() == Ok(*address))
    };
    let kinds = [IpAddr::is_ipv4, IpAddr::is_ipv6];
    kinds.iter().filter_map(|is| claimed.iter().find(|one| is(one))).all(is_reported)
}

/// Returns the version of an agent, whole and as the numbers that clients of XenServer show. A
/// number that the version lacks is 0.
fn driver_version(agent: String) -> BTreeMap<String, String> {
    let digits = |text: &str| -> String { text.chars().take_while(char::is_ascii_digit).collect() };
    let mut numbers = agent.split(['.', '-', ' ']).map(digits);
    let mut next = || numbers.next().filter(|number| !number.is_empty());
    let parts = ["major", "minor", "micro", "build"]
        .map(|part| (part.to_owned(), next().unwrap_or_else(|| "0".to_owned())));
    parts.into_iter().chain([("agent".to_owned(), agent)]).collect()
}

/// Records the report of an agent. An unchanged report makes no change.
fn record_report(
    tx: &mut Tx<'_>,
    metrics: &Ref,
    report: GuestInfo,
    now: Value,
) -> Result<(), ApiError> {
    let features = FEATURES.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let agent = driver_version(report.agent);
    let yes = || Value::text("yes");
    let fields = [
        (vm_guest_metrics::Field::os_version, map(report.os)),
        (vm_guest_metrics::Field::networks, map(report.networks)),
        (vm_guest_metrics::Field::other, map(features)),
        (vm_guest_metrics::Field::PV_drivers_version, map(agent)),
        (vm_guest_metrics::Field::PV_drivers_up_to_date, Value::Bool(true)),
        (vm_guest_metrics::Field::PV_drivers_detected, Value::Bool(true)),
        (vm_guest_metrics::Field::can_use_hotplug_vbd, yes()),
        (vm_guest_metrics::Field::can_use_hotplug_vif, yes()),
        (vm_guest_metrics::Field::live, Value::Bool(true)),
    ];
    let mut is_new = false;
    for (field, value) in fields {
        if tx.view().get(metrics, field)? != &value {
            tx.set(metrics, field, value)?;
            is_new = true;
        }
    }
    if is_new {
        tx.set(metrics, vm_guest_metrics::Field::last_updated, now)?;
    }
    Ok(())
}

/// Returns the guest metrics of a VM. Creates them if there are none.
fn metrics(tx: &mut Tx<'_>, machine: &Ref) -> Result<Ref, ApiError> {
    let known = reference(&tx.view(), machine, vm::Field::guest_metrics)?;
    if tx.view().object(&vm_guest_metrics::CLASS, &known).is_ok() {
        return Ok(known);
    }
    let made = tx.create(&vm_guest_metrics::CLASS, Vec::new())?;
    tx.set(machine, vm::Field::guest_metrics, made.value())?;
    Ok(made)
}

/// Returns the VM of a VIF.
pub(super) fn whose(view: &View<'_>, vif: VifId) -> Result<VmId, ApiError> {
    let device = view.by_uuid(&vif::CLASS, &vif.to_string())?;
    let machine = reference(view, device, vif::Field::VM)?;
    Ok(VmId(uuid(view, &machine, vm::Field::uuid)?))
}

/// Returns the VIF numbers of a VM, each with the observed addresses.
fn interfaces(
    view: &View<'_>,
    machine: &Ref,
    net: &Arc<dyn Net>,
) -> Result<Vec<(u8, Vec<IpAddr>)>, ApiError> {
    let devices = references(view, machine, vm::Field::VIFs)?;
    let claimed = |device: &Ref| {
        let vif = VifId(uuid(view, device, vif::Field::uuid)?);
        let number = text(view, device, vif::Field::device)?.parse().unwrap_or_default();
        Ok((number, net.addresses(vif)))
    };
    devices.iter().map(claimed).collect()
}

/// Records observed addresses of a guest without an agent.
fn seen(
    tx: &mut Tx<'_>,
    metrics: &Ref,
    interfaces: &[(u8, Vec<IpAddr>)],
    now: Value,
) -> Result<(), ApiError> {
    let mut networks = Vec::new();
    for (number, claimed) in interfaces {
        let (v4, v6): (Vec<_>, Vec<_>) = claimed.iter().partition(|one| one.is_ipv4());
        let texts = |all: Vec<IpAddr>| all.iter().map(ToString::to_string).collect();
        networks.extend(named(*number, texts(v4), texts(v6)));
    }
    let networks = map(networks);
    if tx.view().get(metrics, vm_guest_metrics::Field::networks)? != &networks {
        tx.set(metrics, vm_guest_metrics::Field::networks, networks)?;
        tx.set(metrics, vm_guest_metrics::Field::last_updated, now)?;
    }
    Ok(())
}
