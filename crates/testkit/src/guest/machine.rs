//! Hardware of a guest.

use std::path::{Path, PathBuf};

/// Kind of guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Debian's cloud kernel in QEMU, emulated.
    Qemu,
    /// Debian's User-Mode Linux.
    Uml,
}

/// A disk that a backend serves on a vhost-user socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostDisk {
    /// Path of the backend's socket, which must accept connections already.
    pub socket: PathBuf,
    /// Number of queues. User-Mode Linux has one CPU and uses one.
    pub queues: u16,
}

/// A disk that QEMU itself serves from a raw file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Path of the file.
    pub path: PathBuf,
    /// Serial by which the script finds the disk, at most 20 bytes.
    pub serial: String,
    /// Refuse writes.
    pub read_only: bool,
}

/// Hardware of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Disks of backends under test, in order.
    pub disks: Vec<VhostDisk>,
    /// Plain disks; QEMU only.
    pub images: Vec<Image>,
    /// Memory, in MiB.
    pub memory_mib: u32,
    /// Number of CPUs. User-Mode Linux always has one.
    pub cpus: u32,
    /// CPU of the host on which the whole guest runs; User-Mode Linux only.
    pub cpu: Option<usize>,
    /// Additional kernel parameters.
    pub append: String,
    /// Additional arguments for QEMU; QEMU only.
    pub args: Vec<String>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            disks: Vec::new(),
            images: Vec::new(),
            memory_mib: 256,
            cpus: 1,
            cpu: None,
            append: String::new(),
            args: Vec::new(),
        }
    }
}

impl Machine {
    /// Creates a machine with one vhost-user disk of one queue.
    #[must_use]
    pub fn with_disk(socket: &Path) -> Self {
        let disks = vec![VhostDisk { socket: socket.to_owned(), queues: 1 }];
        Self { disks, ..Self::default() }
    }

    /// Creates a machine for User-Mode Linux with a NIC at a backend's socket. The script
    /// [`UML_NIC`] starts the NIC.
    #[must_use]
    pub fn with_nic(socket: &Path) -> Self {
        let append = format!("virtio_uml.device={}:{VIRTIO_NET}", socket.display());
        Self { append, ..Self::default() }
    }

    /// Creates a machine for QEMU with a NIC `eth0` at a backend's socket, with `pairs` pairs of
    /// queues and as many CPUs. The NIC does not use MSI-X. To mask an MSI-X interrupt of a
    /// vhost-user NIC, QEMU 7.2 needs KVM; without KVM it exits.
    #[must_use]
    pub fn with_pci_nic(socket: &Path, pairs: u16, mac: &str) -> Self {
        let chardev = format!("socket,id=nic,path={}", socket.display());
        let netdev = format!("vhost-user,id=net,chardev=nic,queues={pairs}");
        Self::with_netdev(&["-chardev", &chardev, "-netdev", &netdev], pairs, mac)
    }

    /// Creates the same machine with a TAP device of the host, which QEMU itself serves. With
    /// several pairs the device must support several queues.
    #[must_use]
    pub fn with_tap_nic(device: &str, pairs: u16, mac: &str) -> Self {
        let netdev =
            format!("tap,id=net,ifname={device},script=no,downscript=no,vhost=off,queues={pairs}");
        Self::with_netdev(&["-netdev", &netdev], pairs, mac)
    }

    fn with_netdev(args: &[&str], pairs: u16, mac: &str) -> Self {
        let device = format!("virtio-net-pci,netdev=net,mq=on,vectors=0,mac={mac}");
        let args = args.iter().copied().chain(["-device", &device]);
        let args = args.map(String::from).collect();
        Self { cpus: pairs.into(), args, ..Self::default() }
    }
}

/// Virtio device type of a NIC.
const VIRTIO_NET: u8 = 1;

/// Script lines with which a User-Mode Linux guest starts its NIC `eth0`.
pub const UML_NIC: &str = "modules=/usr/lib/uml/modules/$(uname -r)/kernel
    for module in net/core/failover drivers/net/net_failover drivers/net/virtio_net; do
        busybox insmod $modules/$module.ko || exit 3
    done
    ip link set lo up
    ip link set eth0 up";
