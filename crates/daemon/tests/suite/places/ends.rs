//! SRs that are forgotten and introduced again, and SRs that are destroyed, by `xe`.

use std::fs;
use std::path::Path;

use testkit::process::eventually;

use super::*;

impl World {
    fn xe_list(&self, kind: &str, of: &str) -> String {
        self.xe(&[&format!("{kind}-list"), of, "params=uuid", "--minimal"])
    }
}

fn marker(place: &Path) -> std::path::PathBuf {
    place.join(".ringway-sr")
}

#[test]
fn forgotten_storage_is_found_and_comes_back_with_its_disks() {
    let world = World::new();
    let place = world.daemon.dir().join("images");
    let location = format!("device-config:location={}", place.display());
    let host = world.xe(&["host-list", "params=uuid", "--minimal"]);
    let sr = world.xe(&["sr-create", "name-label=images", "type=dir", &location]);
    let of = format!("sr-uuid={sr}");
    let disk = world.xe(&["vdi-create", &of, "name-label=d", "virtual-size=1MiB"]);
    let snapshot = world.xe(&["vdi-snapshot", &format!("uuid={disk}")]);
    world.xe(&[
        "vdi-param-set",
        &format!("uuid={snapshot}"),
        "name-label=before",
        "name-description=\"x\"",
    ]);
    eventually("the names are stored", || {
        let stored = |disk: &str| fs::read_to_string(place.join(format!("{disk}.vdi"))).unwrap();
        stored(&disk).contains("\"d\"") && stored(&snapshot).contains("before")
    });
    world.xe(&["vdi-param-set", &format!("uuid={disk}"), "on-boot=reset"]);
    let unplug = |world: &World| {
        let link = world.xe_list("pbd", &of);
        world.xe(&["pbd-unplug", &format!("uuid={link}")]);
    };
    let on = format!("uuid={sr}");
    unplug(&world);
    world.xe(&["sr-forget", &on]);
    assert_eq!(world.xe_list("sr", &on), "");
    assert!(marker(&place).is_file(), "what it holds stays");
    let refused = world.xe_fails(&["sr-create", "name-label=x", "type=dir", &location]);
    assert!(refused.contains(&sr), "{refused}");

    let output = world.xe(&["sr-probe", "type=dir", &location]);
    assert!(output.contains(&format!("<UUID>{sr}</UUID>")), "{output}");
    assert_eq!(output.matches("<SR>").count(), 1, "{output}");
    let back = world.xe(&["sr-introduce", &on, "name-label=again", "type=dir"]);
    assert_eq!(back, sr);
    let host = format!("host-uuid={host}");
    let link = world.xe(&["pbd-create", &host, &of, &location]);
    world.xe(&["pbd-plug", &format!("uuid={link}")]);
    let shown = |disk: &str, field: &str| {
        let field = format!("param-name={field}");
        world.xe(&["vdi-param-get", &format!("uuid={disk}"), &field])
    };
    let fields =
        |disk: &str| ["name-label", "name-description", "on-boot"].map(|of| shown(disk, of));
    assert_eq!(fields(&disk), ["d", "", "reset"]);
    assert_eq!(fields(&snapshot), ["before", "\"x\"", "persist"]);
    assert_eq!(shown(&snapshot, "snapshot-of"), disk);
    assert_eq!(world.xe_list("vdi", &of).split(',').count(), 2);
    world.xe(&["vdi-destroy", &format!("uuid={snapshot}")]);
    // A probe finds the SR while it is in use as well.
    assert_eq!(world.xe(&["sr-probe", "type=dir", &location]), output);

    unplug(&world);
    let refused = world.xe_fails(&["sr-destroy", &on]);
    assert!(refused.contains("There are disks in this storage"), "{refused}");
    world.xe(&["pbd-plug", &format!("uuid={link}")]);
    world.xe(&["vdi-destroy", &format!("uuid={disk}")]);
    fs::write(place.join("notes.txt"), "mine").unwrap();
    unplug(&world);
    world.xe(&["sr-destroy", &on]);
    let left: Vec<_> = fs::read_dir(&place).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    assert!(!world.xe(&["sr-probe", "type=dir", &location]).contains("<SR>"));
    world.xe(&["sr-create", "name-label=new", "type=dir", &location]);
    assert!(marker(&place).is_file());
}

#[test]
fn a_place_that_cannot_be_looked_at_is_told() {
    let mut world = World::new();
    let place = world.daemon.dir().join("none");
    let host = Value::text(world.one("host"));
    let args = |text: &str| {
        let config = record([("location", Value::text(text))]);
        vec![host.clone(), config, Value::text("dir"), record([])]
    };
    let error = world.refused("SR.probe", &args(place.to_str().unwrap()));
    assert_eq!(error[..2], ["SR_BACKEND_FAILURE", "VANISHED"], "{error:?}");
    assert!(error.iter().any(|part| part.contains(place.to_str().unwrap())), "{error:?}");
    assert!(!place.exists(), "a look changes nothing");
    let error = world.refused("SR.probe", &args("not/absolute"));
    assert_eq!(error[..2], ["SR_BACKEND_FAILURE", "CONFIG"], "{error:?}");
}
