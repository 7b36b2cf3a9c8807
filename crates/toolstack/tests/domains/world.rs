//! Environment for domains, removed completely at the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use model::domain::{Boot, DomainSpec};
use model::id::{Domid, Uuid, VbdId, VifId, VmId};
use model::machine::{Accel, AccelChoice};
use model::nic::{NicSpec, UplinkSpec};
use model::spec::{Backend, DiskSpec};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use toolstack::hv::qemu::{QemuHypervisor, Settings};
use toolstack::hv::{DiskPlug, DomainEvent, Hypervisor, NicPlug};
use toolstack::qemu::qmp::Qmp;
use toolstack::ringway_io::{IoProcess, RpcConnection};

/// Far more time than any test here takes on a busy host.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

pub(super) const DOMID: Domid = Domid(7);

/// Returns the machine of a world.
pub(super) fn machine() -> VmId {
    VmId(Uuid::default())
}

/// Returns a slot with this number in its UUID.
pub(super) fn vbd(number: u8) -> VbdId {
    let mut bytes = [0; 16];
    bytes[15] = number;
    VbdId(Uuid::from_random(bytes))
}

/// Run directory with a driver, and a datapath on demand.
pub(super) struct World {
    pub hv: QemuHypervisor,
    io: Option<(IoProcess, RpcConnection)>,
    dir: TempDir,
}

impl World {
    pub(super) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp").unwrap();
        let hv = QemuHypervisor::new(settings(dir.path()));
        Self { hv, io: None, dir }
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn settings(&self) -> Settings {
        settings(self.dir.path())
    }

    /// Replaces the driver, as a restart of the daemon does.
    pub(super) fn restart(&mut self) {
        self.hv = QemuHypervisor::new(self.settings());
    }

    /// Connects to QEMU's control socket. That works while no driver uses it: after a
    /// [`restart`](Self::restart), until the next discovery.
    pub(super) async fn control(&self) -> Qmp {
        let socket = self.path().join("vm").join(machine().to_string()).join("qmp.sock");
        Qmp::handshake(UnixStream::connect(socket).await.unwrap()).await.unwrap().0
    }

    /// Creates a raw image that begins with these bytes.
    pub(super) fn image(&self, name: &str, begin: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        let mut bytes = begin.to_vec();
        bytes.resize(1 << 20, 0);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Returns the connection to the `ringway-io` that serves disks and NICs here.
    async fn client(&mut self) -> &mut RpcConnection {
        if self.io.is_none() {
            let program = testkit::process::find_binary("ringway-io").unwrap();
            let control = self.dir.path().join("io.sock");
            let mut process = IoProcess::spawn(&program, &control, false).unwrap();
            let client = process.ready().await.unwrap();
            self.io = Some((process, client));
        }
        &mut self.io.as_mut().unwrap().1
    }

    /// Serves a NIC with this number and two queue pairs, in the network of a bridge with this TAP
    /// device.
    pub(super) async fn nic(&mut self, device: u8, mac: &str, bridge: &str, tap: &str) -> NicPlug {
        let socket = self.dir.path().join(format!("n{device}.sock"));
        let spec = NicSpec::new(format!("n{device}"), &socket, bridge, mac.parse().unwrap());
        let spec = NicSpec { queues: 2, ..spec };
        let client = self.client().await;
        client.nic_attach(&spec).await.unwrap();
        let uplink = UplinkSpec { network: bridge.into(), tap: Some(tap.into()) };
        client.network_uplink(&uplink).await.unwrap();
        let (vif, mac) = (VifId(Uuid::default()), mac.to_owned());
        NicPlug { vif, device, socket, queues: 2, mac, mtu: Some(1500), boot_index: None }
    }

    /// Serves an image as the disk with this number.
    pub(super) async fn disk(&mut self, number: u8, image: &Path) -> DiskPlug {
        let socket = self.dir.path().join(format!("d{number}.sock"));
        let mut spec = DiskSpec::new(format!("d{number}"), &socket, Backend::File(image.into()));
        spec.queues = 2;
        spec.serial = Some(format!("vbd{number:03}-test"));
        self.client().await.attach(&spec).await.unwrap();
        DiskPlug { vbd: vbd(number), userdevice: number, socket, queues: 2, boot_index: None }
    }

    /// Returns the process of the domain, if it has written its id.
    pub(super) fn pid(&self) -> Option<Pid> {
        let file = self.dir.path().join("vm").join(machine().to_string()).join("pid");
        Pid::from_raw(std::fs::read_to_string(file).ok()?.trim().parse().ok()?)
    }

    /// Ends the domain and checks that nothing remains.
    pub(super) async fn clear(&self) {
        self.hv.kill(machine()).await.unwrap();
        self.hv.forget(machine()).await.unwrap();
        assert_eq!(self.hv.list().await.unwrap(), []);
        assert!(!self.dir.path().join("vm").join(machine().to_string()).exists());
    }
}

/// Domains outlive their driver, but must not outlive a failed test.
impl Drop for World {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
}

fn settings(run: &Path) -> Settings {
    let qemu = toolstack::binaries::in_path("qemu-system-x86_64").expect("run `make setup`");
    Settings {
        accel: AccelChoice::Fixed(Accel::Tcg),
        boot_directories: vec![guest_dir()],
        ..Settings::usual(qemu, run.to_owned())
    }
}

/// Returns the directory of the test guest's files.
pub(super) fn guest_dir() -> PathBuf {
    let kernel = testkit::guest::artifacts().unwrap().kernel;
    kernel.parent().unwrap().to_owned()
}

/// Returns a machine whose firmware tries these devices.
pub(super) fn firmware(order: Vec<model::domain::BootFrom>) -> DomainSpec {
    DomainSpec { memory_bytes: 64 << 20, vcpus: 2, boot: Boot::Firmware(order), cds: vec![] }
}

/// Returns the next event.
pub(super) async fn next(events: &mut mpsc::Receiver<DomainEvent>) -> DomainEvent {
    tokio::time::timeout(PATIENCE, events.recv()).await.expect("no event came").unwrap()
}

/// Checks the first event of a discovered domain: devices may have been released unseen.
pub(super) async fn may_have_lost_devices(events: &mut mpsc::Receiver<DomainEvent>) {
    let DomainEvent::Unplugged { vm } = next(events).await else { panic!() };
    assert_eq!(vm, machine());
}
