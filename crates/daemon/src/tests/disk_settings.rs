//! Disk settings, from the record to the datapath.

use std::sync::Arc;
use std::time::Duration;

use model::id::SrId;
use model::poll::EffectivePolling;
use model::report::DiskStats;
use model::rpc::Replace;
use model::share::DiskShare;
use model::spec::Backend;
use model::vbd::WRITE_CACHE_OVERFLOW;
use tokio::sync::Notify;
use toolstack::ringway_io::Datapath;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::vbd;

use super::simulated_host::*;
use crate::ops::vbd_settings;

/// Longer than any wait here.
const SOON: Duration = Duration::from_secs(60);

/// A changed setting reaches the datapath.
#[tokio::test]
async fn polling_that_is_set_live_is_told() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, _) = sim_host.device(&machine).await;
    sim_host.start(&machine).await;
    let [key, value] = ["polling-duration", "60"].map(Value::text);
    sim_host.done("VBD.add_to_other_config", [slot.value(), key.clone(), value]).await;
    polls(&sim_host, &slot, 60).await;
    sim_host.done("VBD.remove_from_other_config", [slot.value(), key]).await;
    polls(&sim_host, &slot, EffectivePolling::default().max_us.into()).await;
}

/// A weight needs no type, and follows the record while its disk is served.
#[tokio::test]
async fn a_share_that_is_set_live_is_told() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, _) = sim_host.device(&machine).await;
    sim_host.start(&machine).await;
    shares(&sim_host, &slot, DiskShare::default()).await;
    sim_host.done("VBD.add_to_qos_algorithm_params", param(&slot, "weight", "4")).await;
    assert_eq!(algorithm(&sim_host, &slot), "ringway");
    let light = DiskShare { weight: 4, ..DiskShare::default() };
    shares(&sim_host, &slot, light).await;
    sim_host.done("VBD.add_to_qos_algorithm_params", param(&slot, "floor-iops", "50")).await;
    sim_host.done("VBD.add_to_qos_algorithm_params", param(&slot, "floor-bytes", "1M")).await;
    let floored = DiskShare { floor_iops: Some(50), floor_bytes: Some(1 << 20), ..light };
    shares(&sim_host, &slot, floored).await;
    // The next attach has the share from the start.
    sim_host.done("VM.hard_reboot", [machine.value()]).await;
    assert_eq!(served(&sim_host, &slot).await.share.unwrap().share, floored);
    let class = record([("sched", Value::text("idle"))]);
    sim_host.done("VBD.set_qos_algorithm_params", [slot.value(), none()]).await;
    shares(&sim_host, &slot, DiskShare::default()).await;
    sim_host.done("VBD.set_qos_algorithm_type", [slot.value(), Value::text("ionice")]).await;
    sim_host.done("VBD.set_qos_algorithm_params", [slot.value(), class]).await;
    shares(&sim_host, &slot, DiskShare { weight: 10, ..DiskShare::default() }).await;
    sim_host.done("VBD.set_qos_algorithm_type", [slot.value(), Value::text("")]).await;
    shares(&sim_host, &slot, DiskShare::default()).await;
    assert_eq!(sim_host.get(&slot, vbd::Field::status_code), Value::Int(0));
}

/// The limit of a write cache's overflow file follows the record while its disk is served.
#[tokio::test]
async fn an_overflow_limit_that_is_set_live_is_told() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, _) = sim_host.device(&machine).await;
    sim_host.start(&machine).await;
    let set = |value: &str| param(&slot, WRITE_CACHE_OVERFLOW, value);
    let (add, remove) = ("VBD.add_to_other_config", "VBD.remove_from_other_config");
    // A disk without a write cache ignores it.
    let disk = served(&sim_host, &slot).await;
    sim_host.done(add, set("1M")).await;
    sim_host.done(remove, [slot.value(), Value::text(WRITE_CACHE_OVERFLOW)]).await;
    assert_eq!(served(&sim_host, &slot).await.backend, disk.backend);
    let backend = |overflow_size| Backend::Overlay {
        base: Box::new(disk.backend.clone()),
        ram: 4 << 20,
        overflow: Some(std::path::PathBuf::from("/over").into()),
        overflow_size,
    };
    let (id, expect) = (disk.id.clone(), disk.backend.clone());
    let replace = Replace { id, backend: backend(None), expect };
    datapath(&sim_host).await.replace(&replace).await.unwrap();
    sim_host.done(add, set("1M")).await;
    until_served(&sim_host, &slot, |disk| disk.backend == backend(Some(1 << 20))).await;
    // The daemon that comes next applies what it finds.
    datapath(&sim_host).await.replace(&replace).await.unwrap();
    vbd_settings::reapply(&sim_host.test_app.app);
    until_served(&sim_host, &slot, |disk| disk.backend == backend(Some(1 << 20))).await;
    sim_host.done(remove, [slot.value(), Value::text(WRITE_CACHE_OVERFLOW)]).await;
    until_served(&sim_host, &slot, |disk| disk.backend == backend(None)).await;
    let refused = sim_host.refused(add, set("1000K")).await;
    assert_eq!(&refused[..2], ["VALUE_NOT_SUPPORTED", "other_config"]);
    assert!(refused[3].contains("no size of at least 1048576 bytes"), "{refused:?}");
    assert_eq!(sim_host.get(&slot, vbd::Field::status_code), Value::Int(0));
}

/// Only a parameter of Ringway that is set turns an empty type into `ringway`.
#[tokio::test]
async fn an_empty_type_stays_without_a_parameter_of_ringway() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, _) = sim_host.device(&machine).await;
    let (add, remove) = ("VBD.add_to_qos_algorithm_params", "VBD.remove_from_qos_algorithm_params");
    sim_host.done(add, param(&slot, "mine", "1")).await;
    assert_eq!(algorithm(&sim_host, &slot), "");
    // A refused change sets no type.
    let refused = sim_host.refused(add, param(&slot, "weight", "4")).await;
    assert_eq!(&refused[..2], ["VALUE_NOT_SUPPORTED", "qos_algorithm_params"]);
    assert!(refused[3].contains("\"mine\" is not known; use iops"), "{refused:?}");
    sim_host.done(remove, [slot.value(), Value::text("mine")]).await;
    for (key, value) in [("weight", "0"), ("weight", "1001"), ("weight", "x"), ("floor-iops", "0")]
    {
        let refused = sim_host.refused(add, param(&slot, key, value)).await;
        assert_eq!(&refused[..2], ["VALUE_NOT_SUPPORTED", "qos_algorithm_params"], "{key}={value}");
    }
    assert_eq!(algorithm(&sim_host, &slot), "");
    assert_eq!(sim_host.get(&slot, vbd::Field::qos_algorithm_params), none());
    // Limits that are turned off stay so while their parameters are removed.
    let both = record([("iops", Value::text("500")), ("weight", Value::text("4"))]);
    sim_host.done("VBD.set_qos_algorithm_params", [slot.value(), both]).await;
    assert_eq!(algorithm(&sim_host, &slot), "ringway");
    sim_host.done("VBD.set_qos_algorithm_type", [slot.value(), Value::text("")]).await;
    sim_host.done(remove, [slot.value(), Value::text("iops")]).await;
    assert_eq!(algorithm(&sim_host, &slot), "");
    // A new slot follows the same rule.
    let disk = sim_host.disk().await;
    let Value::Map(mut members) = sim_host.slot(&machine, Some(&disk), "Disk") else { panic!() };
    let weight = record([("weight", Value::text("4"))]);
    members.insert("qos_algorithm_params".into(), weight);
    let slot = sim_host.made("VBD.create", [Value::Map(members)]).await;
    assert_eq!(algorithm(&sim_host, &slot), "ringway");
}

fn param(slot: &Ref, key: &str, value: &str) -> [Value; 3] {
    [slot.value(), Value::text(key), Value::text(value)]
}

fn algorithm(sim_host: &SimulatedHost, slot: &Ref) -> String {
    text(&sim_host.get(slot, vbd::Field::qos_algorithm_type)).to_owned()
}

/// Changes the polling during an operation, at its first call of this kind. Asserts that the disk
/// then polls as set.
async fn holds(
    sim_host: &SimulatedHost,
    slot: &Ref,
    call_kind: CallKind,
    under_way: impl Future<Output = ()>,
) {
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    sim_host.sim.rule(move |call| {
        if call.call_kind != call_kind {
            return SimBehaviour::default();
        }
        begins.notify_one();
        SimBehaviour::ends(SimResult::HangsDone)
    });
    let set = async {
        begun.notified().await;
        let [key, value] = ["polling-duration", "60"].map(Value::text);
        sim_host.done("VBD.add_to_other_config", [slot.value(), key, value]).await;
        sim_host.sim.rule(|_| SimBehaviour::default());
    };
    tokio::join!(under_way, set);
    polls(sim_host, slot, 60).await;
}

/// An operation reads the record when it begins. Settings changed during the operation still take
/// effect.
#[tokio::test]
async fn what_is_set_while_an_operation_is_under_way_holds() {
    for call_kind in
        [CallKind::AttachVolume, CallKind::Attach, CallKind::Activate, CallKind::PlugDisk]
    {
        let sim_host = SimulatedHost::new().await;
        let machine = sim_host.machine().await;
        let (slot, _) = sim_host.device(&machine).await;
        holds(&sim_host, &slot, call_kind, sim_host.start(&machine)).await;
    }
    // A reboot detaches and attaches disks that were attached.
    for call_kind in [CallKind::Kill, CallKind::Detach, CallKind::DetachVolume, CallKind::Attach] {
        let sim_host = SimulatedHost::new().await;
        let machine = sim_host.machine().await;
        let (slot, _) = sim_host.device(&machine).await;
        sim_host.start(&machine).await;
        let reboot = sim_host.done("VM.hard_reboot", [machine.value()]);
        holds(&sim_host, &slot, call_kind, reboot).await;
    }
}

/// Waits until the disk has this polling limit, in microseconds.
async fn polls(sim_host: &SimulatedHost, slot: &Ref, wanted: u64) {
    until_served(sim_host, slot, |disk| polling_us(&disk) == Some(wanted)).await;
}

/// Waits until the disk has this share of its storage.
async fn shares(sim_host: &SimulatedHost, slot: &Ref, wanted: DiskShare) {
    until_served(sim_host, slot, |disk| disk.share.unwrap().share == wanted).await;
}

/// Waits until the datapath reports the disk so.
pub(super) async fn until_served(
    sim_host: &SimulatedHost,
    slot: &Ref,
    wanted: impl Fn(DiskStats) -> bool,
) {
    let applied = async {
        while !wanted(served(sim_host, slot).await) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, applied).await.unwrap();
}

/// Returns the polling limit of a disk in microseconds.
pub(super) fn polling_us(disk: &DiskStats) -> Option<u64> {
    disk.polling.map(|polling| polling.set.max_us.into())
}

/// Returns the disk as its datapath reports it.
pub(super) async fn served(sim_host: &SimulatedHost, slot: &Ref) -> DiskStats {
    let id = text(&sim_host.get(slot, vbd::Field::uuid)).to_owned();
    let disks = datapath(sim_host).await.stats().await.unwrap().unwrap().disks;
    disks.into_iter().find(|disk| disk.id == id).unwrap()
}

async fn datapath(sim_host: &SimulatedHost) -> Arc<dyn Datapath> {
    let (app, place) = (&sim_host.test_app.app, sim_host.place());
    let sr = app.db.read(|view| uuid(view, &place, sr::Field::uuid)).unwrap();
    app.drivers.io.of(SrId(sr)).await.unwrap()
}
