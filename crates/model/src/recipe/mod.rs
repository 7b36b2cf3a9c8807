//! Recipes: definitions for libvirt, QEMU or Cloud Hypervisor of a disk that Ringway serves.
//!
//! A [`RecipeDisk`] is a disk from the machine's side: socket, queues, name, position in the boot
//! order. [`RecipeDisks`] are the disks of one machine, checked against each other. From them
//! [`libvirt`] makes XML and [`flags`] makes command lines; both are pure functions.
//!
//! Settings of the serving side are left out. libvirt refuses a serial, a cache mode or a throttle
//! on a vhost-user disk; `disk.attach` sets them.

mod arg;
pub mod flags;
pub mod libvirt;
mod xml;

pub use arg::{DiskSelector, RecipeDiskArg};

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::machine::{Accel, validate_memory, validate_vcpus};
use crate::spec::{MAX_QUEUES, MAX_SOCKET_PATH_BYTES, SpecError, refuse};

/// Seconds between a front-end's attempts to reconnect to a backend: the minimum of QEMU and
/// libvirt.
pub const RECONNECT_SECONDS: u32 = 1;
/// Maximum number of disks of one recipe: the names `vda` to `vdzz`.
pub const MAX_FRONTS: usize = 26 + 26 * 26;
/// Longest name of a machine in bytes: libvirt derives file and socket names from it.
pub const MAX_NAME_BYTES: usize = 64;

/// A disk from the machine's side. Only [`RecipeDisks::new`] creates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeDisk {
    /// Socket of the backend: absolute, short enough for `sun_path`, without control characters.
    pub socket: String,
    /// Number of queues.
    pub queues: u16,
    /// Device name in the machine's definition, `vda`.
    pub target: String,
    /// Position in the boot order, from 1.
    pub boot: Option<u16>,
}

/// A disk before it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeDiskRequest {
    /// Socket of the backend.
    pub socket: PathBuf,
    /// Number of queues.
    pub queues: u16,
    /// Device name; the first free one when absent.
    pub target: Option<String>,
    /// Position in the boot order.
    pub boot: Option<u16>,
}

/// Disks of one machine, with distinct sockets, names and positions in the boot order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeDisks(Vec<RecipeDisk>);

impl RecipeDisks {
    /// Checks the disks and assigns missing names.
    ///
    /// # Errors
    /// The first field that no machine accepts.
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

    /// Returns the disks in the given order.
    pub fn all(&self) -> &[RecipeDisk] {
        &self.0
    }
}

/// A complete machine around the disks, for a recipe that starts without changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Name of the machine.
    pub name: String,
    /// Memory in bytes: whole MiB.
    pub memory_bytes: u64,
    /// Number of virtual CPUs.
    pub vcpus: u16,
    /// Accelerator.
    pub accel: Accel,
    /// Kernel, initial RAM disk and command line; absent if the machine boots from its disks.
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
    /// Checks the fields without accessing the host.
    ///
    /// # Errors
    /// The first invalid field.
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

/// Returns `vda` to `vdz`, then `vdaa` to `vdzz`.
fn names() -> impl Iterator<Item = String> {
    let one = ('a'..='z').map(|last| format!("vd{last}"));
    let two = ('a'..='z').flat_map(|first| ('a'..='z').map(move |last| format!("vd{first}{last}")));
    one.chain(two)
}

#[cfg(test)]
mod tests;
