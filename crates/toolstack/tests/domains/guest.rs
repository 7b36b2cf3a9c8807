//! Test guest.

use std::process::Command;

use model::domain::{Boot, DomainSpec};
use model::id::{Uuid, VifId};
use model::plan::{GuestRequest, RunState};
use model::vm::exits::DomainExit;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;
use toolstack::binaries::in_path;
use toolstack::hv::{DomainEvent, Hypervisor};
use toolstack::net::{HostNet, Net};

use super::world::{DOMID, PATIENCE, World, machine, next, vbd};

/// Shell on the serial line.
pub(super) struct Shell {
    line: UnixStream,
    seen: String,
}

impl Shell {
    /// Connects to the console of a domain, which receives the guest's whole output.
    pub(super) async fn of(world: &World) -> Self {
        let line = UnixStream::connect(world.hv.console(machine()).unwrap()).await.unwrap();
        Self { line, seen: String::new() }
    }

    /// Waits until the guest has printed this text after the last match. Returns the output up to
    /// there.
    pub(super) async fn wait_for(&mut self, text: &str) -> String {
        let mut chunk = [0; 4096];
        loop {
            if let Some(at) = self.seen.find(text) {
                return self.seen.drain(..at + text.len()).collect();
            }
            let read = timeout(PATIENCE, self.line.read(&mut chunk)).await;
            let bytes = read.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.seen)).unwrap();
            assert!(bytes > 0, "no {text:?} in {:?}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&chunk[..bytes]));
        }
    }

    /// Reads the output for ever: a guest blocks while its line is full.
    async fn read_on(&mut self) {
        let mut chunk = [0; 4096];
        while self.line.read(&mut chunk).await.is_ok_and(|bytes| bytes > 0) {}
        std::future::pending().await
    }

    pub(super) async fn say(&mut self, line: &str) {
        self.line.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
}

/// Bridge with a TAP device, removed even if the test fails.
struct Network {
    host: HostNet,
    bridge: String,
    tap: String,
}

impl Network {
    async fn new() -> Self {
        let id = std::process::id();
        let ip = in_path("ip").expect("ip is missing; install it with `make setup`");
        let host = HostNet::new(ip, "guest test");
        let network = Self { host, bridge: format!("rwg{id}"), tap: format!("rwh{id}") };
        network.host.create_bridge(&network.bridge, 1500).await.unwrap();
        network.host.create_tap(&network.tap, &network.bridge, 1500).await.unwrap();
        network
    }

    /// Waits until an interface is seen with this address.
    async fn until_seen(&self, vif: VifId, address: &str) {
        let mut claims = self.host.claims().unwrap();
        while !self.host.addresses(vif).iter().any(|one| one.to_string() == address) {
            assert_eq!(timeout(PATIENCE, claims.recv()).await, Ok(Some(vif)));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in [&self.tap, &self.bridge] {
            let gone = Command::new("ip").args(["link", "del", "dev", name]).status();
            assert!(gone.is_ok_and(|status| status.success()), "{name} was not there");
        }
    }
}

/// Returns a machine that boots the test guest with a shell.
pub(super) fn spec() -> DomainSpec {
    let guest = testkit::guest::artifacts().unwrap();
    let boot = Boot::Kernel {
        kernel: guest.kernel.into(),
        ramdisk: Some(guest.initramfs.into()),
        args: testkit::guest::KERNEL_ARGS.into(),
    };
    DomainSpec { memory_bytes: 256 << 20, vcpus: 2, boot, cds: vec![] }
}

pub(super) async fn panics() {
    let world = World::new();
    let mut events = world.hv.events().unwrap();
    world.hv.create(machine(), DOMID, &spec()).await.unwrap();
    let mut shell = Shell::of(&world).await;
    world.hv.run(machine()).await.unwrap();
    shell.wait_for("/tmp #").await;
    shell.say("echo c >/proc/sysrq-trigger").await;
    let ended = tokio::select! {
        ended = timeout(PATIENCE, world.hv.wait_exit(machine())) => ended.unwrap().unwrap(),
        () = shell.read_on() => unreachable!(),
    };
    assert_eq!(ended, DomainExit::Panicked);
    loop {
        if let DomainEvent::Ended { exit, .. } = next(&mut events).await {
            assert_eq!(exit, DomainExit::Panicked);
            break;
        }
    }
    world.clear().await;
}

async fn has_host_end(world: &World) -> bool {
    let list = world.control().await.execute("query-chardev", Value::Null, PATIENCE).await.unwrap();
    list.to_string().contains(&format!("host-disk-{}", vbd(40)))
}

/// Lets the guest release the second disk while no daemon runs.
async fn leaves_unseen(world: &World) {
    assert!(has_host_end(world).await);
    let qmp = world.control().await;
    let mut events = qmp.events();
    let id = format!("disk-{}", vbd(40));
    qmp.execute("device_del", json!({ "id": id }), PATIENCE).await.unwrap();
    let left = async { while events.recv().await.unwrap().data["device"] != id.as_str() {} };
    timeout(PATIENCE, left).await.expect("the guest does not let go of it");
}

/// Waits until the guest has the second disk, which is behind a bridge, and mounts a file system
/// of it.
async fn mounted(world: &World, shell: &mut Shell) {
    shell.say("until disk vbd040-test 2>/dev/null; do :; done; echo has''it").await;
    shell.wait_for("hasit").await;
    let of = async |number| world.hv.mounts(machine(), vbd(number)).await.unwrap();
    assert_eq!(of(40).await, [""; 0]);
    let made = "d=$(disk vbd040-test); mkfs.ext4 -q -O ^has_journal $d; mkdir /tmp/m";
    shell.say(&format!("{made}; mount $d /tmp/m && echo is''mounted")).await;
    shell.wait_for("ismounted").await;
    assert_eq!((of(40).await, of(0).await), (vec!["/tmp/m".to_owned()], vec![]));
    shell.say("umount /tmp/m && echo un''mounted").await;
    shell.wait_for("unmounted").await;
    assert_eq!(of(40).await, [""; 0]);
}

pub(super) async fn lives() {
    let mut world = World::new();
    let mut events = world.hv.events().unwrap();
    let image = world.image("disk", b"first disk");
    world.hv.create(machine(), DOMID, &spec()).await.unwrap();
    let first = world.disk(0, &image).await;
    world.hv.plug_disk(machine(), &first).await.unwrap();
    let net = Network::new().await;
    let (vif, mac) = (VifId(Uuid::default()), "00:16:3e:00:00:09".to_owned());
    net.host.watch(vif, &net.bridge, &mac, None).await.unwrap();
    let nic = world.nic(3, &mac, &net.bridge, &net.tap).await;
    for _ in 0..2 {
        world.hv.plug_nic(machine(), &nic).await.unwrap();
    }
    let mut shell = Shell::of(&world).await;
    assert_eq!(world.hv.guest(machine()).await.unwrap(), None);
    world.hv.run(machine()).await.unwrap();
    shell.wait_for("/tmp #").await;
    assert_eq!(next(&mut events).await, DomainEvent::GuestReady { vm: machine() });
    let seen = world.hv.guest(machine()).await.unwrap().unwrap();
    assert!(!seen.agent.is_empty(), "{seen:?}");
    shell.say("head -c 10 $(disk vbd000-test); echo; echo one''more").await;
    shell.wait_for("first disk").await;
    shell.wait_for("onemore").await;

    shell.say("ip addr add 10.9.8.7/24 dev eth0; echo add''ed").await;
    shell.wait_for("added").await;
    // The guest sends ARP requests for a missing address.
    shell.say("ping -c 1 -W 1 10.9.8.1; echo ask''ed").await;
    net.until_seen(vif, "10.9.8.7").await;
    shell.wait_for("asked").await;
    let seen = world.hv.guest(machine()).await.unwrap().unwrap().networks;
    assert!(seen.contains(&("3/ip".into(), "10.9.8.7".into())), "{seen:?}");
    assert_eq!(world.hv.find(machine()).await.unwrap().unwrap().nics, [vif].into());
    world.hv.unplug_nic(machine(), vif).await.unwrap();
    assert_eq!(world.hv.find(machine()).await.unwrap().unwrap().nics, [].into());

    // Plug a disk behind a bridge while the guest runs. The daemon restarts meanwhile.
    let other = world.image("second", b"");
    let second = world.disk(40, &other).await;
    world.hv.plug_disk(machine(), &second).await.unwrap();
    mounted(&world, &mut shell).await;
    world.restart();
    let domain_info = world.hv.find(machine()).await.unwrap().unwrap();
    assert_eq!(
        (domain_info.run, domain_info.disks),
        (Some(RunState::Running), [vbd(0), vbd(40)].into())
    );
    for _ in 0..2 {
        world.hv.unplug_disk(machine(), vbd(40)).await.unwrap();
    }
    assert_eq!(world.hv.find(machine()).await.unwrap().unwrap().disks, [vbd(0)].into());
    // The slot can be used again.
    world.hv.plug_disk(machine(), &second).await.unwrap();
    world.restart();
    leaves_unseen(&world).await;
    let domain_info = world.hv.find(machine()).await.unwrap().unwrap();
    assert_eq!(domain_info.disks, [vbd(0)].into());
    world.restart();
    assert!(!has_host_end(&world).await, "its connection would be tried for ever");

    let mut events = world.hv.events().unwrap();
    world.hv.request_guest(machine(), GuestRequest::Shutdown).await.unwrap();
    assert_eq!(
        timeout(PATIENCE, world.hv.wait_exit(machine())).await.unwrap().unwrap(),
        DomainExit::PoweredOff
    );
    loop {
        if let DomainEvent::Ended { exit, .. } = next(&mut events).await {
            assert_eq!(exit, DomainExit::PoweredOff);
            break;
        }
    }
    world.clear().await;
}
