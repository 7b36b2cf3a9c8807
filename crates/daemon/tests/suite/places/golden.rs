//! SRs of golden images, without guests.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

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
