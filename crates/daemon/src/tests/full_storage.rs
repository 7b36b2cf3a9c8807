//! Full storage, as clients see it.

use model::id::{SrId, VbdId};
use xenapi::table::message;

use super::simulated_host::*;

const KEY: &str = "storage-full";

fn vbd_id(sim_host: &SimulatedHost, slot: &Ref) -> VbdId {
    VbdId(text(&sim_host.get(slot, vbd::Field::uuid)).parse().unwrap())
}

fn sr_id(sim_host: &SimulatedHost) -> SrId {
    SrId(text(&sim_host.get(&sim_host.place(), sr::Field::uuid)).parse().unwrap())
}

/// Returns the list in `other_config`.
fn listed(sim_host: &SimulatedHost, of: &Ref, field: impl Into<FieldIx>) -> Option<Value> {
    let Value::Map(config) = sim_host.get(of, field) else { panic!("no map") };
    config.get(KEY).cloned()
}

fn lists(sim_host: &SimulatedHost, machine: &Ref) -> [Option<Value>; 2] {
    let place = listed(sim_host, &sim_host.place(), sr::Field::other_config);
    [place, listed(sim_host, machine, vm::Field::other_config)]
}

fn bodies(sim_host: &SimulatedHost) -> Vec<String> {
    sim_host.test_app.app.db.read(|view| {
        let all = view.all(&message::CLASS);
        let full = all
            .filter(|one| one.get(message::Field::name.into()).unwrap() == &Value::text("SR_FULL"));
        full.map(|one| text(one.get(message::Field::body.into()).unwrap()).to_owned()).collect()
    })
}

/// Reports the disks, and waits until the SR lists them.
async fn told(sim_host: &SimulatedHost, disks: &[VbdId]) {
    sim_host.sim.full_disks(sr_id(sim_host), disks);
    let mut all: Vec<_> = disks.iter().map(ToString::to_string).collect();
    all.sort();
    let list = (!all.is_empty()).then(|| Value::Str(all.join(",")));
    sim_host.until(|it| listed(it, &it.place(), sr::Field::other_config) == list).await;
}

#[tokio::test]
async fn full_storage_is_told_once_with_names_and_listed_while_it_lasts() {
    let sim_host = SimulatedHost::new().await;
    let [machine, other] = [sim_host.machine().await, sim_host.machine().await];
    let named = |name: &str| Value::text(name);
    sim_host.done("VM.set_name_label", [machine.value(), named("mail")]).await;
    let (slot, disk) = sim_host.device(&machine).await;
    sim_host.done("VDI.set_name_label", [disk.value(), named("spool")]).await;
    sim_host.done("SR.set_name_label", [sim_host.place().value(), named("tank")]).await;
    let (second, _) = sim_host.device(&other).await;
    sim_host.start(&machine).await;
    sim_host.start(&other).await;
    let [full, also] = [&slot, &second].map(|slot| vbd_id(&sim_host, slot));

    told(&sim_host, &[full]).await;
    let list = Some(Value::Str(full.to_string()));
    assert_eq!(lists(&sim_host, &machine), [list.clone(), list.clone()]);
    assert_eq!(listed(&sim_host, &other, vm::Field::other_config), None);
    let told_bodies = bodies(&sim_host);
    let [body] = &told_bodies[..] else { panic!("{told_bodies:?}") };
    assert!(body.contains("`spool` of machine `mail` in storage repository `tank`"), "{body}");

    // A second disk is an onset of its own, and that of the first is not repeated.
    told(&sim_host, &[full, also]).await;
    assert_eq!(bodies(&sim_host).len(), 2);
    let count = sim_host.test_app.app.db.read(reconcile::full_storage::count);
    assert_eq!(count, 2);
    let second_list = Some(Value::Str(also.to_string()));
    assert_eq!(listed(&sim_host, &other, vm::Field::other_config), second_list);

    // The list of a destroyed device goes, and an unknown device is no reason to fail.
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.done("VBD.destroy", [slot.value()]).await;
    told(&sim_host, &[VbdId(model::id::Uuid::default())]).await;
    assert_eq!(listed(&sim_host, &machine, vm::Field::other_config), None);
    assert_eq!(listed(&sim_host, &other, vm::Field::other_config), None);
    assert_eq!(bodies(&sim_host).len(), 3);
    told(&sim_host, &[]).await;
    assert_eq!(lists(&sim_host, &machine), [None, None]);
}

/// Runs a machine with a disk on full storage, in a life of the daemon.
fn full_once() -> (SimulatedHost, Ref, VbdId) {
    life(async {
        let sim_host = SimulatedHost::new().await;
        let machine = sim_host.running().await;
        let (slot, _) = sim_host.device(&machine).await;
        sim_host.done("VBD.plug", [slot.value()]).await;
        let full = vbd_id(&sim_host, &slot);
        told(&sim_host, &[full]).await;
        sim_host.stored().await;
        (sim_host, machine, full)
    })
}

#[test]
fn a_restarted_daemon_knows_what_was_told() {
    let (sim_host, machine, full) = full_once();
    life(async {
        let sim_host = sim_host.again(BOOT).await;
        let list = Some(Value::Str(full.to_string()));
        assert_eq!(lists(&sim_host, &machine), [list.clone(), list]);
        // `ringway-io` reports its present disks to a new daemon. The next report shows that this
        // one was handled.
        sim_host.sim.full_disks(sr_id(&sim_host), &[full]);
        told(&sim_host, &[]).await;
        assert_eq!(lists(&sim_host, &machine), [None, None]);
        assert_eq!(bodies(&sim_host).len(), 1);
    });
}

/// After a reboot of the host, nothing waits that nobody reports.
#[test]
fn what_an_earlier_boot_has_listed_goes() {
    let (sim_host, machine, _) = full_once();
    life(async {
        let sim_host = sim_host.again("second").await;
        assert_eq!(lists(&sim_host, &machine), [None, None]);
    });
}
