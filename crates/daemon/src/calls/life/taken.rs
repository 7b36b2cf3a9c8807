//! Machines that take disks, and whoever removes or changes those, keep out of each other's way.

use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{pbd, sr, vbd, vdi, vm};

use super::*;

fn hangs(world: &SimulatedHost, what: CallKind) {
    world.sim.rule(move |call| match call.what == what {
        true => SimBehaviour::ends(SimResult::Hangs),
        false => SimBehaviour::default(),
    });
}

fn works(world: &SimulatedHost) {
    world.sim.rule(|_| SimBehaviour::default());
}

fn start(machine: &Ref) -> [Value; 3] {
    [machine.value(), no(), no()]
}

fn resized(disk: &Ref) -> [Value; 2] {
    [disk.value(), Value::Int(2 * DISK_BYTES)]
}

fn link(world: &SimulatedHost) -> Ref {
    let (db, place) = (&world.trial.house.db, world.place());
    db.read(|view| references(view, &place, sr::Field::PBDs)).unwrap().pop().unwrap()
}

async fn begun(world: &SimulatedHost, of: &Ref, field: impl Into<FieldIx> + Copy) {
    world.until(|world| world.get(of, field) != none()).await;
}

#[tokio::test]
async fn a_disk_stays_while_its_machine_starts() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (slot, disk) = world.device(&machine).await;
    hangs(&world, CallKind::Create);
    let meanwhile = async {
        begun(&world, &machine, vm::Field::current_operations).await;
        let Value::Map(busy) = world.get(&slot, vbd::Field::current_operations) else { panic!() };
        assert_eq!(busy.values().collect::<Vec<_>>(), [&Value::text("attach")]);
        for (method, args) in [
            ("VDI.destroy", vec![disk.value()]),
            ("VDI.forget", vec![disk.value()]),
            ("VDI.resize", resized(&disk).to_vec()),
        ] {
            let said = world.refused(method, args).await;
            let expected = ["OTHER_OPERATION_IN_PROGRESS", "VDI", disk.as_str(), "attach"];
            assert_eq!(said[..4], expected, "{method}");
        }
        // Nobody else begins to write to it, and nobody takes its place away.
        let other = world.machine().await;
        world.made("VBD.create", [world.slot(&other, Some(&disk), "Disk")]).await;
        let said = world.refused("VM.start", start(&other)).await;
        assert_eq!(said, ["VDI_IN_USE", disk.as_str(), "attach"]);
        let said = world.refused("PBD.unplug", [link(&world).value()]).await;
        assert_eq!(said, ["VDI_IN_USE", disk.as_str(), "unplug"]);
        works(&world);
    };
    let (started, ()) = tokio::join!(world.trial.call("VM.start", start(&machine)), meanwhile);
    started.unwrap();
    assert_eq!(world.get(&slot, vbd::Field::current_operations), none());
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.done("VDI.destroy", [disk.value()]).await;
    world.assert_clean();
}

#[tokio::test]
async fn a_disk_stays_while_its_machine_reboots() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (slot, disk) = world.device(&machine).await;
    world.start(&machine).await;
    hangs(&world, CallKind::Create);
    let meanwhile = async {
        // Its old domain has let go of it, the new one has not got it yet.
        world.until(|world| !world.attached(&slot)).await;
        let said = world.refused("VDI.destroy", [disk.value()]).await;
        assert_eq!(said[..3], ["OTHER_OPERATION_IN_PROGRESS", "VDI", disk.as_str()]);
        works(&world);
    };
    let reboot = world.trial.call("VM.hard_reboot", [machine.value()]);
    let (rebooted, ()) = tokio::join!(reboot, meanwhile);
    rebooted.unwrap();
    assert!(world.attached(&slot));
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.assert_clean();
}

#[tokio::test]
async fn a_machine_does_not_start_with_a_disk_that_is_being_removed_or_changed() {
    for (method, op, what) in [
        ("VDI.destroy", "destroy", CallKind::DestroyVolume),
        ("VDI.resize", "resize", CallKind::ResizeVolume),
    ] {
        let world = SimulatedHost::new().await;
        let machine = world.machine().await;
        let running = world.running().await;
        let (_, disk) = world.device(&machine).await;
        let slot = world.made("VBD.create", [world.slot(&running, Some(&disk), "Disk")]).await;
        hangs(&world, what);
        let args = if op == "resize" { resized(&disk).to_vec() } else { vec![disk.value()] };
        let meanwhile = async {
            begun(&world, &disk, vdi::Field::current_operations).await;
            for (method, args) in
                [("VM.start", start(&machine).to_vec()), ("VBD.plug", vec![slot.value()])]
            {
                let said = world.refused(method, args).await;
                let expected = ["OTHER_OPERATION_IN_PROGRESS", "VDI", disk.as_str(), op];
                assert_eq!(said[..4], expected, "{method}");
            }
            assert_eq!(world.power(&machine), "Halted");
            works(&world);
        };
        let (ended, ()) = tokio::join!(world.trial.call(method, args), meanwhile);
        ended.unwrap();
        world.start(&machine).await;
        assert_eq!(world.slots(&machine).len(), usize::from(op == "resize"));
        assert_eq!(world.sim.broken(), Vec::<String>::new());
    }
}

/// Whoever waits for a disk gets it when the other has ended.
#[tokio::test]
async fn a_start_waits_for_a_disk() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (slot, disk) = world.device(&machine).await;
    hangs(&world, CallKind::ResizeVolume);
    let released = async {
        begun(&world, &disk, vdi::Field::current_operations).await;
        tokio::task::yield_now().await;
        works(&world);
    };
    let (grown, started, ()) = tokio::join!(
        world.trial.call("VDI.resize", resized(&disk)),
        world.trial.call("VM.start", start(&machine)),
        released,
    );
    grown.unwrap();
    started.unwrap();
    assert!(world.attached(&slot));
    assert_eq!(world.sim.broken(), Vec::<String>::new());
}

#[tokio::test]
async fn no_machine_starts_on_storage_that_is_being_disconnected() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (_, disk) = world.device(&machine).await;
    let (place, link) = (world.place(), link(&world));
    hangs(&world, CallKind::SrDetach);
    let meanwhile = async {
        world.until(|world| world.get(&link, pbd::Field::currently_attached) == no()).await;
        let said = world.refused("VM.start", start(&machine)).await;
        assert_eq!(said, ["SR_NOT_ATTACHED", place.as_str()]);
        works(&world);
    };
    let (ended, ()) = tokio::join!(world.trial.call("PBD.unplug", [link.value()]), meanwhile);
    ended.unwrap();
    world.done("PBD.plug", [link.value()]).await;
    // One that fails is as it was.
    world.sim.rule(|call| match call.what {
        CallKind::SrDetach => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let said = world.refused("PBD.unplug", [link.value()]).await;
    assert_eq!(said[..2], ["SR_BACKEND_FAILURE", "OS"]);
    assert_eq!(world.get(&link, pbd::Field::currently_attached), yes());
    works(&world);
    world.start(&machine).await;
    let said = world.refused("PBD.unplug", [link.value()]).await;
    assert_eq!(said, ["VDI_IN_USE", disk.as_str(), "unplug"]);
}

/// The records say that it is halted, and the storage has not let go of its disk.
#[tokio::test]
async fn a_machine_that_holds_a_disk_is_not_forgotten() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (_, disk) = world.device(&machine).await;
    world.start(&machine).await;
    world.sim.rule(|call| match call.what {
        CallKind::DetachVolume => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let _ = world.trial.call("VM.hard_shutdown", [machine.value()]).await;
    assert_eq!(world.power(&machine), "Halted");
    for (method, of, op) in [
        ("VM.destroy", &machine, "destroy"),
        ("VDI.destroy", &disk, "destroy"),
        ("VDI.forget", &disk, "forget"),
    ] {
        let said = world.refused(method, [of.value()]).await;
        assert_eq!(said, ["VDI_IN_USE", disk.as_str(), op], "{method}");
    }
    let said = world.refused("VDI.resize", resized(&disk)).await;
    assert_eq!(said, ["VDI_IN_USE", disk.as_str(), "resize"]);
    let link = link(&world);
    let said = world.refused("PBD.unplug", [link.value()]).await;
    assert_eq!(said, ["VDI_IN_USE", disk.as_str(), "unplug"]);
    assert_eq!(world.get(&link, pbd::Field::currently_attached), yes());
    works(&world);
    world.done("VM.destroy", [machine.value()]).await;
    world.done("VDI.destroy", [disk.value()]).await;
    world.assert_clean();
}

/// It may be removed at any later time.
#[tokio::test]
async fn a_disk_whose_end_is_not_answered_is_not_given_to_machines() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (_, disk) = world.device(&machine).await;
    hangs(&world, CallKind::DestroyVolume);
    let said = world.refused("VDI.destroy", [disk.value()]).await;
    assert_eq!(said[..2], ["SR_BACKEND_FAILURE", "TIMEOUT"]);
    works(&world);
    let place = world.place();
    let said = world.refused("VM.start", start(&machine)).await;
    assert_eq!(said, ["VDI_MISSING", place.as_str(), disk.as_str()]);
    // It is there after all.
    world.done("SR.scan", [place.value()]).await;
    world.start(&machine).await;
}
