//! Boot method of a VM: a kernel or firmware.

use std::collections::BTreeMap;

use model::domain::{Boot, BootFrom};
use model::id::{VbdId, VifId};
use xenapi::table::vm;
use xenapi::{ApiError, codes};

use super::boot_file::{BootDirs, File, KERNEL_BYTES_MAX, RAMDISK_BYTES_MAX};
use super::fields::{pairs, text};
use crate::db::{Ref, View};

/// Default boot order of firmware: disk, then CD.
const ORDER: &str = "cd";

/// Letters of a boot order: disk, CD, network. As for XenServer, a device without its letter is not
/// tried.
const LETTERS: [char; 3] = ['c', 'd', 'n'];

/// Checks the boot order that a record sets. A record of another version may have other letters,
/// which a start leaves out.
///
/// # Errors
/// `INVALID_VALUE`. Those of the database.
pub(crate) fn check_order(view: &View<'_>, machine: &Ref) -> Result<(), ApiError> {
    let params = pairs(view, machine, vm::Field::HVM_boot_params)?;
    let order = params.get("order").map_or(ORDER, String::as_str);
    if order.chars().all(|letter| LETTERS.contains(&letter.to_ascii_lowercase())) {
        return Ok(());
    }
    let why = format!("{order:?}: use the letters c (disk), d (CD) and n (network)");
    Err(codes::invalid_value("HVM_boot_params:order", why))
}

/// Requested boot method from a record. Its files have not been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BootRequest {
    /// Empty if a kernel is booted.
    policy: String,
    params: BTreeMap<String, String>,
    kernel: File,
    ramdisk: File,
    args: String,
}

/// Devices that firmware could boot from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bootable {
    pub(super) disk: Option<VbdId>,
    pub(super) drives: Vec<VbdId>,
    pub(super) vif: Option<VifId>,
}

impl BootRequest {
    pub(super) fn read(view: &View<'_>, machine: &Ref) -> Result<Self, ApiError> {
        let read = |field: vm::Field| text(view, machine, field).map(str::to_owned);
        Ok(Self {
            policy: read(vm::Field::HVM_boot_policy)?,
            params: pairs(view, machine, vm::Field::HVM_boot_params)?,
            kernel: File::read(view, text(view, machine, vm::Field::PV_kernel)?),
            ramdisk: File::read(view, text(view, machine, vm::Field::PV_ramdisk)?),
            args: read(vm::Field::PV_args)?,
        })
    }

    /// Returns the boot order of firmware. `None` if a kernel is booted.
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

    /// Returns the boot configuration of the domain.
    ///
    /// # Errors
    /// A sentence that says which file cannot be used or what is missing.
    pub(super) fn boot(&self, from: &Bootable, places: &BootDirs) -> Result<Boot, String> {
        if let Some(order) = self.order(from) {
            let firmware = self.params.get("firmware").map_or("bios", String::as_str);
            if firmware != "bios" {
                return Err(format!(
                    "HVM_boot_params: firmware {firmware:?} is not available, use bios"
                ));
            }
            return Ok(Boot::Firmware(order));
        }
        let file = |field: &str, named: &File, most| {
            named.usable(places, most).map_err(|why| format!("{field}: {why}"))
        };
        let Some(kernel) = file("PV_kernel", &self.kernel, KERNEL_BYTES_MAX)? else {
            let ways = "name a kernel in PV_kernel, or set HVM_boot_policy to `BIOS order`";
            return Err(format!("no boot method is set: {ways}"));
        };
        let ramdisk = file("PV_ramdisk", &self.ramdisk, RAMDISK_BYTES_MAX)?;
        Ok(Boot::Kernel { kernel, ramdisk, args: self.args.clone() })
    }
}

#[cfg(test)]
mod tests {
    use model::id::Uuid;

    use super::*;

    fn firmware(params: &[(&str, &str)]) -> BootRequest {
        let params = params.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let (kernel, ramdisk, args) = (File::Nothing, File::Nothing, String::new());
        BootRequest { policy: "BIOS order".into(), params, kernel, ramdisk, args }
    }

    #[test]
    fn firmware_tries_what_is_there_in_the_order_that_is_set() {
        let disk = VbdId(Uuid::from_random([1; 16]));
        let drives = vec![VbdId(Uuid::from_random([2; 16])), VbdId(Uuid::from_random([3; 16]))];
        let vif = VifId(Uuid::from_random([4; 16]));
        let cds: Vec<_> = drives.iter().copied().map(BootFrom::Cd).collect();
        let from = Bootable { disk: Some(disk), drives, vif: Some(vif) };
        let boot = |params: &[(&str, &str)]| firmware(params).boot(&from, &BootDirs::default());
        let (disk, network) = (vec![BootFrom::Disk(disk)], vec![BootFrom::Network(vif)]);
        let all = |parts: [&Vec<BootFrom>; 3]| Ok(Boot::Firmware(parts.map(Vec::clone).concat()));
        assert_eq!(boot(&[]), all([&disk, &cds, &Vec::new()]));
        assert_eq!(boot(&[("order", "ndc")]), all([&network, &cds, &disk]));
        assert_eq!(boot(&[("order", "DxD")]), all([&cds, &Vec::new(), &Vec::new()]));
        assert!(boot(&[("firmware", "uefi")]).unwrap_err().contains("uefi"));
        let nothing =
            firmware(&[("order", "cdn")]).boot(&Bootable::default(), &BootDirs::default());
        assert_eq!(nothing, Ok(Boot::Firmware(Vec::new())));
    }
}
