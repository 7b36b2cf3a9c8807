//! Hypervisor drivers. One interface serves QEMU and a simulator, and later Xen.
//!
//! # Words
//! - **Domain**: one running incarnation of a machine, with a unique [`Domid`] that is never
//!   reused.
//! - **Ended**: the guest has powered off, reset or panicked. Its process stays paused until it is
//!   killed, so that a restarted daemon can still read how the guest ended.
//!
//! # Invariants
//! - A domain outlives the daemon. [`Hypervisor::list`] finds it again.
//! - A call whose goal is already reached does nothing and succeeds, so a plan may be executed
//!   twice.
//! - Every call may be dropped at any await. [`Hypervisor::find`] finds what it began.

pub mod qemu;
pub mod sim;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use model::domain::DomainSpec;
use model::id::{Domid, VbdId, VifId, VmId};
use model::plan::{GuestRequest, RunState};
use model::vm::exits::DomainExit;
use tokio::sync::mpsc;

use crate::boxed_future::BoxFuture;

/// Error of a hypervisor.
#[derive(Debug, thiserror::Error)]
pub enum HvError {
    /// The domain does not exist.
    #[error("the machine has no domain")]
    Absent,
    /// QEMU or the guest did not answer in time.
    #[error("{what} took longer than {} s", .after.as_secs())]
    Late {
        /// Request without an answer.
        what: String,
        /// Time waited.
        after: Duration,
    },
    /// The hypervisor refused the request.
    #[error("{what}: {why}")]
    Refused {
        /// Refused request.
        what: String,
        /// Reason that it gave.
        why: String,
    },
    /// The process of the domain did not start, or exited.
    #[error("the emulator did not start: {why}")]
    Start {
        /// Reason, with the last output of the process.
        why: String,
    },
    /// The kernel, the ramdisk or the firmware cannot be used.
    #[error("cannot boot: {why}")]
    Boot {
        /// File and reason.
        why: String,
    },
    /// A system call failed.
    #[error("{what}")]
    Os {
        /// Operation, with its path.
        what: String,
        /// Error of the system call.
        source: std::io::Error,
    },
}

/// Returns the error for a request to a guest that has not begun to run.
fn not_begun() -> HvError {
    let why = "the machine has not started to run; end it by force".into();
    HvError::Refused { what: "asking the guest to shut down".into(), why }
}

/// Disk to plug into a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlug {
    /// Slot of the disk; also the device's name.
    pub vbd: VbdId,
    /// Device number, 0 to 254. It determines the PCI address.
    pub userdevice: u8,
    /// Socket of the disk's datapath.
    pub socket: PathBuf,
    /// Number of queues. The PCI slot may allow fewer.
    pub queues: u16,
    /// Position in the boot order, if the guest may boot from the disk.
    pub boot_index: Option<u16>,
}

/// Network interface to plug into a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicPlug {
    /// Interface id; also the device's name.
    pub vif: VifId,
    /// Device number, 0 to 6.
    pub device: u8,
    /// Socket of the switch.
    pub socket: PathBuf,
    /// Number of queue pairs, equal to that at the switch.
    pub queues: u16,
    /// MAC address, as `00:16:3e:xx:xx:xx`.
    pub mac: String,
    /// MTU announced to the guest, in bytes.
    pub mtu: Option<u16>,
    /// Position in the boot order, if the guest may boot from the interface.
    pub boot_index: Option<u16>,
}

/// Medium of a CD drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdMedium {
    /// Raw image file.
    pub file: PathBuf,
}

/// Event of a domain that no call caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainEvent {
    /// The guest ended, or its process exited.
    Ended {
        /// Machine of the domain.
        vm: VmId,
        /// Id of the domain.
        domid: Domid,
        /// Reason of the end.
        exit: DomainExit,
        /// Time at which the end was seen.
        at: SystemTime,
    },
    /// The guest released a device after the call that requested it stopped waiting. Also sent when
    /// events were lost.
    Unplugged {
        /// Machine of the device.
        vm: VmId,
    },
    /// The guest's agent now answers.
    GuestReady {
        /// Machine of the guest.
        vm: VmId,
    },
}

/// Existing domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainInfo {
    /// Machine of the domain.
    pub vm: VmId,
    /// Id of the domain.
    pub domid: Domid,
    /// Run state; `None` if the process is gone and only its remains exist.
    pub run: Option<RunState>,
    /// Disks of the guest, and drives with a medium.
    pub disks: BTreeSet<VbdId>,
    /// Network interfaces of the guest.
    pub nics: BTreeSet<VifId>,
}

/// Information from a guest's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestInfo {
    /// Operating system: `name`, `uname`, `distro`, `major`, `minor`, with their values.
    pub os: Vec<(String, String)>,
    /// Addresses by interface: `0/ip`, `0/ipv4/0`, `0/ipv6/0`.
    pub networks: Vec<(String, String)>,
    /// Version of the agent.
    pub agent: String,
}

/// Driver that runs guests. The [module](self) states the invariants of every call.
pub trait Hypervisor: fmt::Debug + Send + Sync {
    /// Creates a domain with stopped CPUs, empty drives, no disks and no interfaces.
    fn create<'a>(
        &'a self,
        vm: VmId,
        domid: Domid,
        spec: &'a DomainSpec,
    ) -> BoxFuture<'a, Result<(), HvError>>;
    /// Plugs a disk whose datapath listens.
    fn plug_disk<'a>(&'a self, vm: VmId, disk: &'a DiskPlug) -> BoxFuture<'a, Result<(), HvError>>;
    /// Unplugs a disk. Returns when the guest has released it.
    fn unplug_disk(&self, vm: VmId, vbd: VbdId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Plugs an interface for which the switch listens.
    fn plug_nic<'a>(&'a self, vm: VmId, nic: &'a NicPlug) -> BoxFuture<'a, Result<(), HvError>>;
    /// Unplugs an interface. Returns when the guest has released it.
    fn unplug_nic(&self, vm: VmId, vif: VifId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Inserts a medium into a drive, or removes it.
    fn set_medium<'a>(
        &'a self,
        vm: VmId,
        drive: VbdId,
        cd_medium: Option<&'a CdMedium>,
    ) -> BoxFuture<'a, Result<(), HvError>>;
    /// Notifies the guest of the new size of a disk.
    fn resized(&self, vm: VmId, vbd: VbdId, bytes: u64) -> BoxFuture<'_, Result<(), HvError>>;
    /// Starts or resumes the CPUs.
    fn run(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Pauses the CPUs.
    fn pause(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Requests a shutdown or reboot from the guest, through its agent or the power button.
    ///
    /// Returns when the request is sent. The driver repeats the request until the guest has ended
    /// or the next call for this machine. A guest that has not begun to run is refused.
    fn request_guest(&self, vm: VmId, what: GuestRequest) -> BoxFuture<'_, Result<(), HvError>>;
    /// Waits until the guest has ended and returns the reason.
    fn wait_exit(&self, vm: VmId) -> BoxFuture<'_, Result<DomainExit, HvError>>;
    /// Kills the process, whatever the guest does. Returns when it has exited.
    fn kill(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Removes the leftovers of an exited process: its directory and its control group.
    fn forget(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Lists the existing domains of all machines.
    fn list(&self) -> BoxFuture<'_, Result<Vec<DomainInfo>, HvError>>;
    /// Finds the existing domain of one machine.
    fn find(&self, vm: VmId) -> BoxFuture<'_, Result<Option<DomainInfo>, HvError>>;
    /// Returns what the guest's agent reports; `None` without an agent.
    fn guest(&self, vm: VmId) -> BoxFuture<'_, Result<Option<GuestInfo>, HvError>>;
    /// Returns the mount points of file systems that the guest's agent reports on this disk. Empty
    /// without an agent. Waits for the agent for a few seconds.
    fn mounts(&self, vm: VmId, vbd: VbdId) -> BoxFuture<'_, Result<Vec<String>, HvError>>;
    /// Has the guest's agent freeze the guest's file systems, until [`Hypervisor::thaw`] or the next
    /// daemon. Returns false without an agent. After an error they may be frozen.
    fn freeze(&self, vm: VmId) -> BoxFuture<'_, Result<bool, HvError>>;
    /// Has the guest's agent thaw the guest's file systems. Does nothing without an agent.
    fn thaw(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Returns the socket of the serial console; `None` without a domain or a console.
    fn console(&self, vm: VmId) -> Option<PathBuf>;
    /// Returns the receiver of domain events since the start. Only the first caller gets it.
    fn events(&self) -> Option<mpsc::Receiver<DomainEvent>>;
}
