use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{pbd, sr, vdi};

use super::*;

fn made_sr(kind: &str, host: &Ref) -> Vec<Value> {
    vec![
        host.value(),
        record([("location", Value::text("/somewhere/else"))]),
        Value::Int(0),
        Value::text("second"),
        Value::text(""),
        Value::text(kind),
        Value::text("user"),
        no(),
        none(),
    ]
}

fn home(world: &SimulatedHost) -> Ref {
    let class = &xenapi::table::host::CLASS;
    world.trial.house.db.read(|view| view.all(class).next().unwrap().reference().clone())
}

fn connection(world: &SimulatedHost, place: &Ref) -> Ref {
    let db = &world.trial.house.db;
    db.read(|view| references(view, place, sr::Field::PBDs)).unwrap().pop().unwrap()
}

#[tokio::test]
async fn storage_comes_and_goes() {
    let world = SimulatedHost::new().await;
    let host = home(&world);
    let refused = world.refused("SR.create", made_sr("nfs", &host)).await;
    assert_eq!(refused, ["SR_UNKNOWN_DRIVER", "nfs"]);
    let place = world.made("SR.create", made_sr("sim", &host)).await;
    let link = connection(&world, &place);
    assert_eq!(world.get(&link, pbd::Field::currently_attached), yes());
    let refused = world.refused("SR.destroy", [place.value()]).await;
    assert_eq!(refused, ["SR_HAS_PBD", place.as_str()]);
    world.done("PBD.unplug", [link.value()]).await;
    world.done("PBD.unplug", [link.value()]).await;
    let refused = world.refused("SR.scan", [place.value()]).await;
    assert_eq!(refused, ["SR_NOT_ATTACHED", place.as_str()]);
    let twice = record([("host", host.value()), ("SR", place.value()), ("device_config", none())]);
    let refused = world.refused("PBD.create", [twice]).await;
    let expected = words(["PBD_EXISTS", place.as_str(), host.as_str(), link.as_str()]);
    assert_eq!(refused, expected);
    world.done("PBD.plug", [link.value()]).await;
    world.done("SR.scan", [place.value()]).await;
    world.done("PBD.unplug", [link.value()]).await;
    world.done("SR.forget", [place.value()]).await;
    let refused = world.refused("SR.get_record", [place.value()]).await;
    assert_eq!(refused, ["HANDLE_INVALID", "SR", place.as_str()]);
}

#[tokio::test]
async fn storage_that_is_empty_can_be_destroyed() {
    let world = SimulatedHost::new().await;
    let place = world.made("SR.create", made_sr("sim", &home(&world))).await;
    let link = connection(&world, &place);
    let own = model::id::VdiId(model::id::Uuid::from_random([9; 16]));
    let id = world.trial.house.db.read(|view| uuid(view, &place, sr::Field::uuid)).unwrap();
    let driver = world.trial.house.drivers.sr("sim").unwrap();
    driver.create_volume(model::id::SrId(id), own, 4096).await.unwrap();
    world.done("PBD.unplug", [link.value()]).await;
    // Nobody has recorded what is in it.
    assert_eq!(world.refused("SR.destroy", [place.value()]).await, ["SR_NOT_EMPTY"]);
    assert_eq!(world.get(&place, sr::Field::current_operations), none());
    driver.destroy_volume(model::id::SrId(id), own).await.unwrap();
    world.done("SR.destroy", [place.value()]).await;
    let refused = world.refused("SR.get_record", [place.value()]).await;
    assert_eq!(refused, ["HANDLE_INVALID", "SR", place.as_str()]);
    let args = [home(&world).value(), none(), Value::text("sim"), none()];
    let told = world.trial.call("SR.probe", args).await.unwrap();
    assert_eq!(told, Value::text("<?xml version=\"1.0\" ?>\n<SRlist>\n</SRlist>\n"));
    let args = [home(&world).value(), none(), Value::text("nfs"), none()];
    assert_eq!(world.refused("SR.probe", args).await, ["SR_UNKNOWN_DRIVER", "nfs"]);
}

#[tokio::test]
async fn storage_that_is_in_use_stays() {
    let world = SimulatedHost::new().await;
    let machine = world.running().await;
    let (slot, disk) = world.device(&machine).await;
    world.done("VBD.plug", [slot.value()]).await;
    let link = connection(&world, &world.place());
    let refused = world.refused("PBD.unplug", [link.value()]).await;
    assert_eq!(refused, ["VDI_IN_USE", disk.as_str(), "unplug"]);
    world.done("VM.hard_shutdown", [machine.value()]).await;
    world.done("PBD.unplug", [link.value()]).await;
    let refused = world.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused, ["SR_NOT_ATTACHED", world.place().as_str()]);
    let refused = world.refused("VDI.destroy", [disk.value()]).await;
    assert_eq!(refused, ["SR_NOT_ATTACHED", world.place().as_str()]);
}

#[tokio::test]
async fn sizes_are_those_of_the_storage() {
    let world = SimulatedHost::new().await;
    let place = world.place();
    let sum = || world.get(&place, sr::Field::virtual_allocation);
    let one = world.disk().await;
    let two = world.disk().await;
    assert_eq!(sum(), Value::Int(2 * DISK_BYTES));
    world.done("VDI.resize", [one.value(), Value::Int(3 * DISK_BYTES)]).await;
    assert_eq!(sum(), Value::Int(4 * DISK_BYTES));
    world.done("VDI.destroy", [two.value()]).await;
    assert_eq!(sum(), Value::Int(3 * DISK_BYTES));
    world.done("SR.scan", [place.value()]).await;
    assert_eq!(sum(), Value::Int(3 * DISK_BYTES));
    assert_eq!(world.get(&one, vdi::Field::missing), no());
    let forget = [one.value()];
    world.done("VDI.forget", forget).await;
    world.done("SR.scan", [place.value()]).await;
    let found = world.trial.house.db.read(|view| references(view, &place, sr::Field::VDIs));
    assert_eq!(found.unwrap().len(), 1, "it was there all the time");
}

#[tokio::test]
async fn a_disk_that_cannot_be_made_is_not_recorded() {
    let world = SimulatedHost::new().await;
    for (end, left) in [(SimResult::Fails, 0), (SimResult::FailsDone, 0)] {
        world.sim.rule(move |call| match call.what {
            CallKind::CreateVolume => SimBehaviour::ends(end),
            _ => SimBehaviour::default(),
        });
        let args = record([
            ("SR", world.place().value()),
            ("virtual_size", Value::Int(DISK_BYTES)),
            ("type", Value::text("user")),
            ("sharable", no()),
            ("read_only", no()),
            ("other_config", none()),
        ]);
        let refused = world.refused("VDI.create", [args]).await;
        assert_eq!(&refused[..2], ["SR_BACKEND_FAILURE", "OS"]);
        let place = world.place();
        let found = world.trial.house.db.read(|view| references(view, &place, sr::Field::VDIs));
        assert_eq!(found.unwrap().len(), left);
        assert_eq!(world.get(&place, sr::Field::current_operations), none());
    }
}

/// A scan that fails says nothing of whether the storage is connected.
#[tokio::test]
async fn a_scan_that_fails_when_the_daemon_starts_disconnects_nothing() {
    let world = SimulatedHost::new().await;
    let machine = world.machine().await;
    world.device(&machine).await;
    world.stored().await;
    world.sim.rule(|call| match call.what {
        CallKind::Scan => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let world = world.again(BOOT).await;
    let link = connection(&world, &world.place());
    assert_eq!(world.get(&link, pbd::Field::currently_attached), yes());
    assert_eq!(world.messages(), ["SR_SCAN_FAILED_ON_SERVER_START"]);
    let refused = world.refused("SR.scan", [world.place().value()]).await;
    assert_eq!(refused[..2], ["SR_BACKEND_FAILURE", "OS"]);
    world.start(&machine).await;
}

/// Somebody has copied the file of a disk into another storage repository.
#[tokio::test]
async fn a_copy_of_another_storages_disk_is_passed_over_and_told_once() {
    let world = SimulatedHost::new().await;
    let disk = world.disk().await;
    let place = world.made("SR.create", made_sr("sim", &home(&world))).await;
    let (id, there) = world.trial.house.db.read(|view| {
        let there = model::id::SrId(uuid(view, &place, sr::Field::uuid).unwrap());
        (model::id::VdiId(uuid(view, &disk, vdi::Field::uuid).unwrap()), there)
    });
    let driver = world.trial.house.drivers.sr("sim").unwrap();
    let own = model::id::VdiId(model::id::Uuid::from_random([9; 16]));
    for volume in [id, own] {
        driver.create_volume(there, volume, 4096).await.unwrap();
    }
    for _ in 0..2 {
        world.done("SR.scan", [place.value()]).await;
        let found = world.trial.house.db.read(|view| references(view, &place, sr::Field::VDIs));
        let found = found.unwrap();
        let [found] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(world.get(found, vdi::Field::uuid), Value::text(own.to_string()));
        assert_eq!(world.messages(), ["SR_VOLUMES_PASSED_OVER"]);
    }
    assert_eq!(world.get(&disk, vdi::Field::SR), world.place().value());
    assert_eq!(world.get(&disk, vdi::Field::virtual_size), Value::Int(DISK_BYTES));
    // When the other one is forgotten it is the disk.
    world.done("VDI.forget", [disk.value()]).await;
    world.done("SR.scan", [place.value()]).await;
    let found = world.trial.house.db.read(|view| references(view, &place, sr::Field::VDIs));
    assert_eq!(found.unwrap().len(), 2);
}

/// Storage that does not answer has not lost its disks.
#[tokio::test]
async fn a_disk_is_missing_when_its_storage_says_so() {
    let world = SimulatedHost::new().await;
    let disk = world.disk().await;
    world.sim.rule(|call| match call.what {
        CallKind::Scan => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let refused = world.refused("VDI.update", [disk.value()]).await;
    assert_eq!(refused[..2], ["SR_BACKEND_FAILURE", "OS"]);
    assert_eq!(world.get(&disk, vdi::Field::missing), no());
    world.sim.rule(|_| SimBehaviour::default());
    world.done("VDI.update", [disk.value()]).await;
}
