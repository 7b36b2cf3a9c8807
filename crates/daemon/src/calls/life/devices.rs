use model::domain::pci::MAX_CDS;
use toolstack::sim::CallKind;
use xenapi::table::{vbd, vdi, vif};

use super::*;

#[tokio::test]
async fn disks_come_and_go_while_a_machine_runs() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let (first, _) = world.device(&machine).await;
    let refused = world.refused("VBD.plug", [first.value()]).await;
    assert_eq!(refused, ["VM_BAD_POWER_STATE", machine.as_str(), "running", "halted"]);
    world.start(&machine).await;
    let refused = world.refused("VBD.plug", [first.value()]).await;
    assert_eq!(refused, ["DEVICE_ALREADY_ATTACHED", first.as_str()]);
    let (slot, disk) = world.device(&machine).await;
    assert_eq!(world.get(&slot, vbd::Field::userdevice), Value::text("1"));
    let refused = world.refused("VBD.unplug", [slot.value()]).await;
    assert_eq!(refused, ["DEVICE_ALREADY_DETACHED", slot.as_str()]);
    world.done("VBD.plug", [slot.value()]).await;
    assert!(world.attached(&slot));
    assert_eq!(world.get(&slot, vbd::Field::device), Value::text("vdb"));
    let refused = world.refused("VDI.destroy", [disk.value()]).await;
    assert_eq!(refused, ["VDI_IN_USE", disk.as_str(), "destroy"]);
    let refused = world.refused("VBD.destroy", [slot.value()]).await;
    assert_eq!(refused[0], "OPERATION_NOT_ALLOWED");
    world.done("VDI.resize", [disk.value(), Value::Int(2 * DISK_BYTES)]).await;
    assert_eq!(world.get(&disk, vdi::Field::virtual_size), Value::Int(2 * DISK_BYTES));
    let refused = world.refused("VDI.resize", [disk.value(), Value::Int(1)]).await;
    assert_eq!(refused[0], "VALUE_NOT_SUPPORTED");
    world.done("VBD.unplug", [slot.value()]).await;
    assert!(!world.attached(&slot));
    world.done("VBD.destroy", [slot.value()]).await;
    world.done("VDI.destroy", [disk.value()]).await;
    let refused = world.refused("VDI.get_record", [disk.value()]).await;
    assert_eq!(refused, ["HANDLE_INVALID", "VDI", disk.as_str()]);
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.assert_clean();
}

/// What is set of a disk that is served is told to who serves it.
#[tokio::test]
async fn limits_are_refused_or_kept() {
    let world = SimulatedHost::new().await;
    let machine = world.running().await;
    let (slot, _) = world.device(&machine).await;
    let algorithm = |name: &str| [slot.value(), Value::text(name)];
    let refused = world.refused("VBD.set_qos_algorithm_type", algorithm("magic")).await;
    assert_eq!(&refused[..3], ["VALUE_NOT_SUPPORTED", "qos_algorithm_type", "magic"]);
    world.done("VBD.set_qos_algorithm_type", algorithm("ringway")).await;
    let iops = |value: &str| [slot.value(), Value::text("iops"), Value::text(value)];
    let refused = world.refused("VBD.add_to_qos_algorithm_params", iops("many")).await;
    assert_eq!(&refused[..2], ["VALUE_NOT_SUPPORTED", "qos_algorithm_params"]);
    assert_eq!(world.get(&slot, vbd::Field::qos_algorithm_params), none());
    world.done("VBD.plug", [slot.value()]).await;
    world.done("VBD.add_to_qos_algorithm_params", iops("500")).await;
    let refused = world.refused("VBD.set_mode", [slot.value(), Value::text("RO")]).await;
    assert_eq!(refused, ["VM_BAD_POWER_STATE", machine.as_str(), "halted", "running"]);
}

#[tokio::test]
async fn numbers_are_given_once() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let disk = world.disk().await;
    let slot = |number: &str| {
        let Value::Map(mut members) = world.slot(&machine, Some(&disk), "Disk") else { panic!() };
        members.insert("userdevice".into(), Value::text(number));
        [Value::Map(members)]
    };
    let third = world.made("VBD.create", slot("xvdd")).await;
    assert_eq!(world.get(&third, vbd::Field::userdevice), Value::text("3"));
    assert_eq!(world.refused("VBD.create", slot("3")).await, ["DEVICE_ALREADY_EXISTS", "3"]);
    for bad in ["255", "-1", "x", ""] {
        assert_eq!(world.refused("VBD.create", slot(bad)).await, ["INVALID_DEVICE", bad]);
    }
    let other = world.made("VBD.create", slot("autodetect")).await;
    let set = |number: &str| [other.value(), Value::text(number)];
    let refused = world.refused("VBD.set_userdevice", set("sdd")).await;
    assert_eq!(refused, ["DEVICE_ALREADY_EXISTS", "3"]);
    world.done("VBD.set_userdevice", set("sdc")).await;
    assert_eq!(world.get(&other, vbd::Field::userdevice), Value::text("2"));
    let free = world.call("VM.get_allowed_VBD_devices", [machine.value()]).await;
    let Value::Set(free) = free else { panic!() };
    assert_eq!((free.len(), &free[..3]), (253, &["0", "1", "4"].map(Value::text)[..]));
}

#[tokio::test]
async fn a_medium_is_put_in_and_taken_out() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let drive = world.made("VBD.create", [world.slot(&machine, None, "CD")]).await;
    let disk = world.disk().await;
    assert_eq!(world.refused("VBD.eject", [drive.value()]).await, ["VBD_IS_EMPTY", drive.as_str()]);
    let insert = || [drive.value(), disk.value()];
    for power in ["Halted", "Running"] {
        world.done("VBD.insert", insert()).await;
        assert_eq!(world.get(&drive, vbd::Field::VDI), disk.value(), "{power}");
        assert_eq!(world.get(&drive, vbd::Field::empty), no());
        let refused = world.refused("VBD.insert", insert()).await;
        assert_eq!(refused, ["VBD_NOT_EMPTY", drive.as_str()]);
        world.done("VBD.eject", [drive.value()]).await;
        assert_eq!(world.get(&drive, vbd::Field::VDI), Value::text(NULL_REF));
        assert_eq!(world.get(&drive, vbd::Field::empty), yes());
        if power == "Halted" {
            world.start(&machine).await;
        }
    }
    world.sim.rule(|call| match call.what {
        CallKind::Disc => toolstack::sim::SimBehaviour::ends(toolstack::sim::SimResult::Fails),
        _ => toolstack::sim::SimBehaviour::default(),
    });
    world.refused("VBD.insert", insert()).await;
    world.until(|world| world.get(&drive, vbd::Field::empty) == yes()).await;
    assert_eq!(world.get(&drive, vbd::Field::VDI), Value::text(NULL_REF), "it is not in it");
    world.sim.rule(|_| toolstack::sim::SimBehaviour::default());
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.assert_clean();
}

#[tokio::test]
async fn a_machine_has_room_for_a_few_drives() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    for _ in 0..MAX_CDS {
        world.made("VBD.create", [world.slot(&machine, None, "CD")]).await;
    }
    let refused = world.refused("VBD.create", [world.slot(&machine, None, "CD")]).await;
    assert_eq!(refused[0], "OPERATION_NOT_ALLOWED");
    let Value::Map(mut writes) = world.slot(&machine, None, "CD") else { panic!() };
    writes.insert("mode".into(), Value::text("RW"));
    let refused = world.refused("VBD.create", [Value::Map(writes)]).await;
    assert_eq!(refused, ["VBD_CDS_MUST_BE_READONLY"]);
    let refused = world.refused("VBD.create", [world.slot(&machine, None, "Disk")]).await;
    assert_eq!(refused[0], "VBD_NOT_REMOVABLE_MEDIA");
    let other = world.running().await;
    let refused = world.refused("VBD.create", [world.slot(&other, None, "CD")]).await;
    assert_eq!(refused[0], "OPERATION_NOT_ALLOWED", "not while it runs");
}

#[tokio::test]
async fn a_disk_is_written_by_one_machine() {
    let world = SimulatedHost::new().await;
    let (one, other) = (world.running().await, world.running().await);
    let (slot, disk) = world.device(&one).await;
    world.done("VBD.plug", [slot.value()]).await;
    let second = world.made("VBD.create", [world.slot(&other, Some(&disk), "Disk")]).await;
    let refused = world.refused("VBD.plug", [second.value()]).await;
    assert_eq!(refused, ["VDI_IN_USE", disk.as_str(), "plug"]);
    world.done("VM.hard_shutdown", [other.value()]).await;
    let refused = world.refused("VM.start", [other.value(), no(), no()]).await;
    assert_eq!(refused, ["VDI_IN_USE", disk.as_str(), "attach"]);
}

#[tokio::test]
async fn network_devices_have_addresses_of_their_own() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let net = record([("name_label", Value::text("n")), ("other_config", none())]);
    let net = world.made("network.create", [net]).await;
    let device = |mac: &str| {
        [record([
            ("VM", machine.value()),
            ("network", net.value()),
            ("device", Value::text("autodetect")),
            ("MAC", Value::text(mac)),
            ("MTU", Value::Int(1500)),
            ("other_config", none()),
            ("qos_algorithm_type", Value::text("")),
            ("qos_algorithm_params", none()),
        ])]
    };
    let first = world.made("VIF.create", device("")).await;
    let second = world.made("VIF.create", device("00:16:3E:00:00:01")).await;
    assert_eq!(world.get(&first, vif::Field::MAC_autogenerated), yes());
    assert_eq!(world.get(&second, vif::Field::MAC), Value::text("00:16:3e:00:00:01"));
    let refused = world.refused("VIF.create", device("01:16:3e:00:00:01")).await;
    assert_eq!(refused, ["MAC_INVALID", "01:16:3e:00:00:01"]);
    world.start(&machine).await;
    assert_eq!(world.get(&first, vif::Field::currently_attached), yes());
    world.done("VIF.unplug", [first.value()]).await;
    let refused = world.refused("VIF.unplug", [first.value()]).await;
    assert_eq!(refused, ["DEVICE_ALREADY_DETACHED", first.as_str()]);
    world.done("VIF.destroy", [first.value()]).await;
    let third = world.made("VIF.create", device("")).await;
    assert_eq!(world.get(&third, vif::Field::device), Value::text("0"));
    let refused = world.refused("network.destroy", [net.value()]).await;
    assert_eq!(refused[0], "NETWORK_CONTAINS_VIF");
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.done("VM.destroy", [machine.value()]).await;
    world.done("network.destroy", [net.value()]).await;
    world.assert_clean();
    let gone = world.refused("VM.get_record", [machine.value()]).await;
    assert_eq!(gone, ["HANDLE_INVALID", "VM", machine.as_str()]);
}

#[tokio::test]
async fn addresses_that_are_seen_are_told_until_the_machine_ends() {
    use xenapi::table::vm_guest_metrics::Field;
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    let net = record([("name_label", Value::text("n")), ("other_config", none())]);
    let net = world.made("network.create", [net]).await;
    let device = |number: &str| {
        record([
            ("VM", machine.value()),
            ("network", net.value()),
            ("device", Value::text(number)),
            ("MAC", Value::text("")),
            ("MTU", Value::Int(1500)),
            ("other_config", none()),
            ("qos_algorithm_type", Value::text("")),
            ("qos_algorithm_params", none()),
        ])
    };
    let devices = [
        world.made("VIF.create", [device("0")]).await,
        world.made("VIF.create", [device("2")]).await,
    ];
    let ids = devices.map(|device| {
        let db = &world.trial.house.db;
        model::id::VifId(db.read(|view| uuid(view, &device, vif::Field::uuid)).unwrap())
    });
    let claim = |at: usize, address: &str| world.sim.claim(ids[at], address.parse().unwrap());
    let told = |world: &SimulatedHost| {
        let metrics = Ref::from(text(&world.get(&machine, vm::Field::guest_metrics)));
        let db = &world.trial.house.db;
        db.read(|view| view.get(&metrics, Field::networks).cloned()).unwrap_or_else(|_| none())
    };
    claim(0, "10.0.0.1");
    world.start(&machine).await;
    assert_eq!(world.get(&machine, vm::Field::guest_metrics), Value::text(NULL_REF));
    claim(0, "10.0.0.2");
    let all = [("0/ip", "10.0.0.2"), ("0/ipv4/0", "10.0.0.2")];
    let first = record(all.map(|(name, one)| (name, Value::text(one))));
    world.until(|world| told(world) == first).await;
    for (at, address) in [(0, "10.0.0.3"), (1, "fe80::1"), (0, "fe80::2")] {
        claim(at, address);
    }
    let all = [
        ("0/ip", "10.0.0.3"),
        ("0/ipv4/0", "10.0.0.3"),
        ("0/ipv4/1", "10.0.0.2"),
        ("0/ipv6/0", "fe80::2"),
        ("2/ipv6/0", "fe80::1"),
    ];
    let second = record(all.map(|(name, one)| (name, Value::text(one))));
    world.until(|world| told(world) == second).await;
    // It says nothing of what the guest can do: it is asked to go down as before.
    world.done("VM.clean_shutdown", [machine.value()]).await;
    assert_eq!(world.get(&machine, vm::Field::guest_metrics), Value::text(NULL_REF));
    world.start(&machine).await;
    claim(1, "10.0.0.9");
    let all = [("2/ip", "10.0.0.9"), ("2/ipv4/0", "10.0.0.9")];
    let third = record(all.map(|(name, one)| (name, Value::text(one))));
    world.until(|world| told(world) == third).await;
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.assert_clean();
}
