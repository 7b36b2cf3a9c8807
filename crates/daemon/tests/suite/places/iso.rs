//! ISO files as CDs.

use std::path::PathBuf;

use super::World;

/// Returns the parameters of `xe` that create an SR of this type at a directory.
fn create(kind: &str, location: &str) -> Vec<String> {
    let location = format!("device-config:location={location}");
    vec!["sr-create".into(), format!("type={kind}"), "name-label=library".into(), location]
}

impl World {
    fn library(&self) -> PathBuf {
        let place = self.daemon.dir().join("library");
        std::fs::create_dir(&place).unwrap();
        place
    }
}

fn words(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

#[test]
fn files_come_and_go_with_scans_and_nothing_is_written() {
    let world = World::new();
    let place = world.library();
    std::fs::write(place.join("debian.iso"), "CD").unwrap();
    let sr = world.xe(&words(&create("iso", place.to_str().unwrap())));
    let cds = || world.xe(&["cd-list", "params=name-label", "--minimal"]);
    assert_eq!(cds(), "debian.iso");
    let (of, sr) = (format!("sr-uuid={sr}"), format!("uuid={sr}"));
    let debian = world.xe(&["vdi-list", "--minimal", "name-label=debian.iso"]);
    std::fs::write(place.join("tools.iso"), "CD").unwrap();
    std::fs::remove_file(place.join("debian.iso")).unwrap();
    world.xe(&["sr-scan", &sr]);
    assert_eq!(cds(), "tools.iso");
    std::fs::write(place.join("debian.iso"), "CD").unwrap();
    world.xe(&["sr-scan", &sr]);
    assert_eq!(world.xe(&["vdi-list", "--minimal", "name-label=debian.iso"]), debian);

    let shown = |field: &str| world.xe(&["sr-param-get", &sr, &format!("param-name={field}")]);
    assert_eq!(shown("content-type"), "iso");
    assert!(!shown("allowed-operations").contains("vdi-create"), "{}", shown("allowed-operations"));
    let disc = format!("uuid={debian}");
    for refused in [
        vec!["vdi-create", &of, "name-label=x", "virtual-size=1MiB"],
        vec!["vdi-destroy", &disc],
        vec!["vdi-snapshot", &disc],
        vec!["vdi-clone", &disc],
    ] {
        let error = world.xe_fails(&refused);
        assert!(error.contains("driver of this storage does not do this"), "{refused:?}: {error}");
    }
    let pbd = world.xe(&["pbd-list", &of, "--minimal"]);
    world.xe(&["pbd-unplug", &format!("uuid={pbd}")]);
    world.xe(&["sr-forget", &sr]);
    let mut left: Vec<_> = std::fs::read_dir(&place).unwrap().flatten().collect();
    left.sort_by_key(std::fs::DirEntry::file_name);
    let left: Vec<_> = left.iter().map(std::fs::DirEntry::file_name).collect();
    assert_eq!(left, ["debian.iso", "tools.iso"]);
}

#[test]
fn a_cd_can_be_copied_to_a_disk() {
    let world = World::new();
    let place = world.library();
    std::fs::write(place.join("cd.iso"), vec![7; 8192]).unwrap();
    world.xe(&words(&create("iso", place.to_str().unwrap())));
    let disc = world.xe(&["vdi-list", "name-label=cd.iso", "--minimal"]);
    let to = world.xe(&["sr-list", "type=dir", "--minimal"]);
    let copy = ["vdi-copy", &format!("uuid={disc}"), &format!("sr-uuid={to}")];
    let copied = world.xe(&copy);
    let image = world.daemon.dir().join("state/sr").join(to).join(format!("{copied}.raw"));
    assert_eq!(std::fs::read(image).unwrap(), vec![7; 8192]);
}

#[test]
fn locations_are_checked_before_anything_is_made() {
    let world = World::new();
    let place = world.daemon.dir().join("new");
    let place = place.to_str().unwrap();
    for (kind, location, says) in
        [("iso", place, "does not exist"), ("iso", "filer:/iso", "mount filer:/iso on the host")]
    {
        let error = world.xe_fails(&words(&create(kind, location)));
        assert!(error.contains(says), "{error}");
    }
    for (kind, key, says) in [
        ("dir", "path", "it has: location"),
        ("ext", "device", "Ringway formats no devices"),
        ("iso", "iso_path", "it has: location, legacy_mode"),
    ] {
        let mut given = create(kind, place);
        given.push(format!("device-config:{key}=/dev/sdb"));
        let error = world.xe_fails(&words(&given));
        assert!(error.contains(key) && error.contains(says), "{error}");
    }
    assert!(!std::path::Path::new(place).exists());
    for kind in ["ext", "file"] {
        world.xe(&words(&create(kind, &format!("{place}-{kind}"))));
    }
    let types = world.xe(&["sm-list", "params=type", "--minimal"]);
    let types: std::collections::BTreeSet<_> = types.split(',').collect();
    assert_eq!(types, ["dir", "ext", "file", "golden", "iso", "slow-dir"].into());
    let of = world.xe(&["sm-list", "type=iso", "params=capabilities"]);
    assert!(of.contains("VDI_ATTACH") && !of.contains("VDI_CREATE"), "{of}");
}

/// Each of its CDs would be there twice.
#[test]
fn a_directory_is_one_library_of_its_host() {
    let world = World::new();
    let place = world.library();
    std::fs::write(place.join("debian.iso"), "CD").unwrap();
    let place = place.to_str().unwrap();
    let sr = world.xe(&words(&create("iso", place)));
    let pbd = world.xe(&["pbd-list", &format!("sr-uuid={sr}"), "--minimal"]);
    let host = format!("host-uuid={}", world.xe(&["host-list", "--minimal"]));
    let other = "9c8a7f60-0c6c-4c5e-8a55-1f3b6f1f0a01";
    world.xe(&["sr-introduce", "type=iso", "name-label=other", &format!("uuid={other}")]);
    let other = format!("sr-uuid={other}");
    let is_refused = || {
        let location = format!("device-config:location={place}");
        for words in [
            words(&create("iso", place)),
            words(&create("iso", &format!("{place}/"))),
            vec!["pbd-create", &other, &host, &location],
        ] {
            let error = world.xe_fails(&words);
            let owner = format!("belongs to storage repository {sr} (library)");
            assert!(error.contains(&owner), "{words:?}: {error}");
        }
        assert_eq!(world.xe(&["pbd-list", &other, "--minimal"]), "");
    };
    is_refused();
    assert_eq!(world.xe(&["cd-list", "params=name-label", "--minimal"]), "debian.iso");
    world.xe(&["pbd-unplug", &format!("uuid={pbd}")]);
    is_refused();
    world.xe(&["sr-forget", &format!("uuid={sr}")]);
    world.xe(&words(&create("iso", place)));
    assert_eq!(world.xe(&["cd-list", "params=name-label", "--minimal"]), "debian.iso");
}
