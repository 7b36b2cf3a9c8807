//! Whether records say what there is on the host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use testkit::process::PROCESS_DEADLINE;

use super::worked::Worked;
use crate::world::{Machine, World};

/// What nobody may have told after all.
const NEVER: [&str; 5] = [
    "VM_CRASHED",
    "VM_RESTART_FAILED",
    "VM_END_FAILED",
    "VM_AUTO_POWERON_FAILED",
    "VM_NOT_RECORDED",
];
/// The file that says which SR a folder is.
const MARK: &str = ".ringway-sr";

/// Waits until nothing is under way on a machine and its records are those of one that is up, or of
/// one that is not.
pub(super) fn settled(world: &mut World, one: &Worked) {
    let machine = &one.machine;
    world.until("true records", |world| {
        let up = world.power(machine) != "Halted";
        let attached =
            |class, of: &str, world: &mut World| world.record(class, of).flag("currently_attached");
        let started = attached("VBD", &machine.slot, world) && attached("VIF", &one.vif, world);
        let (disks, nics) = one.devices();
        let ended = !disks.iter().any(|slot| attached("VBD", slot, world))
            && !nics.iter().any(|vif| attached("VIF", vif, world));
        let devices = if up { started } else { ended };
        let domid = world.domid(machine) != -1;
        world.is_quiet(machine) && devices && domid == up && up == world.lives(machine)
    });
    let drive = world.record("VBD", &one.drive);
    let inside = drive.text("VDI") == one.disc;
    assert_eq!(inside, !drive.flag("empty"), "{drive:?}");
    let told = world.messages(machine);
    let bad = told.iter().find(|name| NEVER.contains(&name.as_str()));
    assert_eq!(bad, None, "{told:?}: {}", world.shown());
}

/// The host has what the records of all machines say, and nothing else of them.
pub(super) fn assert_host(world: &mut World, all: &[&Worked]) {
    let up: Vec<_> = all.iter().filter(|one| world.lives(&one.machine)).collect();
    let with_medium =
        |one: &&&&Worked| !world.client.record("VBD", &one.drive).unwrap().flag("empty");
    // QEMU reads media itself.
    let media = up.iter().filter(with_medium).count();
    let (mut disks, mut nics) = (BTreeSet::new(), BTreeSet::new());
    for (slots, vifs) in all.iter().map(|one| one.devices()) {
        disks.extend(slots.into_iter().filter_map(|slot| attached(world, "VBD", slot)));
        nics.extend(vifs.into_iter().filter_map(|vif| attached(world, "VIF", vif)));
    }
    let datapaths = world.datapaths();
    let served = datapaths.iter().flat_map(|one| &one.disks).map(|disk| disk.id.clone());
    assert_eq!(served.collect::<BTreeSet<_>>(), disks);
    let served = datapaths.iter().flat_map(|one| &one.nics).map(|nic| nic.id.clone());
    assert_eq!(served.collect::<BTreeSet<_>>(), nics);

    let left = world.daemon.leftovers();
    let of = |what: &str| left.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!((of("process"), of("domain")), (up.len(), up.len()), "{left:?}");
    assert_eq!((of("disk"), of("lock")), (disks.len(), disks.len() + media), "{left:?}");
    // All are on one network, which has an uplink as long as somebody is.
    assert_eq!((of("nic"), of("uplink")), (nics.len(), nics.len().min(1)), "{left:?}");
    let nobodys = |line: &&String| {
        let mut served = disks.iter().chain(&nics);
        line.starts_with("file") && !served.any(|id| line.contains(id.as_str()))
    };
    assert_eq!(left.iter().find(nobodys), None, "{disks:?} {nics:?}");
    groups_are(world, &up.iter().map(|one| &one.machine).collect::<Vec<_>>());
    images_are(world);
}

/// Its UUID, if it is in a machine now.
fn attached(world: &mut World, class: &str, device: &str) -> Option<String> {
    let record = world.record(class, device);
    record.flag("currently_attached").then(|| record.text("uuid").to_owned())
}

/// The control groups of machines are those of these, with an emulator in each. The kernel takes one
/// out a moment after its end.
pub(super) fn groups_are(world: &World, up: &[&Machine]) {
    let Some(slices) = world.daemon.slices() else { return };
    let began = Instant::now();
    loop {
        let groups = slices.leaves("guests");
        let all_there = up.iter().all(|one| groups.get(&one.uuid).is_some_and(|of| of.len() == 1));
        if all_there && groups.len() == up.len() {
            return;
        }
        assert!(began.elapsed() < PROCESS_DEADLINE, "{groups:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Storage has an image of each disk that is recorded, as large as it is said to be, and nothing
/// else.
fn images_are(world: &mut World) {
    let disks = world.client.records("VDI").unwrap();
    let disks = disks.into_iter().filter(|(_, disk)| !disk.flag("missing"));
    let sized = |disk: &xenapi::client::Record| u64::try_from(disk.int("virtual_size")).unwrap();
    let recorded: BTreeMap<_, _> =
        disks.map(|(_, disk)| (format!("{}.raw", disk.text("uuid")), sized(&disk))).collect();
    let places = files(&world.daemon.dir().join("state/sr"));
    let images: BTreeMap<_, _> = places
        .iter()
        .flat_map(|place| files(place))
        .filter(|file| !file.ends_with(MARK))
        .map(|image| {
            let name = image.file_name().unwrap().to_str().unwrap().to_owned();
            (name, image.metadata().unwrap().len())
        })
        .collect();
    assert_eq!(images, recorded);
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}
