//! Comparison of records with the host.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use testkit::process::PROCESS_DEADLINE;

use super::worked::Worked;
use crate::machines::world::{Machine, PATIENCE, World};

/// Messages that must not appear.
const NEVER: [&str; 5] = [
    "VM_CRASHED",
    "VM_RESTART_FAILED",
    "VM_END_FAILED",
    "VM_AUTO_POWERON_FAILED",
    "VM_NOT_RECORDED",
];
/// Interval of the comparisons.
const INTERVAL: Duration = Duration::from_millis(100);
/// Files in the directory of an SR that are no images.
const MARKS: [&str; 2] = [".ringway-sr", ".ringway-storage-blocks"];

/// Waits until a VM has no operation under way and consistent records of its power state.
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
    let messages = world.messages(machine);
    let bad = messages.iter().find(|name| NEVER.contains(&name.as_str()));
    assert_eq!(bad, None, "{messages:?}: {}", world.shown());
}

/// Waits until the host has exactly the resources that the records of all VMs show. A guest may
/// release a device meanwhile.
pub(super) fn assert_host(world: &mut World, all: &[&Worked]) {
    let mut why = String::new();
    let began = Instant::now();
    while let Err(differs) = host_is(world, all) {
        why = differs;
        assert!(began.elapsed() < PATIENCE, "{why}");
        // No event reports changes of host resources.
        std::thread::sleep(INTERVAL);
    }
    if !why.is_empty() {
        println!("for {:?}: {why}", began.elapsed());
    }
    let up = all.iter().map(|one| &one.machine).filter(|one| world.lives(one));
    groups_are(world, &up.collect::<Vec<_>>());
    images_are(world);
}

fn host_is(world: &mut World, all: &[&Worked]) -> Result<(), String> {
    let up: Vec<_> = all.iter().filter(|one| world.lives(&one.machine)).collect();
    let mut is_loaded = |one: &Worked| !world.record("VBD", &one.drive).flag("empty");
    // QEMU opens media itself.
    let media = up.iter().filter(|one| is_loaded(one)).count();
    let (mut disks, mut nics) = (BTreeSet::new(), BTreeSet::new());
    for (slots, vifs) in all.iter().map(|one| one.devices()) {
        disks.extend(slots.into_iter().filter_map(|slot| attached(world, "VBD", slot)));
        nics.extend(vifs.into_iter().filter_map(|vif| attached(world, "VIF", vif)));
    }
    let datapaths = world.datapaths();
    let served_disks: BTreeSet<_> =
        datapaths.iter().flat_map(|one| &one.disks).map(|disk| disk.id.clone()).collect();
    let served_nics: BTreeSet<_> =
        datapaths.iter().flat_map(|one| &one.nics).map(|nic| nic.id.clone()).collect();
    let left = world.daemon.leftovers();
    let of = |what: &str| left.iter().filter(|line| line.starts_with(what)).count();
    let counts = ["process", "domain", "disk", "lock", "nic", "uplink"].map(of);
    // All VIFs are on one network, which has an uplink while it has a VIF.
    let (disk, nic) = (disks.len(), nics.len());
    let expected = [up.len(), up.len(), disk, disk + media, nic, nic.min(1)];
    let nobodys = |line: &&String| {
        let mut served = disks.iter().chain(&nics);
        line.starts_with("file") && !served.any(|id| line.contains(id.as_str()))
    };
    let is_same = served_disks == disks && served_nics == nics && counts == expected;
    match left.iter().find(nobodys) {
        None if is_same => Ok(()),
        nobodys => Err(format!(
            "{disks:?} {nics:?} are recorded, {served_disks:?} {served_nics:?} served, \
             {counts:?} of {expected:?}, {nobodys:?} is nobody's: {left:?}"
        )),
    }
}

/// Returns the UUID of a device if it is attached.
fn attached(world: &mut World, class: &str, device: &str) -> Option<String> {
    let record = world.record(class, device);
    record.flag("currently_attached").then(|| record.text("uuid").to_owned())
}

/// Asserts that the guest slice has a leaf with one process for each of these VMs, and that the
/// datapath slice matches the serving processes. The kernel removes an ended process a moment
/// later.
pub(super) fn groups_are(world: &World, up: &[&Machine]) {
    let slices = world.daemon.slices();
    assert_eq!(slices.is_some(), world.has_slices, "every daemon finds the groups of the first");
    let Some(slices) = slices else { return };
    let began = Instant::now();
    loop {
        let (guests, paths) = (slices.leaves("guests"), slices.leaves("datapath"));
        let all_there = up.iter().all(|one| guests.get(&one.uuid).is_some_and(|of| of.len() == 1));
        let serve = serve(world, &paths);
        if all_there && guests.len() == up.len() && paths == serve {
            return;
        }
        assert!(began.elapsed() < PROCESS_DEADLINE, "{guests:?}, {paths:?}, {serve:?} serve");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the processes that serve disks or networks, by control group. The name of an SR's
/// directory is a prefix of its group's name.
fn serve(
    world: &World,
    groups: &BTreeMap<String, BTreeSet<u32>>,
) -> BTreeMap<String, BTreeSet<u32>> {
    let mut all = BTreeMap::<_, BTreeSet<_>>::new();
    for (pid, words) in world.daemon.started() {
        let words: Vec<_> = words.split(' ').collect();
        let control = words.iter().skip_while(|word| **word != "--control").nth(1);
        let Some(control) = control.filter(|_| words[0].ends_with("ringway-io")) else { continue };
        let folder = Path::new(control).parent().unwrap().file_name().unwrap().to_str().unwrap();
        let of_sr = || groups.keys().find(|name| name.starts_with(folder)).map(String::as_str);
        let group = if folder == "networks" { "switch" } else { of_sr().unwrap_or(folder) };
        all.entry(group.to_owned()).or_default().insert(pid);
    }
    all
}

/// Asserts that each recorded VDI has an image of its recorded size, and that no other images
/// exist.
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
        .filter(|file| MARKS.iter().all(|mark| !file.ends_with(mark)))
        // Records have the names of disks.
        .filter(|file| file.extension().is_none_or(|extension| extension != "vdi"))
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
