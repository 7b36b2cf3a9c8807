//! Settings of a running VM that take effect with its next domain.

use std::path::Path;

use model::spec::CacheMode;
use testkit::ringwayd::Shell;
use xenapi::Value;

use super::records::{of, start, with};
use super::world::{Machine, PATIENCE, World};

const WORD: &str = "ringway.pending=1";

fn command_line(shell: &mut Shell) -> String {
    shell.run("cat /proc/cmdline", PATIENCE).unwrap()
}

#[test]
fn a_reboot_applies_what_was_set_meanwhile() {
    let mut world = World::new();
    let guest = world.guest("pending");
    for field in ["VCPUs_max", "VCPUs_at_startup"] {
        world.call(&format!("VM.set_{field}"), &with(&guest.reference, [Value::Int(2)]));
    }
    let slot = format!("uuid={}", world.record("VBD", &guest.slot).text("uuid"));
    world.call("VM.start", &start(&guest.reference));
    let args = world.record("VM", &guest.reference).text("PV_args").to_owned();
    let args = Value::text(format!("{args} {WORD}"));
    world.call("VM.set_PV_args", &with(&guest.reference, [args]));
    let set = ["vbd-param-set", &slot, "other-config:queues=2", "other-config:cache=writeback"];
    world.daemon.xe_prints(&set).unwrap();
    let mut shell = world.shell(&guest);
    let before = command_line(&mut shell);
    assert!(!before.contains(WORD), "{before}");
    is_served(&mut world, &mut shell, &guest, (1, CacheMode::None));
    drop(shell);

    let domid = world.domid(&guest);
    world.call("VM.clean_reboot", &of(&guest.reference));
    assert_ne!(world.domid(&guest), domid);
    let mut shell = world.shell(&guest);
    let after = command_line(&mut shell);
    assert!(after.contains(WORD), "{after}");
    is_served(&mut world, &mut shell, &guest, (2, CacheMode::Writeback));
    shell.last("poweroff", PATIENCE).unwrap();
    world.until_power(&guest, "Halted");
    assert_eq!(world.messages(&guest), ["VM_SHUTDOWN"]);

    // A start also creates a new domain.
    world.daemon.xe_prints(&["vbd-param-clear", &slot, "param-name=other-config"]).unwrap();
    world.call("VM.start", &start(&guest.reference));
    let disk = world.served(&guest.slot).unwrap();
    assert_eq!((disk.queues, disk.cache), (1, CacheMode::None));
    world.call("VM.hard_shutdown", &of(&guest.reference));
    assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
}

/// Asserts the number of queues of the disk, for its guest as well, and the cache mode of its
/// image.
fn is_served(world: &mut World, shell: &mut Shell, guest: &Machine, like: (u16, CacheMode)) {
    let disk = world.served(&guest.slot).unwrap();
    assert_eq!((disk.queues, disk.cache), like);
    let seen = shell.run("ls /sys/block/vda/mq | wc -l", PATIENCE).unwrap();
    assert_eq!((seen, disk.queues_started), (like.0.to_string(), like.0));
    let stats = world.datapaths().into_iter().find(|one| !one.disks.is_empty()).unwrap();
    assert_eq!(is_direct(stats.pid, &guest.image), like.1 == CacheMode::None);
}

/// Returns whether a process has the image open with `O_DIRECT`.
fn is_direct(pid: u32, image: &Path) -> bool {
    let image = image.canonicalize().unwrap();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let open = open.filter(|one| std::fs::read_link(one.path()).is_ok_and(|path| path == image));
    let direct = open.map(|one| {
        let number = one.file_name().into_string().unwrap();
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
        flags & rustix::fs::OFlags::DIRECT.bits() != 0
    });
    let direct: Vec<_> = direct.collect();
    assert!(!direct.is_empty(), "{} is not open", image.display());
    direct.contains(&true)
}
