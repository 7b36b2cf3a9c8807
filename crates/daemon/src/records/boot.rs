//! How a machine boots, from what its record says: a kernel out of a named directory, or firmware.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use model::domain::{Boot, BootFrom};
use model::id::{VbdId, VifId};
use xenapi::ApiError;
use xenapi::table::vm;

use super::fields::{pairs, text};
use crate::db::{Ref, View};

/// What firmware tries when nothing else is said: disk, then CD.
const ORDER: &str = "cd";

/// What a record says of how its machine boots; nothing of it has been looked for yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Empty: a kernel is booted.
    policy: String,
    params: BTreeMap<String, String>,
    kernel: String,
    ramdisk: String,
    args: String,
}

/// What firmware could start from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bootable {
    pub(super) disk: Option<VbdId>,
    pub(super) drives: Vec<VbdId>,
    pub(super) vif: Option<VifId>,
}

impl Asked {
    pub(super) fn read(view: &View<'_>, machine: &Ref) -> Result<Self, ApiError> {
        let read = |field: vm::Field| text(view, machine, field).map(str::to_owned);
        Ok(Self {
            policy: read(vm::Field::HVM_boot_policy)?,
            params: pairs(view, machine, vm::Field::HVM_boot_params)?,
            kernel: read(vm::Field::PV_kernel)?,
            ramdisk: read(vm::Field::PV_ramdisk)?,
            args: read(vm::Field::PV_args)?,
        })
    }

    /// The order in which firmware tries; none if it boots a kernel.
    pub(super) fn order(&self, from: &Bootable) -> Option<Vec<BootFrom>> {
        if self.policy.is_empty() {
            return None;
        }
        let letters = self.params.get("order").map_or(ORDER, String::as_str);
        let mut order = Vec::new();
        for letter in letters.chars() {
            let next: Vec<BootFrom> = match letter.to_ascii_lowercase() {
                'c' => from.disk.map(BootFrom::Disk).into_iter().collect(),
                'd' => from.drives.iter().copied().map(BootFrom::Cd).collect(),
                'n' => from.vif.map(BootFrom::Network).into_iter().collect(),
                _ => Vec::new(),
            };
            for one in next {
                if !order.contains(&one) {
                    order.push(one);
                }
            }
        }
        Some(order)
    }

    /// What the domain is created with.
    ///
    /// # Errors
    /// A sentence: which file cannot be used, or what is missing.
    pub(super) fn boot(&self, from: &Bootable, directories: &[PathBuf]) -> Result<Boot, String> {
        if let Some(order) = self.order(from) {
            let firmware = self.params.get("firmware").map_or("bios", String::as_str);
            if firmware != "bios" {
                return Err(format!(
                    "HVM_boot_params: firmware {firmware:?} is not here, use bios"
                ));
            }
            return Ok(Boot::Firmware(order));
        }
        if self.kernel.is_empty() {
            let ways = "name a kernel in PV_kernel, or set HVM_boot_policy to `BIOS order`";
            return Err(format!("nothing says how the machine boots: {ways}"));
        }
        let file = |field: &str, named: &str| {
            allowed_file(Path::new(named), directories).map_err(|why| format!("{field}: {why}"))
        };
        let kernel = file("PV_kernel", &self.kernel)?;
        let ramdisk = match self.ramdisk.as_str() {
            "" => None,
            named => Some(file("PV_ramdisk", named)?),
        };
        Ok(Boot::Kernel { kernel, ramdisk, args: self.args.clone() })
    }
}

/// The file itself, if it is a regular one in one of these directories. Nothing outside of them is
/// looked at.
fn allowed_file(named: &Path, directories: &[PathBuf]) -> Result<PathBuf, String> {
    let shown = named.display();
    let plain = named.components().all(|part| !matches!(part, Component::ParentDir));
    if !plain || !directories.iter().any(|directory| named.starts_with(directory)) {
        return Err(format!("`{shown}` is not in {}", listed(directories)));
    }
    let file =
        named.canonicalize().map_err(|error| format!("`{shown}` cannot be used: {error}"))?;
    // A link may lead from one named directory to another, and no further.
    let inside = directories.iter().filter_map(|directory| directory.canonicalize().ok());
    if !inside.into_iter().any(|directory| file.starts_with(directory)) {
        return Err(format!("`{shown}` leads out of {}", listed(directories)));
    }
    let about = file.metadata().map_err(|error| format!("`{shown}` cannot be used: {error}"))?;
    if about.is_file() { Ok(file) } else { Err(format!("`{shown}` is no regular file")) }
}

fn listed(directories: &[PathBuf]) -> String {
    let names: Vec<_> = directories.iter().map(|one| one.display().to_string()).collect();
    match names.as_slice() {
        [] => "any directory: none is set for kernels".to_owned(),
        names => names.join(" or "),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use model::id::Uuid;

    use super::*;

    fn asked(kernel: &str, ramdisk: &str) -> Asked {
        Asked {
            policy: String::new(),
            params: BTreeMap::new(),
            kernel: kernel.into(),
            ramdisk: ramdisk.into(),
            args: "quiet".into(),
        }
    }

    fn firmware(params: &[(&str, &str)]) -> Asked {
        let params = params.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        Asked { policy: "BIOS order".into(), params, ..asked("", "") }
    }

    #[test]
    fn kernels_come_from_named_directories_only() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("boot"), root.path().join("secret"));
        for directory in [&inside, &outside] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("vmlinuz"), "kernel").unwrap();
        }
        symlink("vmlinuz", inside.join("near")).unwrap();
        symlink(outside.join("vmlinuz"), inside.join("far")).unwrap();
        std::fs::create_dir(inside.join("sub")).unwrap();
        let directories = [inside.clone()];
        let boot = |name: &str| {
            let named = inside.join(name);
            asked(named.to_str().unwrap(), "").boot(&Bootable::default(), &directories)
        };
        let kernel = inside.canonicalize().unwrap().join("vmlinuz");
        let expected = Boot::Kernel { kernel: kernel.clone(), ramdisk: None, args: "quiet".into() };
        assert_eq!(boot("vmlinuz"), Ok(expected.clone()));
        assert_eq!(boot("near"), Ok(expected), "a link inside is its file");
        for (name, says) in [
            ("far", "leads out"),
            ("../secret/vmlinuz", "is not in"),
            ("none", "cannot be used"),
            ("sub", "no regular file"),
        ] {
            let why = boot(name).unwrap_err();
            assert!(why.starts_with("PV_kernel: ") && why.contains(says), "{name}: {why}");
        }
        for named in ["vmlinuz", "/etc/passwd", outside.join("vmlinuz").to_str().unwrap()] {
            let why = asked(named, "").boot(&Bootable::default(), &directories).unwrap_err();
            assert!(why.contains("is not in"), "{named}: {why}");
        }
        let both = asked(kernel.to_str().unwrap(), "/etc/passwd");
        let why = both.boot(&Bootable::default(), &directories).unwrap_err();
        assert!(why.starts_with("PV_ramdisk: `/etc/passwd` is not in "), "{why}");
        let why = asked("/boot/k", "").boot(&Bootable::default(), &[]).unwrap_err();
        assert!(why.contains("none is set"), "{why}");
        let why = asked("", "").boot(&Bootable::default(), &directories).unwrap_err();
        assert!(why.contains("PV_kernel"), "{why}");
    }

    #[test]
    fn firmware_tries_what_is_there_in_the_order_that_is_set() {
        let disk = VbdId(Uuid::from_random([1; 16]));
        let drives = vec![VbdId(Uuid::from_random([2; 16])), VbdId(Uuid::from_random([3; 16]))];
        let vif = VifId(Uuid::from_random([4; 16]));
        let cds: Vec<_> = drives.iter().copied().map(BootFrom::Cd).collect();
        let from = Bootable { disk: Some(disk), drives, vif: Some(vif) };
        let boot = |params: &[(&str, &str)]| firmware(params).boot(&from, &[]);
        let (disk, network) = (vec![BootFrom::Disk(disk)], vec![BootFrom::Network(vif)]);
        let all = |parts: [&Vec<BootFrom>; 3]| Ok(Boot::Firmware(parts.map(Vec::clone).concat()));
        assert_eq!(boot(&[]), all([&disk, &cds, &Vec::new()]));
        assert_eq!(boot(&[("order", "ndc")]), all([&network, &cds, &disk]));
        assert_eq!(boot(&[("order", "DxD")]), all([&cds, &Vec::new(), &Vec::new()]));
        assert!(boot(&[("firmware", "uefi")]).unwrap_err().contains("uefi"));
        let nothing = firmware(&[("order", "cdn")]).boot(&Bootable::default(), &[]);
        assert_eq!(nothing, Ok(Boot::Firmware(Vec::new())));
    }
}
