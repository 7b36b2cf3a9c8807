use model::domain::pci::MAX_CDS;
use model::id::VbdId;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{vbd, vdi, vif};

use super::simulated_host::*;

#[tokio::test]
async fn disks_come_and_go_while_a_machine_runs() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let (first, _) = sim_host.device(&machine).await;
    let refused = sim_host.refused("VBD.plug", [first.value()]).await;
    assert_eq!(refused, ["VM_BAD_POWER_STATE", machine.as_str(), "running", "halted"]);
    sim_host.start(&machine).await;
    let refused = sim_host.refused("VBD.plug", [first.value()]).await;
    assert_eq!(refused, ["DEVICE_ALREADY_ATTACHED", first.as_str()]);
    let (slot, disk) = sim_host.device(&machine).await;
    assert_eq!(sim_host.get(&slot, vbd::Field::userdevice), Value::text("1"));
    let refused = sim_host.refused("VBD.unplug", [slot.value()]).await;
    assert_eq!(refused, ["DEVICE_ALREADY_DETACHED", slot.as_str()]);
    sim_host.done("VBD.plug", [slot.value()]).await;
    assert!(sim_host.attached(&slot));
    assert_eq!(sim_host.get(&slot, vbd::Field::device), Value::text("vdb"));
    let refused = sim_host.refused("VDI.destroy", [disk.value()]).await;
    assert_eq!(refused, ["VDI_IN_USE", disk.as_str(), "destroy"]);
    let refused = sim_host.refused("VBD.destroy", [slot.value()]).await;
    assert_eq!(refused[0], "OPERATION_NOT_ALLOWED");
    sim_host.done("VDI.resize", [disk.value(), Value::Int(2 * DISK_BYTES)]).await;
    assert_eq!(sim_host.get(&disk, vdi::Field::virtual_size), Value::Int(2 * DISK_BYTES));
    let refused = sim_host.refused("VDI.resize", [disk.value(), Value::Int(1)]).await;
    assert_eq!(refused[0], "VALUE_NOT_SUPPORTED");
    sim_host.done("VBD.unplug", [slot.value()]).await;
    assert!(!sim_host.attached(&slot));
    sim_host.done("VBD.destroy", [slot.value()]).await;
    sim_host.done("VDI.destroy", [disk.value()]).await;
    let refused = sim_host.refused("VDI.get_record", [disk.value()]).await;
    assert_eq!(refused, ["HANDLE_INVALID", "VDI", disk.as_str()]);
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

/// Without a forced unplug, a guest would lose a file system that it has mounted.
#[tokio::test]
async fn a_mounted_disk_is_unplugged_only_by_force() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.running().await;
    let (slot, _) = sim_host.device(&machine).await;
    sim_host.done("VBD.plug", [slot.value()]).await;
    let vbd = VbdId(text(&sim_host.get(&slot, vbd::Field::uuid)).parse().unwrap());
    sim_host.sim.mounts(vbd, &["/data", "/srv"]);
    let refused = sim_host.refused("VBD.unplug", [slot.value()]).await;
    assert_eq!(refused[..3], ["DEVICE_DETACH_REJECTED", "VBD", slot.as_str()]);
    assert!(refused[3].contains("/data, /srv") && refused[3].contains("force=true"), "{refused:?}");
    assert!(sim_host.attached(&slot));
    sim_host.done("VBD.unplug_force", [slot.value()]).await;
    assert!(!sim_host.attached(&slot));

    // An agent that fails to answer is no reason to refuse.
    sim_host.done("VBD.plug", [slot.value()]).await;
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::Agent => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    sim_host.done("VBD.unplug", [slot.value()]).await;
    assert!(!sim_host.attached(&slot));
}

/// Settings of a served disk are applied to its datapath.
#[tokio::test]
async fn limits_are_refused_or_kept() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.running().await;
    let (slot, _) = sim_host.device(&machine).await;
    let algorithm = |name: &str| [slot.value(), Value::text(name)];
    let refused = sim_host.refused("VBD.set_qos_algorithm_type", algorithm("magic")).await;
    assert_eq!(&refused[..3], ["VALUE_NOT_SUPPORTED", "qos_algorithm_type", "magic"]);
    sim_host.done("VBD.set_qos_algorithm_type", algorithm("ringway")).await;
    let iops = |value: &str| [slot.value(), Value::text("iops"), Value::text(value)];
    let refused = sim_host.refused("VBD.add_to_qos_algorithm_params", iops("many")).await;
    assert_eq!(&refused[..2], ["VALUE_NOT_SUPPORTED", "qos_algorithm_params"]);
    assert_eq!(sim_host.get(&slot, vbd::Field::qos_algorithm_params), none());
    sim_host.done("VBD.plug", [slot.value()]).await;
    sim_host.done("VBD.add_to_qos_algorithm_params", iops("500")).await;
    let refused = sim_host.refused("VBD.set_mode", [slot.value(), Value::text("RO")]).await;
    assert_eq!(refused, ["VM_BAD_POWER_STATE", machine.as_str(), "halted", "running"]);
}

#[tokio::test]
async fn numbers_are_given_once() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let disk = sim_host.disk().await;
    let slot = |number: &str| {
        let Value::Map(mut members) = sim_host.slot(&machine, Some(&disk), "Disk") else {
            panic!()
        };
        members.insert("userdevice".into(), Value::text(number));
        [Value::Map(members)]
    };
    let third = sim_host.made("VBD.create", slot("xvdd")).await;
    assert_eq!(sim_host.get(&third, vbd::Field::userdevice), Value::text("3"));
    assert_eq!(sim_host.refused("VBD.create", slot("3")).await, ["DEVICE_ALREADY_EXISTS", "3"]);
    for bad in ["255", "-1", "x", ""] {
        assert_eq!(sim_host.refused("VBD.create", slot(bad)).await, ["INVALID_DEVICE", bad]);
    }
    let other = sim_host.made("VBD.create", slot("autodetect")).await;
    let set = |number: &str| [other.value(), Value::text(number)];
    let refused = sim_host.refused("VBD.set_userdevice", set("sdd")).await;
    assert_eq!(refused, ["DEVICE_ALREADY_EXISTS", "3"]);
    sim_host.done("VBD.set_userdevice", set("sdc")).await;
    assert_eq!(sim_host.get(&other, vbd::Field::userdevice), Value::text("2"));
    let free = sim_host.call("VM.get_allowed_VBD_devices", [machine.value()]).await;
    let Value::Set(free) = free else { panic!() };
    assert_eq!((free.len(), &free[..3]), (253, &["0", "1", "4"].map(Value::text)[..]));
}

#[tokio::test]
async fn a_medium_is_put_in_and_taken_out() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let drive = sim_host.made("VBD.create", [sim_host.slot(&machine, None, "CD")]).await;
    let disk = sim_host.disk().await;
    assert_eq!(
        sim_host.refused("VBD.eject", [drive.value()]).await,
        ["VBD_IS_EMPTY", drive.as_str()]
    );
    let insert = || [drive.value(), disk.value()];
    for power in ["Halted", "Running"] {
        sim_host.done("VBD.insert", insert()).await;
        assert_eq!(sim_host.get(&drive, vbd::Field::VDI), disk.value(), "{power}");
        assert_eq!(sim_host.get(&drive, vbd::Field::empty), no());
        let refused = sim_host.refused("VBD.insert", insert()).await;
        assert_eq!(refused, ["VBD_NOT_EMPTY", drive.as_str()]);
        sim_host.done("VBD.eject", [drive.value()]).await;
        assert_eq!(sim_host.get(&drive, vbd::Field::VDI), Value::text(NULL_REF));
        assert_eq!(sim_host.get(&drive, vbd::Field::empty), yes());
        if power == "Halted" {
            sim_host.start(&machine).await;
        }
    }
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::Disc => toolstack::sim::SimBehaviour::ends(toolstack::sim::SimResult::Fails),
        _ => toolstack::sim::SimBehaviour::default(),
    });
    sim_host.refused("VBD.insert", insert()).await;
    sim_host.until(|sim_host| sim_host.get(&drive, vbd::Field::empty) == yes()).await;
    assert_eq!(sim_host.get(&drive, vbd::Field::VDI), Value::text(NULL_REF), "it is not in it");
    sim_host.sim.rule(|_| toolstack::sim::SimBehaviour::default());
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}

#[tokio::test]
async fn a_machine_has_room_for_a_few_drives() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    for _ in 0..MAX_CDS {
        sim_host.made("VBD.create", [sim_host.slot(&machine, None, "CD")]).await;
    }
    let refused = sim_host.refused("VBD.create", [sim_host.slot(&machine, None, "CD")]).await;
    assert_eq!(refused[0], "OPERATION_NOT_ALLOWED");
    let Value::Map(mut writes) = sim_host.slot(&machine, None, "CD") else { panic!() };
    writes.insert("mode".into(), Value::text("RW"));
    let refused = sim_host.refused("VBD.create", [Value::Map(writes)]).await;
    assert_eq!(refused, ["VBD_CDS_MUST_BE_READONLY"]);
    let refused = sim_host.refused("VBD.create", [sim_host.slot(&machine, None, "Disk")]).await;
    assert_eq!(refused[0], "VBD_NOT_REMOVABLE_MEDIA");
    let other = sim_host.running().await;
    let refused = sim_host.refused("VBD.create", [sim_host.slot(&other, None, "CD")]).await;
    assert_eq!(refused[0], "OPERATION_NOT_ALLOWED", "not while it runs");
}

#[tokio::test]
async fn a_disk_is_written_by_one_machine() {
    let sim_host = SimulatedHost::new().await;
    let (one, other) = (sim_host.running().await, sim_host.running().await);
    let (slot, disk) = sim_host.device(&one).await;
    sim_host.done("VBD.plug", [slot.value()]).await;
    let second = sim_host.made("VBD.create", [sim_host.slot(&other, Some(&disk), "Disk")]).await;
    let refused = sim_host.refused("VBD.plug", [second.value()]).await;
    assert_eq!(refused, ["VDI_IN_USE", disk.as_str(), "plug"]);
    sim_host.done("VM.hard_shutdown", [other.value()]).await;
    let refused = sim_host.refused("VM.start", [other.value(), no(), no()]).await;
    assert_eq!(refused, ["VDI_IN_USE", disk.as_str(), "attach"]);
    // Two slots of one machine are two writers, too.
    sim_host.done("VM.hard_shutdown", [one.value()]).await;
    let twice = sim_host.made("VBD.create", [sim_host.slot(&one, Some(&disk), "Disk")]).await;
    let refused = sim_host.refused("VM.start", [one.value(), no(), no()]).await;
    assert_eq!(refused, ["VDI_IN_USE", disk.as_str(), "attach"]);
    sim_host.done("VBD.destroy", [twice.value()]).await;
    sim_host.done("VM.start", [one.value(), no(), no()]).await;
}

#[tokio::test]
async fn network_devices_have_addresses_of_their_own() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let net = record([("name_label", Value::text("n")), ("other_config", none())]);
    let net = sim_host.made("network.create", [net]).await;
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
    let first = sim_host.made("VIF.create", device("")).await;
    let second = sim_host.made("VIF.create", device("00:16:3E:00:00:01")).await;
    assert_eq!(sim_host.get(&first, vif::Field::MAC_autogenerated), yes());
    assert_eq!(sim_host.get(&second, vif::Field::MAC), Value::text("00:16:3e:00:00:01"));
    let refused = sim_host.refused("VIF.create", device("01:16:3e:00:00:01")).await;
    assert_eq!(refused, ["MAC_INVALID", "01:16:3e:00:00:01"]);
    sim_host.start(&machine).await;
    assert_eq!(sim_host.get(&first, vif::Field::currently_attached), yes());
    sim_host.done("VIF.unplug", [first.value()]).await;
    let refused = sim_host.refused("VIF.unplug", [first.value()]).await;
    assert_eq!(refused, ["DEVICE_ALREADY_DETACHED", first.as_str()]);
    sim_host.done("VIF.destroy", [first.value()]).await;
    let third = sim_host.made("VIF.create", device("")).await;
    assert_eq!(sim_host.get(&third, vif::Field::device), Value::text("0"));
    let refused = sim_host.refused("network.destroy", [net.value()]).await;
    assert_eq!(refused[0], "NETWORK_CONTAINS_VIF");
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.done("VM.destroy", [machine.value()]).await;
    sim_host.done("network.destroy", [net.value()]).await;
    sim_host.assert_clean();
    let gone = sim_host.refused("VM.get_record", [machine.value()]).await;
    assert_eq!(gone, ["HANDLE_INVALID", "VM", machine.as_str()]);
}

#[tokio::test]
async fn addresses_that_are_seen_are_told_until_the_machine_ends() {
    use xenapi::table::vm_guest_metrics::Field;
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    let net = record([("name_label", Value::text("n")), ("other_config", none())]);
    let net = sim_host.made("network.create", [net]).await;
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
        sim_host.made("VIF.create", [device("0")]).await,
        sim_host.made("VIF.create", [device("2")]).await,
    ];
    let ids = devices.map(|device| {
        let db = &sim_host.test_app.app.db;
        model::id::VifId(db.read(|view| uuid(view, &device, vif::Field::uuid)).unwrap())
    });
    let claim = |at: usize, address: &str| sim_host.sim.claim(ids[at], address.parse().unwrap());
    let networks = |sim_host: &SimulatedHost| {
        let metrics = Ref::from(text(&sim_host.get(&machine, vm::Field::guest_metrics)));
        let db = &sim_host.test_app.app.db;
        db.read(|view| view.get(&metrics, Field::networks).cloned()).unwrap_or_else(|_| none())
    };
    claim(0, "10.0.0.1");
    sim_host.start(&machine).await;
    assert_eq!(sim_host.get(&machine, vm::Field::guest_metrics), Value::text(NULL_REF));
    claim(0, "10.0.0.2");
    let all = [("0/ip", "10.0.0.2"), ("0/ipv4/0", "10.0.0.2")];
    let first = record(all.map(|(name, one)| (name, Value::text(one))));
    sim_host.until(|sim_host| networks(sim_host) == first).await;
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
    sim_host.until(|sim_host| networks(sim_host) == second).await;
    // The guest reports no features, so it gets a shutdown request as before.
    sim_host.done("VM.clean_shutdown", [machine.value()]).await;
    assert_eq!(sim_host.get(&machine, vm::Field::guest_metrics), Value::text(NULL_REF));
    sim_host.start(&machine).await;
    claim(1, "10.0.0.9");
    let all = [("2/ip", "10.0.0.9"), ("2/ipv4/0", "10.0.0.9")];
    let third = record(all.map(|(name, one)| (name, Value::text(one))));
    sim_host.until(|sim_host| networks(sim_host) == third).await;
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.assert_clean();
}
