//! Recipes: what a user of libvirt, QEMU or Cloud Hypervisor writes down to get a disk of ours.
//!
//! A [`RecipeDisk`] is one disk as the machine's side sees it: a socket, queues, a name, a place in the
//! boot order. [`RecipeDisks`] are those of one machine, checked against each other. From them
//! [`libvirt`] makes XML and [`flags`] makes command lines; both are pure functions.
//!
//! What the machine's side must not say is left out: libvirt refuses a serial, a cache mode or a
//! throttle on a vhost-user disk, and all of these are given where the disk is served.

mod arg;
pub mod flags;
pub mod libvirt;
mod xml;

pub use arg::{DiskSelector, RecipeDiskArg};

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::machine::{Accel, validate_memory, validate_vcpus};
use crate::spec::{MAX_QUEUES, MAX_SOCKET_PATH_BYTES, SpecError, refuse};

/// Seconds between a front-end's attempts to reach a backend that went away: the least that QEMU
/// and libvirt take.
pub const RECONNECT_SECONDS: u32 = 1;
/// Most disks of one recipe: what fits into the names `vda` to `vdzz`.
pub const MAX_FRONTS: usize = 26 + 26 * 26;
/// Longest name of a machine: libvirt makes file and socket names of it.
pub const MAX_NAME_BYTES: usize = 64;

/// One disk from the machine's side. Made by [`RecipeDisks::new`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeDisk {
    /// Socket of the backend: absolute, fit for `sun_path`, without control characters.
    pub socket: String,
    /// Queues that the guest gets.
    pub queues: u16,
    /// Name of the device in the machine's definition, `vda`.
    pub target: String,
    /// Place in the boot order, from 1.
    pub boot: Option<u16>,
}

/// What is known of a disk before it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeDiskRequest {
    /// Socket of the backend.
    pub socket: PathBuf,
    /// Queues.
    pub queues: u16,
    /// Name; the first that is free when absent.
    pub target: Option<String>,
    /// Place in the boot order.
    pub boot: Option<u16>,
}

/// The disks of one machine: no two share a socket, a name or a place in the boot order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeDisks(Vec<RecipeDisk>);

impl RecipeDisks {
    /// Checks the disks and names those that have no name.
    ///
    /// # Errors
    /// The first thing that no machine could have.
    pub fn new(recipe_disk_request: &[RecipeDiskRequest]) -> Result<Self, SpecError> {
        if recipe_disk_request.is_empty() || recipe_disk_request.len() > MAX_FRONTS {
            let problem = format!("{} disks; give 1 to {MAX_FRONTS}", recipe_disk_request.len());
            return refuse("disk", problem);
        }
        let mut targets = BTreeSet::new();
        for target in recipe_disk_request.iter().filter_map(|disk| disk.target.as_deref()) {
            if !targets.insert(target.to_owned()) {
                return refuse("target", format!("{target} is given twice"));
            }
        }
        let (mut sockets, mut places) = (BTreeSet::new(), BTreeSet::new());
        let mut names = names();
        let mut fronts = Vec::new();
        for disk in recipe_disk_request {
            let socket = socket(&disk.socket)?;
            if !sockets.insert(socket.clone()) {
                return refuse("socket", format!("{socket} is given twice; it serves one machine"));
            }
            if disk.boot.is_some_and(|place| !places.insert(place)) {
                return refuse("boot", "two disks have the same place in the boot order");
            }
            let target = match &disk.target {
                Some(target) => checked_target(target)?,
                None => names.find(|name| !targets.contains(name)).unwrap_or_default(),
            };
            let (queues, boot) = (checked_queues(disk.queues)?, checked_boot(disk.boot)?);
            fronts.push(RecipeDisk { socket, queues, target, boot });
        }
        Ok(Self(fronts))
    }

    /// The disks, in the order given.
    pub fn all(&self) -> &[RecipeDisk] {
        &self.0
    }
}

/// A machine around the disks, for a recipe that shall start as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// Memory in bytes, whole MiB.
    pub memory_bytes: u64,
    /// Virtual CPUs.
    pub vcpus: u16,
    /// What executes it.
    pub accel: Accel,
    /// Kernel, initial RAM disk and command line; without them it boots from its disks.
    pub kernel: Option<Kernel>,
}

/// A kernel that is started without a boot loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Kernel image, an absolute path.
    pub image: String,
    /// Initial RAM disk, an absolute path.
    pub initrd: Option<String>,
    /// Command line.
    pub append: String,
}

impl Guest {
    /// Checks what can be checked without the host.
    ///
    /// # Errors
    /// The first field that no machine can have.
    pub fn validate(&self) -> Result<(), SpecError> {
        let named = !self.name.is_empty()
            && self.name.len() <= MAX_NAME_BYTES
            && !self.name.starts_with(['-', '.'])
            && self.name.chars().all(|c| !c.is_control() && !c.is_whitespace() && c != '/');
        if !named {
            let problem = format!(
                "{:?} is no name: 1 to {MAX_NAME_BYTES} bytes without spaces and slashes, not \
                 starting with a dot or a hyphen",
                self.name
            );
            return refuse("domain", problem);
        }
        validate_memory(self.memory_bytes)?;
        validate_vcpus(self.vcpus)?;
        let texts = self
            .kernel
            .iter()
            .flat_map(|kernel| [Some(&kernel.image), kernel.initrd.as_ref(), Some(&kernel.append)]);
        match texts.flatten().find(|text| text.contains(char::is_control)) {
            Some(text) => refuse("kernel", format!("{text:?} holds a control character")),
            None => Ok(()),
        }
    }
}

fn socket(path: &Path) -> Result<String, SpecError> {
    let Some(text) = path.to_str() else {
        let problem = format!("{} is not UTF-8; rename it", path.display());
        return refuse("socket", problem);
    };
    if !path.is_absolute() {
        return refuse("socket", format!("{text:?} is not absolute"));
    }
    if text.len() > MAX_SOCKET_PATH_BYTES {
        let problem = format!(
            "{text:?} has {} bytes, a Unix socket allows {MAX_SOCKET_PATH_BYTES}; use a shorter \
             directory",
            text.len()
        );
        return refuse("socket", problem);
    }
    if text.contains(char::is_control) {
        return refuse("socket", format!("{text:?} holds a control character"));
    }
    Ok(text.to_owned())
}

fn checked_queues(queues: u16) -> Result<u16, SpecError> {
    match queues {
        1..=MAX_QUEUES => Ok(queues),
        _ => refuse("queues", format!("{queues} is not in 1 to {MAX_QUEUES}")),
    }
}

fn checked_boot(boot: Option<u16>) -> Result<Option<u16>, SpecError> {
    match boot {
        Some(0) => refuse("boot", "the boot order starts at 1"),
        _ => Ok(boot),
    }
}

fn checked_target(target: &str) -> Result<String, SpecError> {
    let letters = target.strip_prefix("vd").unwrap_or_default();
    if (1..=2).contains(&letters.len()) && letters.bytes().all(|b| b.is_ascii_lowercase()) {
        return Ok(target.into());
    }
    refuse("target", format!("{target:?} is not in vda to vdzz"))
}

/// `vda` to `vdz`, then `vdaa` to `vdzz`.
fn names() -> impl Iterator<Item = String> {
    let one = ('a'..='z').map(|last| format!("vd{last}"));
    let two = ('a'..='z').flat_map(|first| ('a'..='z').map(move |last| format!("vd{first}{last}")));
    one.chain(two)
}

#[cfg(test)]
mod tests;
