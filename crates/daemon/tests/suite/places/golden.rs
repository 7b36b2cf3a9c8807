//! SRs of golden images, without guests.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use xenapi::Value;

use super::World;

impl World {
    /// Returns a source with an image of this size in bytes.
    fn source(&self, bytes: usize) -> PathBuf {
        let path = self.daemon.dir().join("win10.raw");
        std::fs::write(&path, vec![7; bytes]).unwrap();
        path
    }

    fn golden(&self, source: &Path) -> String {
        let source = format!("device-config:source={}", source.display());
        self.xe(&["sr-create", "type=golden", "name-label=win10", &source])
    }
}

#[test]
fn the_image_is_a_disk_that_many_machines_share() {
    let world = World::new();
    let source = world.source(1 << 20);
    let sr = world.golden(&source);
    let of = format!("sr-uuid={sr}");
    let vdi = world.xe(&["vdi-list", &of, "--minimal"]);
    let uuid = format!("uuid={vdi}");
    let shown = |field: &str| world.xe(&["vdi-param-get", &uuid, &format!("param-name={field}")]);
    assert_eq!(shown("name-label"), "win10.raw");
    assert_eq!(shown("virtual-size"), (1 << 20).to_string());
    assert_eq!([shown("sharable"), shown("read-only")], ["true", "false"]);
    let cache = world.daemon.dir().join("state/golden");
    let mode = std::fs::metadata(&cache).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);

    std::fs::remove_file(&source).unwrap();
    world.source(2 << 20);
    world.xe(&["sr-scan", &format!("uuid={sr}")]);
    assert_eq!(shown("virtual-size"), (2 << 20).to_string());
    for refused in [
        vec!["vdi-create", &of, "name-label=x", "virtual-size=1MiB"],
        vec!["vdi-destroy", &uuid],
        vec!["vdi-snapshot", &uuid],
        vec!["vdi-clone", &uuid],
        vec!["vdi-resize", &uuid, "disk-size=4MiB"],
    ] {
        let error = world.xe_fails(&refused);
        assert!(error.contains("driver of this storage does not do this"), "{refused:?}: {error}");
    }
    let pbd = format!("uuid={}", world.xe(&["pbd-list", &of, "--minimal"]));
    world.xe(&["pbd-unplug", &pbd]);
    world.xe(&["pbd-plug", &pbd]);
    assert_eq!(world.xe(&["vdi-list", &of, "--minimal"]), vdi);
    world.xe(&["pbd-unplug", &pbd]);
    world.xe(&["sr-forget", &format!("uuid={sr}")]);
    assert!(source.exists() && cache.exists());
}

#[test]
fn an_image_that_is_not_there_is_told_and_leaves_nothing() {
    let world = World::new();
    let missing = world.daemon.dir().join("none.raw");
    let create =
        |config: &str| world.xe_fails(&["sr-create", "type=golden", "name-label=x", config]);
    let error = create(&format!("device-config:source={}", missing.display()));
    assert!(error.contains("none.raw"), "{error}");
    for (config, says) in [
        ("device-config:location=/tmp", "the address of the image is missing"),
        ("device-config:source=https://store/a", "is encrypted"),
        ("device-config:sourcce=/a", "no such key; it has: source, location"),
    ] {
        let error = create(config);
        assert!(error.contains(says), "{config}: {error}");
    }
    assert_eq!(world.xe(&["sr-list", "type=golden", "--minimal"]), "");
    let serves = |words: &String| words.contains("ringway-io");
    assert!(!world.daemon.processes().iter().any(serves), "{:?}", world.daemon.processes());
}

#[test]
fn the_cache_may_be_in_another_storage_repository() {
    let mut world = World::new();
    let source = world.source(1 << 20);
    let place = world.daemon.dir().join("cache");
    std::fs::create_dir(&place).unwrap();
    let location = format!("device-config:location={}", place.display());
    let dir = world.xe(&["sr-create", "type=dir", "name-label=cache", &location]);
    let isos = world.xe(&["sr-create", "type=iso", "name-label=isos", &location]);
    let from = format!("device-config:source={}", source.display());
    let create = |cache: &str| format!("device-config:cache-sr={cache}");
    for wrong in [isos.as_str(), "11111111-2222-3333-4444-555555555555"] {
        let error =
            world.xe_fails(&["sr-create", "type=golden", "name-label=x", &from, &create(wrong)]);
        assert!(error.contains(wrong) && error.contains("no folder for files"), "{error}");
    }
    let sr = world.xe(&["sr-create", "type=golden", "name-label=win10", &from, &create(&dir)]);
    let of = |sr: &str| format!("sr-uuid={sr}");
    let pbd =
        |world: &World, sr: &str| format!("uuid={}", world.xe(&["pbd-list", &of(sr), "--minimal"]));
    let cached = || place.join("golden").read_dir().unwrap().count();
    assert!(cached() > 0);
    let taken = ["sr-param-get", &format!("uuid={sr}"), "param-name=sm-config"];
    let taken = world.xe(&[&taken[..], &["param-key=cache-bytes"]].concat());
    assert!(taken.parse::<u64>().is_ok_and(|bytes| bytes > 0), "{taken}");
    // The folder is no disk of the SR around it.
    world.xe(&["sr-scan", &format!("uuid={dir}")]);
    assert_eq!(world.xe(&["vdi-list", &of(&dir), "--minimal"]), "");
    let error = world.xe_fails(&["pbd-unplug", &pbd(&world, &dir)]);
    assert!(error.contains(&sr) && error.contains("cache-sr"), "{error}");
    // After a restart, it waits for the other one.
    world.daemon.stop().unwrap();
    world.daemon.start_again().unwrap();
    for sr in [&dir, &sr] {
        let pbd = pbd(&world, sr);
        let plugged = ["pbd-param-get", &pbd, "param-name=currently-attached"];
        assert_eq!(world.xe(&plugged), "true");
    }
    world.xe(&["pbd-unplug", &pbd(&world, &sr)]);
    world.xe(&["pbd-unplug", &pbd(&world, &dir)]);
    let error = world.xe_fails(&["pbd-plug", &pbd(&world, &sr)]);
    assert!(error.contains(&dir) && error.contains("is not plugged"), "{error}");
    world.xe(&["pbd-plug", &pbd(&world, &dir)]);
    world.xe(&["pbd-plug", &pbd(&world, &sr)]);
    world.xe(&["pbd-unplug", &pbd(&world, &sr)]);
    world.xe(&["pbd-unplug", &pbd(&world, &dir)]);
    // The SR goes, and what others have in its directory stays.
    world.xe(&["sr-destroy", &format!("uuid={dir}")]);
    assert!(cached() > 0);
    let error = world.xe_fails(&["pbd-plug", &pbd(&world, &sr)]);
    assert!(error.contains("is not plugged"), "{error}");
    world.xe(&["sr-forget", &format!("uuid={sr}")]);
}

#[test]
fn a_snapshot_of_a_machine_with_an_image_is_refused_with_a_way() {
    let mut world = World::new();
    let source = world.source(1 << 20);
    let sr = world.golden(&source);
    let vdi = world.xe(&["vdi-list", &format!("sr-uuid={sr}"), "--minimal"]);
    let disk = world.made("VDI.get_by_uuid", &[Value::text(vdi.as_str())]);
    let machine = world.machine(&disk);
    let uuid = world.made("VM.get_uuid", &[Value::text(machine)]);
    let vm = format!("uuid={uuid}");
    let error = world.xe_fails(&["vm-snapshot", &vm, "new-name-label=x"]);
    assert!(error.contains("win10.raw is a golden image"), "{error}");
    let size = format!("virtual-size={}", 1 << 20);
    let usual = format!("sr-uuid={}", world.xe(&["sr-list", "type=dir", "--minimal"]));
    assert!(error.contains("vdi-copy"), "{error}");
    let copied = format!("uuid={}", world.xe(&["vdi-copy", &format!("uuid={vdi}"), &usual]));
    // The image is in the cache now.
    std::fs::remove_file(&source).unwrap();
    let into = ["vdi-create", &usual, "name-label=x", &size];
    let into = world.xe(&into);
    let replaced = format!("into-vdi-uuid={into}");
    world.xe(&["vdi-copy", &format!("uuid={vdi}"), &replaced]);
    for disk in [&copied, &format!("uuid={into}"), &format!("uuid={vdi}")] {
        let file = world.daemon.dir().join("exported.raw");
        let _absent = std::fs::remove_file(&file);
        world.xe(&["vdi-export", disk, &format!("filename={}", file.display()), "format=raw"]);
        assert!(std::fs::read(&file).unwrap() == vec![7; 1 << 20], "{disk}");
    }
    world.xe(&["vdi-snapshot", &copied]);
}
