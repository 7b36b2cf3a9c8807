//! Domains with stopped CPUs.

use model::id::{Domid, VbdId};
use model::plan::RunState;
use model::vm::exits::DomainExit;
use rustix::process::{Signal, kill_process};
use toolstack::hv::qemu::QemuHypervisor;
use toolstack::hv::{CdMedium, DomainEvent, HvError, Hypervisor};

use super::world::{DOMID, World, firmware, guest_dir, machine, may_have_lost_devices, next, vbd};

pub(super) async fn comes_and_goes() {
    let world = World::new();
    let hv = &world.hv;
    assert_eq!((hv.find(machine()).await.unwrap(), hv.console(machine())), (None, None));
    assert!(matches!(hv.run(machine()).await, Err(HvError::Absent)));
    let spec = firmware(vec![]);
    hv.create(machine(), DOMID, &spec).await.unwrap();
    // A repeated call has no effect.
    let pid = world.pid();
    hv.create(machine(), DOMID, &spec).await.unwrap();
    assert_eq!(world.pid(), pid);
    let other = hv.create(machine(), Domid(8), &spec).await.unwrap_err().to_string();
    assert!(other.contains("domain 7"), "{other}");

    let domain_info = hv.find(machine()).await.unwrap().unwrap();
    assert_eq!((domain_info.domid, domain_info.run), (DOMID, Some(RunState::Created)));
    tokio::net::UnixStream::connect(hv.console(machine()).unwrap()).await.unwrap();
    let still = hv.forget(machine()).await.unwrap_err().to_string();
    assert!(still.contains("kill it first"), "{still}");

    hv.kill(machine()).await.unwrap();
    let remains = hv.find(machine()).await.unwrap().unwrap();
    assert_eq!((remains.domid, remains.run), (DOMID, None));
    assert_eq!(hv.wait_exit(machine()).await.unwrap(), DomainExit::Killed);
    hv.kill(machine()).await.unwrap();
    // Remains do not prevent a new domain.
    hv.create(machine(), Domid(8), &spec).await.unwrap();
    assert_eq!(hv.find(machine()).await.unwrap().unwrap().domid, Domid(8));
    world.clear().await;
    hv.forget(machine()).await.unwrap();
    assert!(hv.events().unwrap().try_recv().is_err(), "what was asked for is no news");
}

pub(super) async fn found_again() {
    let mut world = World::new();
    world.hv.create(machine(), DOMID, &firmware(vec![])).await.unwrap();
    world.restart();
    let mut events = world.hv.events().unwrap();
    assert!(world.hv.events().is_none());
    let domain_info = world.hv.list().await.unwrap();
    assert_eq!(domain_info.len(), 1);
    assert_eq!(
        (domain_info[0].vm, domain_info[0].domid, domain_info[0].run),
        (machine(), DOMID, Some(RunState::Created))
    );
    may_have_lost_devices(&mut events).await;

    world.hv.run(machine()).await.unwrap();
    world.hv.run(machine()).await.unwrap();
    world.restart();
    assert_eq!(world.hv.find(machine()).await.unwrap().unwrap().run, Some(RunState::Running));
    assert!(events.recv().await.is_none(), "a driver that is gone tells nothing");
    world.hv.pause(machine()).await.unwrap();
    world.hv.pause(machine()).await.unwrap();
    assert_eq!(world.hv.find(machine()).await.unwrap().unwrap().run, Some(RunState::Paused));

    let mut events = world.hv.events().unwrap();
    may_have_lost_devices(&mut events).await;
    kill_process(world.pid().unwrap(), Signal::KILL).unwrap();
    let DomainEvent::Ended { vm, domid, exit, .. } = next(&mut events).await else { panic!() };
    assert_eq!((vm, domid, exit), (machine(), DOMID, DomainExit::Killed));
    assert_eq!(world.hv.find(machine()).await.unwrap().unwrap().run, None);
    // A new driver knows only that the remains exist.
    world.restart();
    assert_eq!(world.hv.list().await.unwrap()[0].run, None);
    world.clear().await;
}

pub(super) async fn devices() {
    let mut world = World::new();
    let (drive, images) = (vbd(200), [world.image("a", b""), world.image("b", b"")]);
    let mut spec = firmware(vec![]);
    spec.cds = vec![vbd(199), drive];
    world.hv.create(machine(), DOMID, &spec).await.unwrap();
    let plugs = [world.disk(0, &images[0]).await, world.disk(40, &images[1]).await];
    for plug in plugs.iter().chain(&plugs) {
        world.hv.plug_disk(machine(), plug).await.unwrap();
    }
    let mut none = plugs[0].clone();
    (none.vbd, none.socket) = (vbd(1), world.path().join("none.sock"));
    let error = world.hv.plug_disk(machine(), &none).await.unwrap_err().to_string();
    assert!(error.contains("none.sock"), "{error}");

    let cd_medium = CdMedium { file: world.image("cd", b"") };
    for _ in 0..2 {
        world.hv.set_medium(machine(), drive, Some(&cd_medium)).await.unwrap();
    }
    world.restart();
    let disks = |domain_info: Option<toolstack::hv::DomainInfo>| domain_info.unwrap().disks;
    let all: std::collections::BTreeSet<VbdId> = [vbd(0), vbd(40), drive].into();
    assert_eq!(disks(world.hv.find(machine()).await.unwrap()), all);
    let other = CdMedium { file: world.image("other", b"") };
    world.hv.set_medium(machine(), drive, Some(&other)).await.unwrap();
    let gone = CdMedium { file: "/nonexistent".into() };
    let error = world.hv.set_medium(machine(), drive, Some(&gone)).await.unwrap_err().to_string();
    assert!(error.contains("/nonexistent"), "{error}");
    assert!(!disks(world.hv.find(machine()).await.unwrap()).contains(&drive), "it is empty then");
    world.hv.set_medium(machine(), drive, None).await.unwrap();
    let error = world.hv.set_medium(machine(), vbd(3), None).await.unwrap_err().to_string();
    assert!(error.contains("without this drive"), "{error}");
    world.clear().await;
}

pub(super) async fn start_failures() {
    let world = World::new();
    let broken = world.path().join("vmlinuz");
    std::fs::write(&broken, "").unwrap();
    let kernel = |path: &std::path::Path| {
        let mut spec = firmware(vec![]);
        spec.boot = model::domain::Boot::Kernel {
            kernel: path.to_owned().into(),
            ramdisk: None,
            args: String::new(),
        };
        spec
    };
    let outside = world.hv.create(machine(), DOMID, &kernel(&broken)).await.unwrap_err();
    assert!(matches!(outside, HvError::Boot { .. }), "{outside}");
    assert_eq!(world.hv.find(machine()).await.unwrap(), None);

    let mut settings = world.settings();
    settings.boot_directories = vec![guest_dir(), world.path().into()];
    let hv = QemuHypervisor::new(settings);
    let HvError::Start { why } = hv.create(machine(), DOMID, &kernel(&broken)).await.unwrap_err()
    else {
        panic!()
    };
    assert!(why.contains("kernel"), "{why}");
    assert_eq!(hv.find(machine()).await.unwrap().unwrap().run, None);
    hv.forget(machine()).await.unwrap();

    let mut settings = world.settings();
    settings.qemu = "/nonexistent/qemu".into();
    let hv = QemuHypervisor::new(settings);
    let HvError::Start { why } = hv.create(machine(), DOMID, &firmware(vec![])).await.unwrap_err()
    else {
        panic!()
    };
    assert!(why.contains("/nonexistent/qemu"), "{why}");
    hv.forget(machine()).await.unwrap();
}

pub(super) async fn silent() {
    let world = World::new();
    world.hv.create(machine(), DOMID, &firmware(vec![])).await.unwrap();
    kill_process(world.pid().unwrap(), Signal::STOP).unwrap();
    assert_eq!(world.hv.find(machine()).await.unwrap().unwrap().run, Some(RunState::Unresponsive));
    world.clear().await;
}
