//! Devices that change while a guest runs.

use std::time::{Duration, Instant};

use testkit::ringwayd::Shell;
use xenapi::Value;

use super::records::{interface, of, record, with};
use super::world::{DISK_BYTES, Machine, PATIENCE, World};

/// IOPS limit of the capped disk, and number of requests.
const IOPS: u64 = 10;
const TRIED: u64 = 60;
/// Block size in which the guest's kernel counts.
const SECTOR: i64 = 512;

/// A VIF comes and goes, a disk grows, and its limits change.
pub(super) fn devices_change(world: &mut World, machine: &Machine, shell: &mut Shell) {
    // A VIF is plugged and unplugged, and so are its resources on the host. The guest had no NIC at
    // boot: it loads the driver and brings the NIC up itself.
    let net = [("name_label", Value::text("n")), ("other_config", record([]))];
    let net = world.made("network.create", &[record(net)]);
    let vif = world.made("VIF.create", &[interface(&machine.reference, &net)]);
    let eth0 = "/sys/class/net/eth0";
    for turn in 0..2 {
        world.call("VIF.plug", &of(&vif));
        assert!(world.record("VIF", &vif).flag("currently_attached"), "{turn}");
        let is_up =
            format!("until [ \"$(cat {eth0}/operstate)\" = up ]; do sleep 0.1; done 2>/dev/null");
        shell.run(&is_up, PATIENCE).unwrap();
        let mac = shell.run(&format!("cat {eth0}/address"), PATIENCE).unwrap();
        assert_eq!(mac, world.record("VIF", &vif).text("MAC"));
        assert!(world.is_served(&vif));
        world.call("VIF.unplug", &of(&vif));
        assert!(!world.record("VIF", &vif).flag("currently_attached"), "{turn}");
        shell.run(&format!("[ ! -e {eth0} ]"), PATIENCE).unwrap();
        assert!(!world.is_served(&vif));
    }
    world.call("VIF.destroy", &of(&vif));
    world.call("network.destroy", &of(&net));

    grows(world, machine, shell);
    is_limited(world, machine, shell);
}

/// The guest sees the new size and can use the added space.
fn grows(world: &mut World, machine: &Machine, shell: &mut Shell) {
    let size = "/sys/block/vda/size";
    let sectors = |bytes: i64| (bytes / SECTOR).to_string();
    assert_eq!(shell.run(&format!("cat {size}"), PATIENCE).unwrap(), sectors(DISK_BYTES));
    world.call("VDI.resize", &with(&machine.disk, [Value::Int(2 * DISK_BYTES)]));
    assert_eq!(world.record("VDI", &machine.disk).int("virtual_size"), 2 * DISK_BYTES);
    let seen = format!("until [ $(cat {size}) = {} ]; do sleep 0.1; done", sectors(2 * DISK_BYTES));
    shell.run(&seen, PATIENCE).unwrap();
    let behind = u64::try_from((DISK_BYTES + DISK_BYTES / 2) / SECTOR).unwrap();
    machine.write(shell, behind, "behind");
    assert_eq!(machine.stored(behind), "behind");
    assert_eq!(machine.image_bytes(), u64::try_from(2 * DISK_BYTES).unwrap());
}

/// Limits apply to the guest from when they are set until they are cleared.
fn is_limited(world: &mut World, machine: &Machine, shell: &mut Shell) {
    // Without read-ahead and with an empty cache, each page is one request.
    shell.run("blockdev --setra 0 /dev/vda", PATIENCE).unwrap();
    let reads = format!(
        "echo 1 >/proc/sys/vm/drop_caches; dd if=/dev/vda of=/dev/null bs=4k count={TRIED} 2>&1"
    );
    let limit = IOPS.to_string();
    let params = record([("iops", Value::text(limit.as_str()))]);
    let set = |world: &mut World, algorithm: &str, params: &Value| {
        let slot = machine.slot.as_str();
        world.call("VBD.set_qos_algorithm_params", &with(slot, [params.clone()]));
        world.call("VBD.set_qos_algorithm_type", &with(slot, [Value::text(algorithm)]));
    };
    // A former algorithm refuses parameters of another one.
    set(world, "", &record([]));
    set(world, "ringway", &params);
    until_capped(world, machine, Some(IOPS));
    let began = Instant::now();
    shell.run(&reads, PATIENCE).unwrap();
    let (took, allowed) = (began.elapsed(), Duration::from_secs((TRIED - 2 * IOPS) / IOPS));
    assert!(took >= allowed, "{TRIED} requests in {took:?}, {IOPS} a second are allowed");
    // The next daemon leaves the limits unchanged.
    world.killed();
    until_capped(world, machine, Some(IOPS));
    set(world, "", &record([]));
    until_capped(world, machine, None);
    shell.run(&reads, PATIENCE).unwrap();
    assert_eq!(world.record("VBD", &machine.slot).int("status_code"), 0);
}

fn until_capped(world: &mut World, machine: &Machine, iops: Option<u64>) {
    world.until_served(&machine.slot, |disk| disk.caps.and_then(|caps| caps.iops) == iops);
}
