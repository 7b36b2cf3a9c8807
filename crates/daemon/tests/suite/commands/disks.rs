//! SRs, VDIs and VBDs.

use super::{Typed, to};

const GIB: &str = "1073741824";

#[test]
fn a_machines_disks_come_and_go() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let disks = || typed.list("vbd", &[&to("vm-uuid", &vm), "params=userdevice"]);
    typed.does(&["vm-disk-add", "vm=m", "disk-size=1GiB", "device=4"]);
    assert_eq!(disks(), ["0", "3", "4"]);
    let shown = typed.prints(&["vm-disk-list", "vm=m"]);
    assert!(shown.contains(GIB), "{shown}");
    let disk = typed.only("vbd", &[&to("vm-uuid", &vm), "userdevice=4", "params=vdi-uuid"]);
    typed.does(&["vm-disk-remove", "vm=m", "device=4"]);
    assert_eq!(disks(), ["0", "3"]);
    assert_eq!(typed.list("vdi", &[&to("uuid", &disk)]), Vec::<String>::new(), "it is destroyed");
    let refused = typed.fails(&["vm-disk-remove", "vm=m", "device=4"]);
    assert!(refused.contains("Disk not found"), "{refused}");
}

/// A VBD of a running VM, from its creation to its destruction.
#[test]
fn devices_are_plugged_and_media_are_put_in() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let (of, sr) = (to("vm-uuid", &vm), typed.only("sr", &["type=dir"]));
    let made = |name: &str| {
        let words = [to("sr-uuid", &sr), to("name-label", name)];
        typed.prints(&["vdi-create", &words[0], &words[1], "virtual-size=1GiB", "type=user"])
    };
    let (disk, disc) = (made("disk"), made("disc"));
    let drive = typed.prints(&["vbd-create", &of, "device=2", "type=CD", "mode=RO"]);
    typed.does(&["vm-start", "vm=m"]);
    let slot = typed.prints(&["vbd-create", &of, "device=1", &to("vdi-uuid", &disk)]);
    let [slot_is, drive_is] = [to("uuid", &slot), to("uuid", &drive)];
    let attached = || typed.get("vbd", &slot, "currently-attached");
    assert_eq!(attached(), "false");
    typed.does(&["vbd-plug", &slot_is]);
    assert_eq!(attached(), "true");
    typed.does(&["vdi-resize", &to("uuid", &disk), "disk-size=2GiB", "online=true"]);
    assert_eq!(typed.get("vdi", &disk, "virtual-size"), "2147483648");
    let refused = typed.fails(&["vbd-destroy", &slot_is]);
    assert!(refused.contains("the device is attached; unplug it"), "{refused}");
    typed.does(&["vbd-unplug", &slot_is]);
    assert_eq!(attached(), "false");
    typed.does(&["vbd-destroy", &slot_is]);

    typed.does(&["vbd-insert", &drive_is, &to("vdi-uuid", &disc)]);
    assert_eq!(typed.get("vbd", &drive, "vdi-uuid"), disc);
    assert_eq!(typed.get("vbd", &drive, "empty"), "false");
    typed.does(&["vbd-eject", &drive_is]);
    assert_eq!(typed.get("vbd", &drive, "empty"), "true");
    typed.does(&["vm-shutdown", "vm=m", "--force"]);
    typed.does(&["vdi-destroy", &to("uuid", &disk)]);
    assert_eq!(typed.list("vdi", &[&to("uuid", &disk)]), Vec::<String>::new());
}

/// A VM from installation media has a drive where XenServer's documents add one.
#[test]
fn a_new_machine_takes_a_cd() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let sr = typed.prints(&["sr-create", "name-label=discs", "type=sim", "content-type=iso"]);
    for name in ["name-label=one.iso", "name-label=two.iso"] {
        typed.prints(&["vdi-create", &to("sr-uuid", &sr), name, "virtual-size=1GiB", "type=user"]);
    }
    let drive = typed.only("vbd", &[&to("vm-uuid", &vm), "type=CD"]);
    let shown = || typed.prints(&["vm-cd-list", "vm=m"]);
    assert!(shown().contains("empty ( RO): true"), "{}", shown());
    typed.does(&["vm-cd-insert", "vm=m", "cd-name=one.iso"]);
    assert!(shown().contains("one.iso"), "{}", shown());
    typed.does(&["vm-cd-eject", "vm=m"]);
    typed.does(&["vm-cd-add", "vm=m", "cd-name=two.iso", "device=3"]);
    assert!(shown().contains("two.iso"), "{}", shown());
    assert_eq!(typed.only("vbd", &[&to("vm-uuid", &vm), "type=CD"]), drive);
    let refused = typed.fails(&["vm-cd-add", "vm=m", "cd-name=one.iso", "device=3"]);
    assert!(refused.contains("3"), "{refused}");
    typed.does(&["vm-cd-add", "vm=m", "cd-name=one.iso", "device=2"]);
    assert_eq!(typed.list("vbd", &[&to("vm-uuid", &vm), "type=CD"]).len(), 2);
}

#[test]
fn what_is_in_storage_is_forgotten_and_found_again() {
    let typed = Typed::new();
    let sr = typed.only("sr", &["type=dir"]);
    let (of, at) = (to("uuid", &sr), to("sr-uuid", &sr));
    let disk = typed.prints(&["vdi-create", &at, "name-label=d", "virtual-size=1GiB"]);
    let disk_is = to("uuid", &disk);
    typed.does(&["vdi-update", &disk_is]);
    typed.does(&["vdi-forget", &disk_is]);
    assert_eq!(typed.list("vdi", &[&disk_is]), Vec::<String>::new());
    let words = [&*disk_is, &at, "type=user", &to("location", &disk), "name-label=again"];
    assert_eq!(typed.prints(&[&["vdi-introduce"], &words[..]].concat()), disk);
    assert_eq!(typed.get("vdi", &disk, "virtual-size"), GIB);
    typed.does(&["vdi-forget", &disk_is]);
    typed.does(&["sr-scan", &of]);
    assert_eq!(typed.get("vdi", &disk, "virtual-size"), GIB);
    typed.does(&["sr-update", &of]);
    let words = ["name-label=x", "type=sim", "--minimal"];
    let other = typed.prints(&[&["sr-create"], &words[..]].concat());
    let pbd = typed.only("pbd", &[&to("sr-uuid", &other)]);
    let pbd_is = to("uuid", &pbd);
    let refused = typed.fails(&["pbd-destroy", &pbd_is]);
    assert!(refused.contains("Unplug the connection first"), "{refused}");
    typed.does(&["pbd-unplug", &pbd_is]);
    typed.does(&["pbd-destroy", &pbd_is]);
    assert_eq!(typed.list("pbd", &[&pbd_is]), Vec::<String>::new());
}
