//! Tests with the most disks of a machine.

use model::domain::pci::{MAX_DISKS, MSIX_DISKS};
use model::domain::{Boot, DomainSpec};
use model::vm::exits::DomainExit;
use tokio::time::timeout;
use toolstack::hv::Hypervisor;

use super::guest::{Shell, spec};
use super::world::{DOMID, PATIENCE, World, machine, vbd};

/// Enough for disks with and without MSI-X, on the root bus and two bridges. The boot time grows
/// faster than this number; the documentation of `toolstack` gives the reason.
const REDUCED: u8 = MSIX_DISKS + 8;

pub(super) async fn seen() {
    let mut world = World::new();
    let count = testkit::rounds(REDUCED.into(), MAX_DISKS.into());
    let count = u8::try_from(count).unwrap();
    // QEMU before 8.2 can crash under TCG if one CPU maps registers while another uses some. Its
    // "softmmu: Use async_run_on_cpu in tcg_commit" fixes this. No other guest here maps as many,
    // so this one has a single CPU.
    let mut spec = DomainSpec { vcpus: 1, ..spec() };
    // The kernel's output about each disk shows progress.
    if let Boot::Kernel { args, .. } = &mut spec.boot {
        *args = args.replace(" quiet", "");
    }
    world.hv.create(machine(), DOMID, &spec).await.unwrap();
    // From the last to the first: only its slot identifies a disk.
    for number in (0..count).rev() {
        let image = world.image(&format!("disk{number}"), &[]);
        let disk = world.disk(number, &image).await;
        world.hv.plug_disk(machine(), &disk).await.unwrap();
    }
    let mut shell = Shell::of(&world).await;
    world.hv.run(machine()).await.unwrap();
    shell.wait_for("/tmp #").await;
    shell.say("dmesg -n 1; for d in /sys/block/vd*; do echo \"<$(cat $d/serial)>\"; done; echo all''told").await;
    let output = shell.wait_for("alltold").await;
    let mut serials: Vec<_> = output.lines().filter(|line| line.starts_with('<')).collect();
    serials.sort_unstable();
    let given: Vec<_> = (0..count).map(|number| format!("<vbd{number:03}-test>")).collect();
    assert_eq!(serials, given);
    assert_eq!(
        world.hv.find(machine()).await.unwrap().unwrap().disks,
        (0..count).map(vbd).collect()
    );
    shell.say("poweroff").await;
    let ended = timeout(PATIENCE, world.hv.wait_exit(machine())).await.unwrap().unwrap();
    assert_eq!(ended, DomainExit::PoweredOff);
    world.clear().await;
}
