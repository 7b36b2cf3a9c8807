//! Disk settings, from the record to the datapath.

use std::sync::Arc;
use std::time::Duration;

use model::id::SrId;
use model::poll::EffectivePolling;
use tokio::sync::Notify;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::vbd;

use super::simulated_host::*;

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
    let applied = async {
        while served(sim_host, slot).await.1 != Some(wanted) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, applied).await.unwrap();
}

/// Returns the IOPS limit and the polling limit in microseconds of a disk, as the datapath reports
/// them.
pub(super) async fn served(sim_host: &SimulatedHost, slot: &Ref) -> (Option<u64>, Option<u64>) {
    let (app, place) = (&sim_host.test_app.app, sim_host.place());
    let sr = app.db.read(|view| uuid(view, &place, sr::Field::uuid)).unwrap();
    let id = text(&sim_host.get(slot, vbd::Field::uuid)).to_owned();
    let disks = app.drivers.io.of(SrId(sr)).await.unwrap().stats().await.unwrap().unwrap().disks;
    let disk = disks.into_iter().find(|disk| disk.id == id).unwrap();
    let polls = disk.polling.map(|polling| polling.set.max_us.into());
    (disk.caps.and_then(|caps| caps.iops), polls)
}
