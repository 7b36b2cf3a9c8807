//! Guests that end by themselves: a few bytes of code, which firmware boots from a disk.

use model::domain::BootFrom;
use model::plan::RunState;
use model::vm::exits::DomainExit;
use testkit::boot_sector::bootable;
use toolstack::hv::{DomainEvent, Hypervisor};

use super::world::{DOMID, World, firmware, machine, may_have_lost_devices, next, vbd};

/// Returns a boot sector with `mov dx, port; mov ax, value; out dx, ax; hlt`.
fn sector(port: u16, value: u16) -> Vec<u8> {
    let ([p0, p1], [v0, v1]) = (port.to_le_bytes(), value.to_le_bytes());
    bootable(&[0xba, p0, p1, 0xb8, v0, v1, 0xef, 0xf4, 0xeb, 0xfd])
}

/// Power management register: sleep state S5.
const POWER_OFF: (u16, u16) = (0x604, 0x2000);
/// Reset register of the chipset.
const RESET: (u16, u16) = (0xcf9, 0x0006);
/// Panic notification device (pvpanic).
const PANIC: (u16, u16) = (0x505, 0x0001);
/// Ways in which a guest can end by itself.
const ENDS: [((u16, u16), DomainExit); 3] = [
    (POWER_OFF, DomainExit::PoweredOff),
    (PANIC, DomainExit::Panicked),
    (RESET, DomainExit::Rebooted),
];

async fn start(world: &mut World, (port, value): (u16, u16)) {
    world.hv.create(machine(), DOMID, &firmware(vec![BootFrom::Disk(vbd(9))])).await.unwrap();
    let image = world.image("disk9", &sector(port, value));
    let mut disk = world.disk(9, &image).await;
    disk.boot_index = Some(0);
    world.hv.plug_disk(machine(), &disk).await.unwrap();
    world.hv.run(machine()).await.unwrap();
}

pub(super) async fn distinguished() {
    for (code, exit) in ENDS {
        let mut world = World::new();
        let mut events = world.hv.events().unwrap();
        start(&mut world, code).await;
        let event = next(&mut events).await;
        let DomainEvent::Ended { vm, domid, exit: reported, .. } = event else {
            panic!("{event:?}")
        };
        assert_eq!((vm, domid, reported), (machine(), DOMID, exit));
        assert_eq!(world.hv.wait_exit(machine()).await.unwrap(), exit);
        let ended = Some(RunState::Ended(exit));
        assert_eq!(world.hv.find(machine()).await.unwrap().unwrap().run, ended);
        let refused = world.hv.run(machine()).await.unwrap_err().to_string();
        assert!(refused.contains("new domain"), "{refused}");
        world.restart();
        assert_eq!(world.hv.find(machine()).await.unwrap().unwrap().run, ended, "and to the next");
        world.clear().await;
        assert!(events.recv().await.is_none());
    }
}

pub(super) async fn kept() {
    for (code, exit) in ENDS {
        let mut world = World::new();
        start(&mut world, code).await;
        world.restart();
        let mut events = world.hv.events().unwrap();
        world.hv.list().await.unwrap();
        may_have_lost_devices(&mut events).await;
        let event = next(&mut events).await;
        assert!(
            matches!(event, DomainEvent::Ended { exit: reported, .. } if reported == exit),
            "{event:?}"
        );
        world.clear().await;
    }
}
