//! What runs guests: one door for all of a hypervisor, so that plans can be carried out on QEMU, on
//! a simulator, and later on Xen.
//!
//! # Words
//! - **Domain**: one running incarnation of a machine, with a [`Domid`] that no other has or had.
//! - **Ended**: the guest has switched itself off, reset itself or given up; its process stands
//!   still until it is killed, so that nothing of how it ended is lost to a daemon that was away.
//!
//! # Invariants
//! - A domain outlives the daemon; [`Hypervisor::list`] finds it again.
//! - A call whose goal is reached does nothing and ends well: a plan may be carried out twice.
//! - Every call may be dropped at any await. What it had begun is found by `found`.

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

/// Why a hypervisor did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HvError {
    /// There is no such domain.
    #[error("the machine has no domain")]
    Absent,
    /// It did not answer, or the guest did not, in time.
    #[error("{what} took longer than {} s", .after.as_secs())]
    Late {
        /// What was asked.
        what: String,
        /// How long was waited.
        after: Duration,
    },
    /// It answered with an error.
    #[error("{what}: {why}")]
    Refused {
        /// What was asked.
        what: String,
        /// Its reason.
        why: String,
    },
    /// Its process did not come up, or ended.
    #[error("the emulator did not start: {why}")]
    Start {
        /// The reason, with what the process wrote last.
        why: String,
    },
    /// The kernel, the ramdisk or the firmware cannot be used.
    #[error("cannot boot: {why}")]
    Boot {
        /// What is wrong with which file.
        why: String,
    },
    /// The system refused something.
    #[error("{what}")]
    Os {
        /// What was tried, with the path.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Why a guest that has not begun to run is not asked to go down.
fn not_begun() -> HvError {
    let why = "it has not begun to run; end it by force".into();
    HvError::Refused { what: "asking the guest to go down".into(), why }
}

/// A disk to give to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlug {
    /// Which slot: also the device's name.
    pub vbd: VbdId,
    /// Its number, 0 to 254: decides its place on the bus.
    pub userdevice: u8,
    /// Where its datapath listens.
    pub socket: PathBuf,
    /// Queues; what its place allows at most if that is less.
    pub queues: u16,
    /// The guest may start from it, in this order.
    pub boot_index: Option<u16>,
}

/// A network interface to give to a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicPlug {
    /// Which interface: also the device's name.
    pub vif: VifId,
    /// Its number, 0 to 6.
    pub device: u8,
    /// Where the switch listens.
    pub socket: PathBuf,
    /// Pairs of queues: as many as it has there.
    pub queues: u16,
    /// Its address, as `00:16:3e:xx:xx:xx`.
    pub mac: String,
    /// Longest packet that the guest is told, in bytes.
    pub mtu: Option<u16>,
    /// The guest may start from it, in this order.
    pub boot_index: Option<u16>,
}

/// What is put into a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdMedium {
    /// The raw image.
    pub file: PathBuf,
}

/// Something that happened to a domain by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainEvent {
    /// The guest ended, or its process did.
    Ended {
        /// Whose.
        vm: VmId,
        /// Which incarnation.
        domid: Domid,
        /// How.
        exit: DomainExit,
        /// When it was seen.
        at: SystemTime,
    },
    /// A device left after the guest was asked for it longer ago than anybody waited, or may have:
    /// events were lost.
    Unplugged {
        /// Whose.
        vm: VmId,
    },
    /// The guest's agent answers now.
    GuestReady {
        /// Whose.
        vm: VmId,
    },
}

/// A domain that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainInfo {
    /// Whose.
    pub vm: VmId,
    /// Its number.
    pub domid: Domid,
    /// What it does; nothing if only remains of a process are there.
    pub run: Option<RunState>,
    /// Disks that the guest has, and drives with a medium.
    pub disks: BTreeSet<VbdId>,
    /// Interfaces that the guest has.
    pub nics: BTreeSet<VifId>,
}

/// What a guest's agent tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestInfo {
    /// Name and version of the system, as `name`, `uname`, `distro`, `major`, `minor`.
    pub os: Vec<(String, String)>,
    /// Addresses by interface: `0/ip`, `0/ipv4/0`, `0/ipv6/0`.
    pub networks: Vec<(String, String)>,
    /// Version of the agent.
    pub agent: String,
}

/// Runs guests. See the [module](self) for what holds for every call.
pub trait Hypervisor: fmt::Debug + Send + Sync {
    /// Makes a domain: CPUs standing, drives empty, no disks, no interfaces.
    fn create<'a>(
        &'a self,
        vm: VmId,
        domid: Domid,
        spec: &'a DomainSpec,
    ) -> BoxFuture<'a, Result<(), HvError>>;
    /// Gives the guest a disk whose datapath listens.
    fn plug_disk<'a>(&'a self, vm: VmId, disk: &'a DiskPlug) -> BoxFuture<'a, Result<(), HvError>>;
    /// Takes a disk; ends when the guest has let go.
    fn unplug_disk(&self, vm: VmId, vbd: VbdId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Gives the guest an interface, for which the switch listens.
    fn plug_nic<'a>(&'a self, vm: VmId, nic: &'a NicPlug) -> BoxFuture<'a, Result<(), HvError>>;
    /// Takes an interface; ends when the guest has let go.
    fn unplug_nic(&self, vm: VmId, vif: VifId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Puts a medium into a drive, or takes it out.
    fn set_medium<'a>(
        &'a self,
        vm: VmId,
        drive: VbdId,
        cd_medium: Option<&'a CdMedium>,
    ) -> BoxFuture<'a, Result<(), HvError>>;
    /// Tells the guest that a disk has another size now.
    fn resized(&self, vm: VmId, vbd: VbdId, bytes: u64) -> BoxFuture<'_, Result<(), HvError>>;
    /// Lets the CPUs run.
    fn run(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Stops the CPUs.
    fn pause(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Asks the guest, by its agent or by the power button; ends when it was asked, and goes on
    /// asking until the guest has ended or the next call for this machine. Refused where the guest has
    /// not begun to run.
    fn request_guest(&self, vm: VmId, what: GuestRequest) -> BoxFuture<'_, Result<(), HvError>>;
    /// Ends when the guest has ended; how.
    fn wait_exit(&self, vm: VmId) -> BoxFuture<'_, Result<DomainExit, HvError>>;
    /// Ends the process, whatever the guest does; ends when it is gone.
    fn kill(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>>;
    /// Removes what a process leaves: its directory, its group.
    fn forget(&self, vm: VmId) -> BoxFuture<'_, Result<(), HvError>>;
    /// What is really there, of all machines.
    fn list(&self) -> BoxFuture<'_, Result<Vec<DomainInfo>, HvError>>;
    /// What is really there, of one machine.
    fn find(&self, vm: VmId) -> BoxFuture<'_, Result<Option<DomainInfo>, HvError>>;
    /// What the guest's agent tells; nothing if there is none.
    fn guest(&self, vm: VmId) -> BoxFuture<'_, Result<Option<GuestInfo>, HvError>>;
    /// The socket of the serial line; nothing if there is no domain, or none with a line.
    fn console(&self, vm: VmId) -> Option<PathBuf>;
    /// What happens by itself, from the start on; the first caller gets it.
    fn events(&self) -> Option<mpsc::Receiver<DomainEvent>>;
}
