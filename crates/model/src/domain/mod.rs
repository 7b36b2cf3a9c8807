//! Specification of a domain (one running instance of a machine), for any hypervisor.

pub mod pci;
mod serial;

use std::path::{Path, PathBuf};

use crate::id::{SrId, VbdId, VdiId, VifId};
use crate::machine::{validate_memory, validate_vcpus};
use crate::spec::{SpecError, refuse};
use pci::{MAX_CDS, MAX_DISKS, MAX_VIFS};
pub use serial::serial;

/// Longest kernel command line in bytes: Linux on x86 takes 2,048 bytes with the terminator.
pub const MAX_KERNEL_ARGS_BYTES: usize = 2047;
/// Host memory of a domain beyond its guest memory, in bytes.
pub const OVERHEAD_BYTES: u64 = 64 << 20;
/// Additional host memory of each disk, in bytes.
pub const DISK_OVERHEAD_BYTES: u64 = 1 << 20;

/// Boot device that the firmware tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootFrom {
    /// A disk.
    Disk(VbdId),
    /// The medium in a drive.
    Cd(VbdId),
    /// The network, through an interface.
    Network(VifId),
}

/// A file that a guest boots from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootFile {
    /// A host file. It must lie in a directory that is permitted for boot files.
    File(PathBuf),
    /// The raw image of a volume.
    Image(BootImage),
}

/// The only image of a volume, which is raw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootImage {
    /// Path of the image.
    pub path: PathBuf,
    /// SR of the volume, and its type.
    pub sr: (SrId, String),
    /// The volume.
    pub vdi: VdiId,
}

impl BootFile {
    /// Returns the path.
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Image(BootImage { path, .. }) => path,
        }
    }
}

impl From<&str> for BootFile {
    fn from(path: &str) -> Self {
        Self::File(path.into())
    }
}

impl From<PathBuf> for BootFile {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

/// Boot method of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// A kernel that the host loads.
    Kernel {
        /// Kernel image.
        kernel: BootFile,
        /// Initial RAM disk, if there is one.
        ramdisk: Option<BootFile>,
        /// Kernel command line.
        args: String,
    },
    /// Firmware, which tries only these devices, in order.
    Firmware(Vec<BootFrom>),
}

/// Parameters of a new domain. Disks and interfaces are plugged afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainSpec {
    /// Guest memory in bytes: whole MiB.
    pub memory_bytes: u64,
    /// Number of virtual CPUs.
    pub vcpus: u16,
    /// Boot method.
    pub boot: Boot,
    /// CD drives by port; each may be empty.
    pub cds: Vec<VbdId>,
}

impl DomainSpec {
    /// Checks ranges, and that file paths are absolute.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), SpecError> {
        validate_memory(self.memory_bytes)?;
        validate_vcpus(self.vcpus)?;
        if self.cds.len() > usize::from(MAX_CDS) {
            let problem = format!("{} drives, a machine has {MAX_CDS}", self.cds.len());
            return refuse("cds", problem);
        }
        match &self.boot {
            Boot::Kernel { kernel, ramdisk, args } => {
                full("kernel", kernel.path())?;
                ramdisk.iter().try_for_each(|file| full("ramdisk", file.path()))?;
                kernel_args(args)
            }
            Boot::Firmware(order) => {
                let most = usize::from(MAX_DISKS) + usize::from(MAX_VIFS);
                if order.len() > most {
                    let problem = format!("{} devices, a machine has {most}", order.len());
                    return refuse("boot", problem);
                }
                Ok(())
            }
        }
    }

    /// Returns the host memory that the domain needs with this number of disks, in bytes.
    pub fn host_bytes(&self, disks: usize) -> u64 {
        let disks = u64::try_from(disks).unwrap_or(u64::MAX).saturating_mul(DISK_OVERHEAD_BYTES);
        self.memory_bytes.saturating_add(OVERHEAD_BYTES).saturating_add(disks)
    }
}

fn full(field: &'static str, path: &Path) -> Result<(), SpecError> {
    if path.is_absolute() {
        return Ok(());
    }
    refuse(field, format!("`{}` is no path from the root on", path.display()))
}

fn kernel_args(args: &str) -> Result<(), SpecError> {
    if args.len() > MAX_KERNEL_ARGS_BYTES {
        let problem = format!("{} bytes, a kernel takes {MAX_KERNEL_ARGS_BYTES}", args.len());
        return refuse("args", problem);
    }
    if args.chars().any(char::is_control) {
        return refuse("args", "holds control characters; a command line is one line");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Uuid;
    use crate::machine::MAX_VCPUS;

    fn spec() -> DomainSpec {
        let (kernel, ramdisk) = ("/boot/vmlinuz".into(), Some("/boot/initrd".into()));
        let boot = Boot::Kernel { kernel, ramdisk, args: "console=ttyS0".into() };
        DomainSpec { memory_bytes: 256 << 20, vcpus: 2, boot, cds: Vec::new() }
    }

    #[test]
    fn what_cannot_be_started_is_refused_by_field() {
        assert_eq!(spec().validate(), Ok(()));
        let vbd = VbdId(Uuid::default());
        type Spoil = fn(&mut DomainSpec, VbdId);
        let table: &[(&str, Spoil)] = &[
            ("memory", |one, _| one.memory_bytes = 1),
            ("vcpus", |one, _| one.vcpus = 0),
            ("vcpus", |one, _| one.vcpus = MAX_VCPUS + 1),
            ("cds", |one, vbd| one.cds = vec![vbd; 7]),
            ("kernel", |one, _| kernel(one, "vmlinuz", "")),
            ("args", |one, _| kernel(one, "/k", "a\nb")),
            ("args", |one, _| kernel(one, "/k", &"a".repeat(2048))),
            ("ramdisk", |one, _| {
                let (kernel, ramdisk) = ("/k".into(), Some("initrd".into()));
                one.boot = Boot::Kernel { kernel, ramdisk, args: String::new() };
            }),
            ("boot", |one, vbd| one.boot = Boot::Firmware(vec![BootFrom::Disk(vbd); 263])),
        ];
        for (field, spoil) in table {
            let mut bad = spec();
            spoil(&mut bad, vbd);
            assert_eq!(bad.validate().unwrap_err().field, *field);
        }
        let order = vec![BootFrom::Cd(vbd), BootFrom::Disk(vbd)];
        let firmware = DomainSpec { boot: Boot::Firmware(order), cds: vec![vbd; 6], ..spec() };
        assert_eq!(firmware.validate(), Ok(()));
    }

    fn kernel(one: &mut DomainSpec, kernel: &str, args: &str) {
        one.boot = Boot::Kernel { kernel: kernel.into(), ramdisk: None, args: args.into() };
    }

    #[test]
    fn the_host_gives_more_than_the_guest_sees() {
        assert_eq!(spec().host_bytes(0), (256 + 64) << 20);
        assert_eq!(spec().host_bytes(255), (256 + 64 + 255) << 20);
        let huge = DomainSpec { memory_bytes: u64::MAX, ..spec() };
        assert_eq!(huge.host_bytes(usize::MAX), u64::MAX);
    }
}
