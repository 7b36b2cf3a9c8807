//! Directories that vanish and come back.

use std::fs;

use xenapi::Value;

use super::*;

#[test]
fn a_directory_that_vanishes_is_told_and_works_when_it_is_back() {
    let mut world = World::new();
    let place = world.daemon.dir().join("images");
    let away = place.with_extension("away");
    let args = world.sr(&place);
    let sr = world.made("SR.create", &args);
    let (disk, link) = (world.disk(&sr), world.connection(&sr));
    let machine = world.machine(&disk);
    let of = |reference: &str| vec![Value::text(reference)];
    let vanished = |error: &[String]| {
        assert_eq!(error[..2], ["SR_BACKEND_FAILURE", "VANISHED"], "{error:?}");
        let place = place.to_str().unwrap();
        assert!(error.last().unwrap().contains(place), "{error:?}");
    };

    fs::rename(&place, &away).unwrap();
    // The daemon has not noticed yet.
    for (method, args) in [
        ("VDI.create", vec![super::disk(&sr)]),
        ("VDI.destroy", of(&disk)),
        ("VDI.resize", vec![Value::text(disk.as_str()), Value::Int(2 * DISK_BYTES)]),
    ] {
        vanished(&world.refused(method, &args));
    }
    let error = world.refused("VM.start", &start(&machine));
    assert_eq!(error, ["SR_NOT_ATTACHED", sr.as_str()]);
    assert_eq!(world.client.record("VM", &machine).unwrap().text("power_state"), "Halted");
    assert!(world.is_connected(&link));
    // A scan notices.
    vanished(&world.refused("SR.scan", &of(&sr)));
    assert!(!world.is_connected(&link));
    for (method, args) in
        [("VDI.create", vec![super::disk(&sr)]), ("VM.start", start(&machine).to_vec())]
    {
        assert_eq!(world.refused(method, &args), ["SR_NOT_ATTACHED", sr.as_str()], "{method}");
    }
    vanished(&world.refused("PBD.plug", &of(&link)));

    fs::rename(&away, &place).unwrap();
    world.call("PBD.plug", &of(&link));
    assert!(world.is_connected(&link));
    world.call("VM.start", &start(&machine));
    // Under a running guest: the guest continues, and its SR cannot be forgotten.
    fs::rename(&place, &away).unwrap();
    vanished(&world.refused("SR.scan", &of(&sr)));
    let error = world.refused("SR.forget", &of(&sr));
    assert_eq!(error, ["VDI_IN_USE", disk.as_str(), "forget"]);
    assert_eq!(world.client.record("VM", &machine).unwrap().text("power_state"), "Running");
    world.call("VM.hard_shutdown", &of(&machine));
    fs::rename(&away, &place).unwrap();
    world.call("PBD.plug", &of(&link));

    // One volume is missing.
    let uuid = world.client.record("VDI", &disk).unwrap().text("uuid").to_owned();
    fs::remove_file(place.join(format!("{uuid}.raw"))).unwrap();
    for _ in 0..2 {
        let error = world.refused("VM.start", &start(&machine));
        assert_eq!(error, ["VDI_MISSING", sr.as_str(), disk.as_str()]);
        world.call("SR.scan", &of(&sr));
        assert!(world.client.record("VDI", &disk).unwrap().flag("missing"));
    }
}

#[test]
fn a_directory_is_one_storages_only() {
    let mut world = World::new();
    let place = world.daemon.dir().join("images");
    let args = world.sr(&place);
    let first = world.made("SR.create", &args);
    let uuid = world.client.record("SR", &first).unwrap().text("uuid").to_owned();
    let error = world.refused("SR.create", &args);
    assert_eq!(error[..2], ["SR_BACKEND_FAILURE", "CONFIG"], "{error:?}");
    assert!(error.last().unwrap().contains(&uuid), "{error:?}");
    // Files that are not volumes do no harm.
    let disk = world.disk(&first);
    for stray in ["notes.txt", "x.raw", ".hidden"] {
        fs::write(place.join(stray), "mine").unwrap();
    }
    world.call("SR.scan", &[Value::text(first.as_str())]);
    let known = world.client.record("SR", &first).unwrap();
    assert_eq!(known.texts("VDIs"), [disk.as_str()]);
    // A copy of another SR's VDI is ignored and reported.
    let default = world.client.records("pool").unwrap().remove(0).1.text("default_SR").to_owned();
    let uuid = world.client.record("VDI", &disk).unwrap().text("uuid").to_owned();
    let its = world.connection(&default);
    let its = world.client.record("PBD", &its).unwrap();
    let its = its.pairs("device_config");
    let file = format!("{uuid}.raw");
    fs::copy(place.join(&file), std::path::Path::new(its["location"]).join(&file)).unwrap();
    world.call("SR.scan", &[Value::text(default.as_str())]);
    assert!(world.client.record("SR", &default).unwrap().texts("VDIs").is_empty());
    let messages = world.client.records("message").unwrap();
    assert!(messages.iter().all(|(_, one)| one.text("name") == "SR_VOLUMES_PASSED_OVER"));
    for named in ["notes.txt", &uuid] {
        assert!(messages.iter().any(|(_, one)| one.text("body").contains(named)), "{named}");
    }
}

/// A record that cannot be read is reported, and all other disks are scanned.
#[test]
fn a_record_that_cannot_be_read_holds_up_no_other_disk() {
    let mut world = World::new();
    let place = world.daemon.dir().join("images");
    let args = world.sr(&place);
    let sr = world.made("SR.create", &args);
    let scan = [Value::text(sr.as_str())];
    let (lost, other) = (world.disk(&sr), world.disk(&sr));
    let snapshot = world.made("VDI.snapshot", &[Value::text(lost.as_str()), record([])]);
    let uuid = |world: &mut World, disk: &str| {
        world.client.record("VDI", disk).unwrap().text("uuid").to_owned()
    };
    let (lost_id, other_id) = (uuid(&mut world, &lost), uuid(&mut world, &other));
    let file = format!("{lost_id}.vdi");
    let text = fs::read(place.join(&file)).unwrap();
    fs::write(place.join(&file), &text[..20]).unwrap();
    // A new size shows that the other disk is scanned, a new file that no other becomes a disk.
    let grown = fs::OpenOptions::new().write(true).open(place.join(format!("{other_id}.raw")));
    grown.unwrap().set_len(4 << 20).unwrap();
    fs::write(place.join("mine.raw"), [1; 4096]).unwrap();

    for _ in 0..2 {
        let error = world.refused("SR.scan", &scan);
        assert_eq!(error[..2], ["SR_BACKEND_FAILURE", "CONFIG"], "{error:?}");
        let text = error.last().unwrap();
        assert!(text.contains(&file) && text.contains("All other disks are scanned"), "{text}");
        let record = world.client.record("VDI", &other).unwrap();
        assert_eq!(record.int("virtual_size"), 4 << 20);
        for disk in [&lost, &snapshot, &other] {
            assert!(!world.client.record("VDI", disk).unwrap().flag("missing"));
        }
        // These three, and the file of the user.
        assert_eq!(world.client.record("SR", &sr).unwrap().texts("VDIs").len(), 4);
    }
    let messages = world.client.records("message").unwrap();
    let said: Vec<_> =
        messages.iter().filter(|(_, one)| one.text("body").contains(&file)).collect();
    assert_eq!(said.len(), 1, "{messages:?}");
    for (call, params) in [
        ("VDI.update", vec![Value::text(lost.as_str())]),
        ("VDI.destroy", vec![Value::text(other.as_str())]),
    ] {
        let error = world.refused(call, &params);
        assert!(error.last().unwrap().contains(&file), "{call}: {error:?}");
    }
    let machine = world.machine(&lost);
    let error = world.refused("VM.start", &start(&machine));
    assert!(error.last().unwrap().contains(&file), "{error:?}");

    fs::write(place.join(&file), text).unwrap();
    world.call("SR.scan", &scan);
    world.call("VDI.destroy", &[Value::text(other.as_str())]);
    for disk in [&lost, &snapshot] {
        assert!(!world.client.record("VDI", disk).unwrap().flag("missing"));
    }
}
