//! VM operations that attach VDIs, and operations that destroy or change VDIs, exclude each other.

use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{pbd, sr, vbd, vdi, vm};

use super::simulated_host::*;

fn hangs(sim_host: &SimulatedHost, call_kind: CallKind) {
    sim_host.sim.rule(move |call| match call.call_kind == call_kind {
        true => SimBehaviour::ends(SimResult::Hangs),
        false => SimBehaviour::default(),
    });
}

fn works(sim_host: &SimulatedHost) {
    sim_host.sim.rule(|_| SimBehaviour::default());
}

fn start(machine: &Ref) -> [Value; 3] {
    [machine.value(), no(), no()]
}

fn resized(disk: &Ref) -> [Value; 2] {
    [disk.value(), Value::Int(2 * DISK_BYTES)]
}

fn link(sim_host: &SimulatedHost) -> Ref {
    let (db, place) = (&sim_host.test_app.app.db, sim_host.place());
    db.read(|view| references(view, &place, sr::Field::PBDs)).unwrap().pop().unwrap()
}

async fn begun(sim_host: &SimulatedHost, of: &Ref, field: impl Into<FieldIx> + Copy) {
    sim_host.until(|sim_host| sim_host.get(of, field) != none()).await;
}

#[tokio::test]
async fn a_disk_stays_while_its_machine_starts() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, disk) = sim_host.device(&machine).await;
    hangs(&sim_host, CallKind::Create);
    let meanwhile = async {
        begun(&sim_host, &machine, vm::Field::current_operations).await;
        let Value::Map(busy) = sim_host.get(&slot, vbd::Field::current_operations) else {
            panic!()
        };
        assert_eq!(busy.values().collect::<Vec<_>>(), [&Value::text("attach")]);
        for (method, args) in [
            ("VDI.destroy", vec![disk.value()]),
            ("VDI.forget", vec![disk.value()]),
            ("VDI.resize", resized(&disk).to_vec()),
        ] {
            let error = sim_host.refused(method, args).await;
            let expected = ["OTHER_OPERATION_IN_PROGRESS", "VDI", disk.as_str(), "attach"];
            assert_eq!(error[..4], expected, "{method}");
        }
        // No other VM may attach the VDI for writing, and its SR cannot be detached.
        let other = sim_host.machine().await;
        sim_host.made("VBD.create", [sim_host.slot(&other, Some(&disk), "Disk")]).await;
        let error = sim_host.refused("VM.start", start(&other)).await;
        assert_eq!(error, ["VDI_IN_USE", disk.as_str(), "attach"]);
        let error = sim_host.refused("PBD.unplug", [link(&sim_host).value()]).await;
        assert_eq!(error, ["VDI_IN_USE", disk.as_str(), "unplug"]);
        works(&sim_host);
    };
    let (started, ()) =
        tokio::join!(sim_host.test_app.call("VM.start", start(&machine)), meanwhile);
    started.unwrap();
    assert_eq!(sim_host.get(&slot, vbd::Field::current_operations), none());
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.done("VDI.destroy", [disk.value()]).await;
    sim_host.assert_clean();
}

#[tokio::test]
async fn a_disk_stays_while_its_machine_reboots() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, disk) = sim_host.device(&machine).await;
    sim_host.start(&machine).await;
    hangs(&sim_host, CallKind::Create);
    let meanwhile = async {
        // The old domain has released the VDI, and the new one has not attached it yet.
        sim_host.until(|sim_host| !sim_host.attached(&slot)).await;
        let error = sim_host.refused("VDI.destroy", [disk.value()]).await;
        assert_eq!(error[..3], ["OTHER_OPERATION_IN_PROGRESS", "VDI", disk.as_str()]);
        works(&sim_host);
    };
    let reboot = sim_host.test_app.call("VM.hard_reboot", [machine.value()]);
    let (rebooted, ()) = tokio::join!(reboot, meanwhile);
    rebooted.unwrap();
    assert!(sim_host.attached(&slot));
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

#[tokio::test]
async fn a_machine_does_not_start_with_a_disk_that_is_being_removed_or_changed() {
    for (method, op, call_kind) in [
        ("VDI.destroy", "destroy", CallKind::DestroyVolume),
        ("VDI.resize", "resize", CallKind::ResizeVolume),
    ] {
        let sim_host = SimulatedHost::new().await;
        let machine = sim_host.machine().await;
        let running = sim_host.running().await;
        let (_, disk) = sim_host.device(&machine).await;
        let slot =
            sim_host.made("VBD.create", [sim_host.slot(&running, Some(&disk), "Disk")]).await;
        hangs(&sim_host, call_kind);
        let args = if op == "resize" { resized(&disk).to_vec() } else { vec![disk.value()] };
        let meanwhile = async {
            begun(&sim_host, &disk, vdi::Field::current_operations).await;
            for (method, args) in
                [("VM.start", start(&machine).to_vec()), ("VBD.plug", vec![slot.value()])]
            {
                let error = sim_host.refused(method, args).await;
                let expected = ["OTHER_OPERATION_IN_PROGRESS", "VDI", disk.as_str(), op];
                assert_eq!(error[..4], expected, "{method}");
            }
            assert_eq!(sim_host.power(&machine), "Halted");
            works(&sim_host);
        };
        let (ended, ()) = tokio::join!(sim_host.test_app.call(method, args), meanwhile);
        ended.unwrap();
        sim_host.start(&machine).await;
        assert_eq!(sim_host.slots(&machine).len(), usize::from(op == "resize"));
        assert_eq!(sim_host.sim.broken(), Vec::<String>::new());
    }
}

/// A start waits for an operation on a VDI to end.
#[tokio::test]
async fn a_start_waits_for_a_disk() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (slot, disk) = sim_host.device(&machine).await;
    hangs(&sim_host, CallKind::ResizeVolume);
    let released = async {
        begun(&sim_host, &disk, vdi::Field::current_operations).await;
        tokio::task::yield_now().await;
        works(&sim_host);
    };
    let (grown, started, ()) = tokio::join!(
        sim_host.test_app.call("VDI.resize", resized(&disk)),
        sim_host.test_app.call("VM.start", start(&machine)),
        released,
    );
    grown.unwrap();
    started.unwrap();
    assert!(sim_host.attached(&slot));
    assert_eq!(sim_host.sim.broken(), Vec::<String>::new());
}

#[tokio::test]
async fn no_machine_starts_on_storage_that_is_being_disconnected() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (_, disk) = sim_host.device(&machine).await;
    let (place, link) = (sim_host.place(), link(&sim_host));
    hangs(&sim_host, CallKind::SrDetach);
    let meanwhile = async {
        sim_host
            .until(|sim_host| sim_host.get(&link, pbd::Field::currently_attached) == no())
            .await;
        let error = sim_host.refused("VM.start", start(&machine)).await;
        assert_eq!(error, ["SR_NOT_ATTACHED", place.as_str()]);
        works(&sim_host);
    };
    let (ended, ()) = tokio::join!(sim_host.test_app.call("PBD.unplug", [link.value()]), meanwhile);
    ended.unwrap();
    sim_host.done("PBD.plug", [link.value()]).await;
    // A failed operation leaves the VDI unchanged.
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::SrDetach => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let error = sim_host.refused("PBD.unplug", [link.value()]).await;
    assert_eq!(error[..2], ["SR_BACKEND_FAILURE", "OS"]);
    assert_eq!(sim_host.get(&link, pbd::Field::currently_attached), yes());
    works(&sim_host);
    sim_host.start(&machine).await;
    let error = sim_host.refused("PBD.unplug", [link.value()]).await;
    assert_eq!(error, ["VDI_IN_USE", disk.as_str(), "unplug"]);
}

/// The record says that the VM is halted, but its VDI is still attached.
#[tokio::test]
async fn a_machine_that_holds_a_disk_is_not_forgotten() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (_, disk) = sim_host.device(&machine).await;
    sim_host.start(&machine).await;
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::DetachVolume => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let _ = sim_host.test_app.call("VM.hard_shutdown", [machine.value()]).await;
    assert_eq!(sim_host.power(&machine), "Halted");
    for (method, of, op) in [
        ("VM.destroy", &machine, "destroy"),
        ("VDI.destroy", &disk, "destroy"),
        ("VDI.forget", &disk, "forget"),
    ] {
        let error = sim_host.refused(method, [of.value()]).await;
        assert_eq!(error, ["VDI_IN_USE", disk.as_str(), op], "{method}");
    }
    let error = sim_host.refused("VDI.resize", resized(&disk)).await;
    assert_eq!(error, ["VDI_IN_USE", disk.as_str(), "resize"]);
    let link = link(&sim_host);
    let error = sim_host.refused("PBD.unplug", [link.value()]).await;
    assert_eq!(error, ["VDI_IN_USE", disk.as_str(), "unplug"]);
    assert_eq!(sim_host.get(&link, pbd::Field::currently_attached), yes());
    works(&sim_host);
    sim_host.done("VM.destroy", [machine.value()]).await;
    sim_host.done("VDI.destroy", [disk.value()]).await;
    sim_host.assert_clean();
}

/// The volume may be removed at any later time.
#[tokio::test]
async fn a_disk_whose_end_is_not_answered_is_not_given_to_machines() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (_, disk) = sim_host.device(&machine).await;
    hangs(&sim_host, CallKind::DestroyVolume);
    let error = sim_host.refused("VDI.destroy", [disk.value()]).await;
    assert_eq!(error[..2], ["SR_BACKEND_FAILURE", "TIMEOUT"]);
    works(&sim_host);
    let place = sim_host.place();
    let error = sim_host.refused("VM.start", start(&machine)).await;
    assert_eq!(error, ["VDI_MISSING", place.as_str(), disk.as_str()]);
    // The scan finds the volume after all.
    sim_host.done("SR.scan", [place.value()]).await;
    sim_host.start(&machine).await;
}
