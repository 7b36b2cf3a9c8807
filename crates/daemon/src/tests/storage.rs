use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{pbd, sr, vdi};

use super::simulated_host::*;

pub(super) fn made_sr(kind: &str, host: &Ref) -> Vec<Value> {
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

pub(super) fn home(sim_host: &SimulatedHost) -> Ref {
    let class = &xenapi::table::host::CLASS;
    sim_host.test_app.app.db.read(|view| view.all(class).next().unwrap().reference().clone())
}

pub(super) fn connection(sim_host: &SimulatedHost, place: &Ref) -> Ref {
    let db = &sim_host.test_app.app.db;
    db.read(|view| references(view, place, sr::Field::PBDs)).unwrap().pop().unwrap()
}

#[tokio::test]
async fn storage_comes_and_goes() {
    let sim_host = SimulatedHost::new().await;
    let host = home(&sim_host);
    let refused = sim_host.refused("SR.create", made_sr("nfs", &host)).await;
    assert_eq!(refused, ["SR_UNKNOWN_DRIVER", "nfs"]);
    let place = sim_host.made("SR.create", made_sr("sim", &host)).await;
    let link = connection(&sim_host, &place);
    assert_eq!(sim_host.get(&link, pbd::Field::currently_attached), yes());
    let refused = sim_host.refused("SR.destroy", [place.value()]).await;
    assert_eq!(refused, ["SR_HAS_PBD", place.as_str()]);
    sim_host.done("PBD.unplug", [link.value()]).await;
    sim_host.done("PBD.unplug", [link.value()]).await;
    let refused = sim_host.refused("SR.scan", [place.value()]).await;
    assert_eq!(refused, ["SR_NOT_ATTACHED", place.as_str()]);
    let twice = record([("host", host.value()), ("SR", place.value()), ("device_config", none())]);
    let refused = sim_host.refused("PBD.create", [twice]).await;
    let expected = words(["PBD_EXISTS", place.as_str(), host.as_str(), link.as_str()]);
    assert_eq!(refused, expected);
    sim_host.done("PBD.plug", [link.value()]).await;
    sim_host.done("SR.scan", [place.value()]).await;
    sim_host.done("PBD.unplug", [link.value()]).await;
    sim_host.done("SR.forget", [place.value()]).await;
    let refused = sim_host.refused("SR.get_record", [place.value()]).await;
    assert_eq!(refused, ["HANDLE_INVALID", "SR", place.as_str()]);
}

#[tokio::test]
async fn storage_that_is_empty_can_be_destroyed() {
    let sim_host = SimulatedHost::new().await;
    let place = sim_host.made("SR.create", made_sr("sim", &home(&sim_host))).await;
    let link = connection(&sim_host, &place);
    let own = model::id::VdiId(model::id::Uuid::from_random([9; 16]));
    let id = sim_host.test_app.app.db.read(|view| uuid(view, &place, sr::Field::uuid)).unwrap();
    let driver = sim_host.test_app.app.drivers.sr("sim").unwrap();
    driver.create_volume(model::id::SrId(id), own, 4096).await.unwrap();
    sim_host.done("PBD.unplug", [link.value()]).await;
    // The content of the SR is not recorded.
    assert_eq!(sim_host.refused("SR.destroy", [place.value()]).await, ["SR_NOT_EMPTY"]);
    assert_eq!(sim_host.get(&place, sr::Field::current_operations), none());
    driver.destroy_volume(model::id::SrId(id), own).await.unwrap();
    sim_host.done("SR.destroy", [place.value()]).await;
    let refused = sim_host.refused("SR.get_record", [place.value()]).await;
    assert_eq!(refused, ["HANDLE_INVALID", "SR", place.as_str()]);
    let args = [home(&sim_host).value(), none(), Value::text("sim"), none()];
    let answer = sim_host.test_app.call("SR.probe", args).await.unwrap();
    assert_eq!(answer, Value::text("<?xml version=\"1.0\" ?>\n<SRlist>\n</SRlist>\n"));
    let args = [home(&sim_host).value(), none(), Value::text("nfs"), none()];
    assert_eq!(sim_host.refused("SR.probe", args).await, ["SR_UNKNOWN_DRIVER", "nfs"]);
}

#[tokio::test]
async fn storage_that_is_in_use_stays() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.running().await;
    let (slot, disk) = sim_host.device(&machine).await;
    sim_host.done("VBD.plug", [slot.value()]).await;
    let link = connection(&sim_host, &sim_host.place());
    let refused = sim_host.refused("PBD.unplug", [link.value()]).await;
    assert_eq!(refused, ["VDI_IN_USE", disk.as_str(), "unplug"]);
    sim_host.done("VM.hard_shutdown", [machine.value()]).await;
    sim_host.done("PBD.unplug", [link.value()]).await;
    let refused = sim_host.refused("VM.start", [machine.value(), no(), no()]).await;
    assert_eq!(refused, ["SR_NOT_ATTACHED", sim_host.place().as_str()]);
    let refused = sim_host.refused("VDI.destroy", [disk.value()]).await;
    assert_eq!(refused, ["SR_NOT_ATTACHED", sim_host.place().as_str()]);
}

#[tokio::test]
async fn sizes_are_those_of_the_storage() {
    let sim_host = SimulatedHost::new().await;
    let place = sim_host.place();
    let sum = || sim_host.get(&place, sr::Field::virtual_allocation);
    let one = sim_host.disk().await;
    let two = sim_host.disk().await;
    assert_eq!(sum(), Value::Int(2 * DISK_BYTES));
    sim_host.done("VDI.resize", [one.value(), Value::Int(3 * DISK_BYTES)]).await;
    assert_eq!(sum(), Value::Int(4 * DISK_BYTES));
    sim_host.done("VDI.destroy", [two.value()]).await;
    assert_eq!(sum(), Value::Int(3 * DISK_BYTES));
    sim_host.done("SR.scan", [place.value()]).await;
    assert_eq!(sum(), Value::Int(3 * DISK_BYTES));
    assert_eq!(sim_host.get(&one, vdi::Field::missing), no());
    let forget = [one.value()];
    sim_host.done("VDI.forget", forget).await;
    sim_host.done("SR.scan", [place.value()]).await;
    let found = sim_host.test_app.app.db.read(|view| references(view, &place, sr::Field::VDIs));
    assert_eq!(found.unwrap().len(), 1, "it was there all the time");
}

#[tokio::test]
async fn a_disk_that_cannot_be_made_is_not_recorded() {
    let sim_host = SimulatedHost::new().await;
    for (sim_result, left) in [(SimResult::Fails, 0), (SimResult::FailsDone, 0)] {
        sim_host.sim.rule(move |call| match call.call_kind {
            CallKind::CreateVolume => SimBehaviour::ends(sim_result),
            _ => SimBehaviour::default(),
        });
        let args = record([
            ("SR", sim_host.place().value()),
            ("virtual_size", Value::Int(DISK_BYTES)),
            ("type", Value::text("user")),
            ("sharable", no()),
            ("read_only", no()),
            ("other_config", none()),
        ]);
        let refused = sim_host.refused("VDI.create", [args]).await;
        assert_eq!(&refused[..2], ["SR_BACKEND_FAILURE", "OS"]);
        let place = sim_host.place();
        let found = sim_host.test_app.app.db.read(|view| references(view, &place, sr::Field::VDIs));
        assert_eq!(found.unwrap().len(), left);
        assert_eq!(sim_host.get(&place, sr::Field::current_operations), none());
    }
}

/// A failed scan does not mean that the SR is detached.
#[tokio::test]
async fn a_scan_that_fails_when_the_daemon_starts_disconnects_nothing() {
    let sim_host = SimulatedHost::new().await;
    let machine = sim_host.machine().await;
    sim_host.device(&machine).await;
    sim_host.stored().await;
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::Scan => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let sim_host = sim_host.again(BOOT).await;
    let link = connection(&sim_host, &sim_host.place());
    assert_eq!(sim_host.get(&link, pbd::Field::currently_attached), yes());
    assert_eq!(sim_host.messages(), ["SR_SCAN_FAILED_ON_SERVER_START"]);
    let refused = sim_host.refused("SR.scan", [sim_host.place().value()]).await;
    assert_eq!(refused[..2], ["SR_BACKEND_FAILURE", "OS"]);
    sim_host.start(&machine).await;
}

/// The file of a VDI was copied into another SR.
#[tokio::test]
async fn a_copy_of_another_storages_disk_is_passed_over_and_told_once() {
    let sim_host = SimulatedHost::new().await;
    let disk = sim_host.disk().await;
    let place = sim_host.made("SR.create", made_sr("sim", &home(&sim_host))).await;
    let (id, there) = sim_host.test_app.app.db.read(|view| {
        let there = model::id::SrId(uuid(view, &place, sr::Field::uuid).unwrap());
        (model::id::VdiId(uuid(view, &disk, vdi::Field::uuid).unwrap()), there)
    });
    let driver = sim_host.test_app.app.drivers.sr("sim").unwrap();
    let own = model::id::VdiId(model::id::Uuid::from_random([9; 16]));
    for volume in [id, own] {
        driver.create_volume(there, volume, 4096).await.unwrap();
    }
    for _ in 0..2 {
        sim_host.done("SR.scan", [place.value()]).await;
        let found = sim_host.test_app.app.db.read(|view| references(view, &place, sr::Field::VDIs));
        let found = found.unwrap();
        let [found] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(sim_host.get(found, vdi::Field::uuid), Value::text(own.to_string()));
        assert_eq!(sim_host.messages(), ["SR_VOLUMES_PASSED_OVER"]);
    }
    assert_eq!(sim_host.get(&disk, vdi::Field::SR), sim_host.place().value());
    assert_eq!(sim_host.get(&disk, vdi::Field::virtual_size), Value::Int(DISK_BYTES));
    // After the original is forgotten, the copy becomes the VDI.
    sim_host.done("VDI.forget", [disk.value()]).await;
    sim_host.done("SR.scan", [place.value()]).await;
    let found = sim_host.test_app.app.db.read(|view| references(view, &place, sr::Field::VDIs));
    assert_eq!(found.unwrap().len(), 2);
}

/// An SR that does not answer has not lost its VDIs.
#[tokio::test]
async fn a_disk_is_missing_when_its_storage_says_so() {
    let sim_host = SimulatedHost::new().await;
    let disk = sim_host.disk().await;
    sim_host.sim.rule(|call| match call.call_kind {
        CallKind::Scan => SimBehaviour::ends(SimResult::Fails),
        _ => SimBehaviour::default(),
    });
    let refused = sim_host.refused("VDI.update", [disk.value()]).await;
    assert_eq!(refused[..2], ["SR_BACKEND_FAILURE", "OS"]);
    assert_eq!(sim_host.get(&disk, vdi::Field::missing), no());
    sim_host.sim.rule(|_| SimBehaviour::default());
    sim_host.done("VDI.update", [disk.value()]).await;
}
