//! What is set of a disk, from its record to who serves it.

use std::sync::Arc;
use std::time::Duration;

use model::id::SrId;
use model::poll::EffectivePolling;
use tokio::sync::Notify;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::vbd;

use super::*;

/// More than anything here takes.
const SOON: Duration = Duration::from_secs(60);

/// A change of what is set reaches whoever serves the disk.
#[tokio::test]
async fn polling_that_is_set_live_is_told() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (slot, _) = world.device(&machine).await;
    world.start(&machine).await;
    let [key, value] = ["polling-duration", "60"].map(Value::text);
    world.done("VBD.add_to_other_config", [slot.value(), key.clone(), value]).await;
    polls(&world, &slot, 60).await;
    world.done("VBD.remove_from_other_config", [slot.value(), key]).await;
    polls(&world, &slot, EffectivePolling::default().max_us.into()).await;
}

/// Set while this is under way, at its first call of this kind, a disk polls as it was set.
async fn holds(
    world: &SimulatedHost,
    slot: &Ref,
    what: CallKind,
    under_way: impl Future<Output = ()>,
) {
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    world.sim.rule(move |call| {
        if call.what != what {
            return SimBehaviour::default();
        }
        begins.notify_one();
        SimBehaviour::ends(SimResult::HangsDone)
    });
    let set = async {
        begun.notified().await;
        let [key, value] = ["polling-duration", "60"].map(Value::text);
        world.done("VBD.add_to_other_config", [slot.value(), key, value]).await;
        world.sim.rule(|_| SimBehaviour::default());
    };
    tokio::join!(under_way, set);
    polls(world, slot, 60).await;
}

/// An operation has read its machine when it begins: what is set while it goes on holds all the same.
#[tokio::test]
async fn what_is_set_while_an_operation_is_under_way_holds() {
    for what in [CallKind::AttachVolume, CallKind::Attach, CallKind::Activate, CallKind::PlugDisk] {
        let world = SimulatedHost::new().await;
        let machine = world.machine().await;
        let (slot, _) = world.device(&machine).await;
        holds(&world, &slot, what, world.start(&machine)).await;
    }
    // A reboot takes disks down that are attached until then, and up again.
    for what in [CallKind::Kill, CallKind::Detach, CallKind::DetachVolume, CallKind::Attach] {
        let world = SimulatedHost::new().await;
        let machine = world.machine().await;
        let (slot, _) = world.device(&machine).await;
        world.start(&machine).await;
        let reboot = world.done("VM.hard_reboot", [machine.value()]);
        holds(&world, &slot, what, reboot).await;
    }
}

/// Ends when the disk polls for so many microseconds at most.
async fn polls(world: &SimulatedHost, slot: &Ref, wanted: u64) {
    let told = async {
        while served(world, slot).await.1 != Some(wanted) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, told).await.unwrap();
}

/// Requests a second, and microseconds for which it polls at most, of the disk in this slot as it is
/// served.
pub(super) async fn served(world: &SimulatedHost, slot: &Ref) -> (Option<u64>, Option<u64>) {
    let (house, place) = (&world.trial.house, world.place());
    let sr = house.db.read(|view| uuid(view, &place, sr::Field::uuid)).unwrap();
    let id = text(&world.get(slot, vbd::Field::uuid)).to_owned();
    let disks = house.drivers.io.of(SrId(sr)).await.unwrap().stats().await.unwrap().unwrap().disks;
    let disk = disks.into_iter().find(|disk| disk.id == id).unwrap();
    let polls = disk.polling.map(|polling| polling.set.max_us.into());
    (disk.caps.and_then(|caps| caps.iops), polls)
}
