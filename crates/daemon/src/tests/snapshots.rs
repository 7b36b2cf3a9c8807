//! Tests of snapshots and clones.

use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{vdi, vif};

use super::simulated_host::*;

impl SimulatedHost {
    async fn snapshot(&self, machine: &Ref, left_out: &[&Ref]) -> Ref {
        let left_out = left_out.iter().map(|disk| disk.value()).collect();
        let args = [machine.value(), Value::text("s"), Value::Set(left_out)];
        self.made("VM.snapshot", args).await
    }

    /// Returns the VDIs of a VM, in the order of its devices.
    fn disks(&self, machine: &Ref) -> Vec<Ref> {
        let mut slots = self.slots(machine);
        slots.sort_by_key(|slot| text(&self.get(slot, vbd::Field::userdevice)).to_owned());
        let of = |slot: &Ref| Ref::from(text(&self.get(slot, vbd::Field::VDI)));
        slots.iter().map(of).collect()
    }

    fn macs(&self, machine: &Ref) -> Vec<Value> {
        let db = &self.test_app.app.db;
        let vifs = db.read(|view| references(view, machine, vm::Field::VIFs)).unwrap();
        vifs.iter().map(|one| self.get(one, vif::Field::MAC)).collect()
    }

    fn disk_count(&self) -> usize {
        self.test_app.app.db.read(|view| view.count(&vdi::CLASS))
    }

    /// Creates and attaches another SR.
    async fn other_place(&self) -> Ref {
        let host =
            self.test_app.app.db.read(|view| {
                view.all(&xenapi::table::host::CLASS).next().unwrap().reference().clone()
            });
        let texts = ["second", "", "sim", "user"].map(Value::text);
        let [name, description, kind, content] = texts;
        let size = Value::Int(0);
        let args = [host.value(), none(), size, name, description, kind, content, no(), none()];
        self.made("SR.create", args).await
    }

    /// Fails the second of these calls.
    fn second_fails(&self, call_kind: CallKind) {
        let count = std::sync::atomic::AtomicUsize::new(0);
        self.sim.rule(move |call| {
            let is_it = call.call_kind == call_kind;
            let is_second = is_it && count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1;
            if is_second { SimBehaviour::ends(SimResult::Fails) } else { SimBehaviour::default() }
        });
    }
}

/// A machine with two disks and a NIC.
async fn two_disks(sim_host: &SimulatedHost) -> (Ref, Vec<Ref>) {
    let machine = sim_host.machine().await;
    sim_host.device(&machine).await;
    sim_host.device(&machine).await;
    let disks = sim_host.disks(&machine);
    (machine, disks)
}

#[tokio::test]
async fn a_clone_has_disks_of_its_own() {
    let sim_host = SimulatedHost::new().await;
    let (machine, disks) = two_disks(&sim_host).await;
    sim_host.made("VBD.create", [sim_host.slot(&machine, None, "CD")]).await;
    let copy = sim_host.made("VM.clone", [machine.value(), Value::text("copy")]).await;
    let clones = sim_host.disks(&copy);
    assert_eq!(clones.len(), 3);
    for (clone, disk) in clones.iter().zip(&disks) {
        assert_ne!(clone, disk);
        for field in [vdi::Field::virtual_size, vdi::Field::name_label, vdi::Field::SR] {
            assert_eq!(sim_host.get(clone, field), sim_host.get(disk, field), "{field:?}");
        }
        assert_eq!(sim_host.get(clone, vdi::Field::is_a_snapshot), no());
        assert_eq!(sim_host.get(clone, vdi::Field::read_only), no());
    }
    assert!(clones[2].is_null(), "an empty drive stays empty");
    sim_host.start(&copy).await;
    sim_host.done("VM.hard_shutdown", [copy.value()]).await;
    // Nothing is left of a clone that fails.
    let before = sim_host.disk_count();
    sim_host.second_fails(CallKind::AddClone);
    let refused = sim_host.refused("VM.clone", [machine.value(), Value::text("x")]).await;
    assert_eq!(refused[..2], ["SR_BACKEND_FAILURE", "OS"]);
    assert_eq!(sim_host.disk_count(), before);
    assert_eq!(sim_host.get(&machine, vm::Field::current_operations), none());
    assert_eq!(sim_host.get(&disks[0], vdi::Field::current_operations), none());
    sim_host.assert_clean();
}

#[tokio::test]
async fn a_machine_comes_back_to_a_snapshot() {
    let sim_host = SimulatedHost::new().await;
    let (machine, disks) = two_disks(&sim_host).await;
    sim_host.start(&machine).await;
    sim_host.test_app.hands.set(77);
    let snapshot = sim_host.snapshot(&machine, &[]).await;
    let taken = sim_host.disks(&snapshot);
    for (of, disk) in taken.iter().zip(&disks) {
        assert_eq!(sim_host.get(of, vdi::Field::snapshot_of), disk.value());
        assert_eq!(sim_host.get(of, vdi::Field::is_a_snapshot), yes());
        assert_eq!(sim_host.get(of, vdi::Field::read_only), yes());
        assert_eq!(sim_host.get(of, vdi::Field::snapshot_time), Value::Date(xenapi::Date(77)));
    }
    assert_eq!(sim_host.get(&snapshot, vm::Field::is_a_template), yes());
    assert_eq!(sim_host.get(&snapshot, vm::Field::snapshot_of), machine.value());
    assert_eq!(sim_host.macs(&snapshot), sim_host.macs(&machine));
    assert_eq!(sim_host.power(&snapshot), "Halted");
    let refused = sim_host.refused("VM.start", [snapshot.value(), no(), no()]).await;
    assert_eq!(refused, ["VM_IS_SNAPSHOT", snapshot.as_str()]);
    let partly = sim_host.snapshot(&machine, &[&disks[0]]).await;
    assert_eq!(sim_host.slots(&partly).len(), 1, "a disk is left out");

    let (slot, later) = sim_host.device(&machine).await;
    sim_host.done("VBD.plug", [slot.value()]).await;
    let name = [machine.value(), Value::text("renamed")];
    sim_host.done("VM.set_name_label", name).await;
    let macs = sim_host.macs(&machine);
    sim_host.done("VM.revert", [snapshot.value()]).await;
    assert_eq!(sim_host.power(&machine), "Halted");
    let reverted = sim_host.disks(&machine);
    assert_eq!((reverted.len(), sim_host.macs(&machine)), (2, macs));
    assert_eq!(sim_host.get(&machine, vm::Field::name_label), Value::text("renamed"));
    assert_eq!(sim_host.get(&machine, vm::Field::is_a_template), no());
    // The snapshots are those of the present disks. A disk that no snapshot has is kept.
    for (of, disk) in taken.iter().zip(&reverted) {
        assert_eq!(sim_host.get(of, vdi::Field::snapshot_of), disk.value());
    }
    sim_host.get(&later, vdi::Field::uuid);
    for old in &disks {
        let refused = sim_host.refused("VDI.get_uuid", [old.value()]).await;
        assert_eq!(refused, ["HANDLE_INVALID", "VDI", old.as_str()]);
    }
    sim_host.start(&machine).await;
    sim_host.done("VM.revert", [partly.value()]).await;
    assert_eq!(sim_host.disks(&machine).len(), 1);
    // A revert that fails changes nothing, and the machine goes on.
    sim_host.start(&machine).await;
    let before = (sim_host.disk_count(), sim_host.disks(&machine));
    sim_host.second_fails(CallKind::AddClone);
    let refused = sim_host.refused("VM.revert", [snapshot.value()]).await;
    assert_eq!(refused[..2], ["SR_BACKEND_FAILURE", "OS"]);
    assert_eq!((sim_host.disk_count(), sim_host.disks(&machine)), before);
    assert_eq!(sim_host.power(&machine), "Running");
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.done("VM.destroy", [machine.value()]).await;
    let refused = sim_host.refused("VM.revert", [snapshot.value()]).await;
    assert!(refused[1].contains("clone the snapshot"), "{refused:?}");
    sim_host.assert_clean();
}

#[tokio::test]
async fn a_snapshot_of_several_disks_is_whole_or_not_there() {
    let sim_host = SimulatedHost::new().await;
    let (machine, _) = two_disks(&sim_host).await;
    sim_host.start(&machine).await;
    for call_kind in [CallKind::AddSnapshot, CallKind::PrepareLayer, CallKind::SettleLayer] {
        let before = sim_host.disk_count();
        sim_host.second_fails(call_kind);
        let args = [machine.value(), Value::text("s"), Value::Set(Vec::new())];
        let refused = sim_host.refused("VM.snapshot", args).await;
        assert_eq!(refused[..2], ["SR_BACKEND_FAILURE", "OS"], "{call_kind:?}");
        assert_eq!(sim_host.disk_count(), before, "{call_kind:?}");
        let volumes = sim_host.sim.volumes();
        assert_eq!(volumes, before, "{call_kind:?}");
    }
    sim_host.sim.rule(|_| SimBehaviour::default());
    sim_host.snapshot(&machine, &[]).await;
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

#[tokio::test]
async fn a_copy_is_a_disk_of_another_storage() {
    let sim_host = SimulatedHost::new().await;
    let (machine, disks) = two_disks(&sim_host).await;
    let place = sim_host.other_place().await;
    let none = Value::text(NULL_REF);
    let copy = |disk: &Ref, to: Value| [disk.value(), to, none.clone(), none.clone()];
    let copied = sim_host.made("VDI.copy", copy(&disks[0], place.value())).await;
    assert_eq!(sim_host.get(&copied, vdi::Field::SR), place.value());
    assert_eq!(sim_host.get(&copied, vdi::Field::virtual_size), Value::Int(DISK_BYTES));
    let whole = sim_host.made("VDI.copy", copy(&disks[0], none.clone())).await;
    assert_eq!(sim_host.get(&whole, vdi::Field::SR), sim_host.place().value());
    let based = [disks[0].value(), none.clone(), disks[1].value(), none.clone()];
    let refused = sim_host.refused("VDI.copy", based).await;
    assert_eq!(refused[..2], ["VALUE_NOT_SUPPORTED", "base_vdi"]);
    // A disk that exists gets the content of another one.
    let into = |into: &Ref| [disks[0].value(), none.clone(), none.clone(), into.value()];
    assert_eq!(sim_host.made("VDI.copy", into(&disks[1])).await, disks[1]);
    let refused = sim_host.refused("VDI.copy", into(&disks[0])).await;
    assert_eq!(refused[..2], ["OTHER_OPERATION_IN_PROGRESS", "VDI"]);
    let snapshot =
        sim_host.made("VDI.snapshot", [disks[1].value(), Value::Map(Default::default())]);
    let refused = sim_host.refused("VDI.copy", into(&snapshot.await)).await;
    assert_eq!(refused[0], "VDI_READONLY");
    let args = [machine.value(), Value::text("copy"), place.value()];
    let other = sim_host.made("VM.copy", args.clone()).await;
    for disk in sim_host.disks(&other) {
        assert_eq!(sim_host.get(&disk, vdi::Field::SR), place.value());
    }
    // A failed copy leaves nothing, and a disk that is written is not copied.
    let before = (sim_host.disk_count(), sim_host.sim.volumes());
    sim_host.second_fails(CallKind::Convert);
    let refused = sim_host.refused("VM.copy", args).await;
    assert_eq!(refused[..2], ["SR_BACKEND_FAILURE", "DATAPATH"]);
    assert_eq!((sim_host.disk_count(), sim_host.sim.volumes()), before);
    sim_host.sim.rule(|_| SimBehaviour::default());
    sim_host.start(&machine).await;
    let refused = sim_host.refused("VDI.copy", copy(&disks[0], none.clone())).await;
    assert_eq!(refused[..2], ["VDI_IN_USE", disks[0].as_str()]);
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

#[tokio::test]
async fn a_scan_brings_snapshots_back() {
    let sim_host = SimulatedHost::new().await;
    let (_, disks) = two_disks(&sim_host).await;
    sim_host.test_app.hands.set(55);
    let snapshot = sim_host.made("VDI.snapshot", [disks[0].value(), none()]).await;
    let uuid = sim_host.get(&snapshot, vdi::Field::uuid);
    sim_host.done("VDI.forget", [snapshot.value()]).await;
    sim_host.done("SR.scan", [sim_host.place().value()]).await;
    let again = sim_host.made("VDI.get_by_uuid", [uuid]).await;
    for (field, expected) in [
        (vdi::Field::is_a_snapshot, yes()),
        (vdi::Field::read_only, yes()),
        (vdi::Field::snapshot_of, disks[0].value()),
        (vdi::Field::snapshot_time, Value::Date(xenapi::Date(55))),
    ] {
        assert_eq!(sim_host.get(&again, field), expected, "{field:?}");
    }
}

#[tokio::test]
async fn a_snapshot_of_nothing_has_the_null_reference() {
    let sim_host = SimulatedHost::new().await;
    let (machine, disks) = two_disks(&sim_host).await;
    let snapshot = sim_host.snapshot(&machine, &[]).await;
    let taken = sim_host.disks(&snapshot);
    sim_host.done("VDI.forget", [disks[0].value()]).await;
    sim_host.done("VDI.destroy", [disks[1].value()]).await;
    let null = Value::text(xenapi::NULL_REF);
    for disk in &taken {
        assert_eq!(sim_host.get(disk, vdi::Field::snapshot_of), null);
        assert_eq!(sim_host.get(disk, vdi::Field::is_a_snapshot), yes());
    }
    // A revert makes disks that the snapshots are of.
    sim_host.made("VBD.create", [sim_host.slot(&machine, None, "CD")]).await;
    sim_host.done("VM.revert", [snapshot.value()]).await;
    for (of, disk) in taken.iter().zip(sim_host.disks(&machine)) {
        assert_eq!(sim_host.get(of, vdi::Field::snapshot_of), disk.value());
    }
    sim_host.done("VM.destroy", [machine.value()]).await;
    assert_eq!(sim_host.get(&snapshot, vm::Field::snapshot_of), null);
    let refused = sim_host.refused("VM.revert", [snapshot.value()]).await;
    assert_eq!(refused[0], "OPERATION_NOT_ALLOWED");
    assert!(refused[1].contains("clone the snapshot"), "{refused:?}");
}
