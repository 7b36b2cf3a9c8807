//! The templates that come with the product.

use std::path::{Path, PathBuf};

use xenapi::table::{FieldIx, vm};
use xenapi::{ApiError, Value};

use super::{number, pairs, path};
use crate::db::Tx;

/// Memory of a machine from an installation medium, in bytes: what installers ask for today.
const MEDIA_BYTES: u64 = 1 << 30;
/// Least memory of any machine, in bytes.
const LEAST_BYTES: u64 = 128 << 20;
/// Memory of the test guest, in bytes: what it boots in.
const GUEST_BYTES: u64 = 256 << 20;
/// The disk of a machine from an installation medium: 8 GiB, made where disks are made.
const MEDIA_DISKS: &str = "<provision><disk device=\"0\" size=\"8589934592\" sr=\"\" \
                           bootable=\"true\" type=\"system\"/></provision>";
/// Where packages put the test guest.
const GUEST: &str = "/usr/share/ringway/guest";
/// Its files.
const KERNEL: &str = "vmlinuz";
const RAMDISK: &str = "initramfs.img";
/// Its kernel must not rely on timer interrupts that a busy host raises late.
const GUEST_ARGS: &str = "console=ttyS0 quiet panic=-1 no_timer_check";

type Given = Vec<(FieldIx, Value)>;

pub(super) fn make(tx: &mut Tx<'_>, boot: &[PathBuf]) -> Result<(), ApiError> {
    tx.create(&vm::CLASS, media())?;
    tx.create(&vm::CLASS, guest(&guest_directory(boot)))?;
    Ok(())
}

/// Where the test guest is: in the first of these that has it.
fn guest_directory(boot: &[PathBuf]) -> PathBuf {
    let has =
        |directory: &&PathBuf| [KERNEL, RAMDISK].iter().all(|file| directory.join(file).is_file());
    boot.iter().find(has).cloned().unwrap_or_else(|| PathBuf::from(GUEST))
}

fn media() -> Given {
    let what = "A machine that boots from a CD, to install any system";
    let mut fields = template("Other install media", what, "other-install-media", MEDIA_BYTES);
    fields.extend([
        (vm::Field::HVM_boot_policy.into(), Value::text("BIOS order")),
        (vm::Field::HVM_boot_params.into(), pairs([("order", "cdn")])),
        (
            vm::Field::other_config.into(),
            pairs([
                ("default_template", "true"),
                ("disks", MEDIA_DISKS),
                ("install-methods", "cdrom"),
            ]),
        ),
    ]);
    fields
}

fn guest(directory: &Path) -> Given {
    let what = "A small Linux in memory, to try things with; its shell is on the console";
    let mut fields = template("Ringway test guest", what, "ringway-test-guest", GUEST_BYTES);
    fields.extend([
        (vm::Field::PV_kernel.into(), path(&directory.join(KERNEL))),
        (vm::Field::PV_ramdisk.into(), path(&directory.join(RAMDISK))),
        (vm::Field::PV_args.into(), Value::text(GUEST_ARGS)),
        (vm::Field::other_config.into(), pairs([("default_template", "true")])),
    ]);
    fields
}

fn template(name: &str, what: &str, label: &str, bytes: u64) -> Given {
    vec![
        (vm::Field::name_label.into(), Value::text(name)),
        (vm::Field::name_description.into(), Value::text(what)),
        (vm::Field::reference_label.into(), Value::text(label)),
        (vm::Field::is_a_template.into(), Value::Bool(true)),
        (vm::Field::is_default_template.into(), Value::Bool(true)),
        (vm::Field::memory_static_min.into(), number(LEAST_BYTES)),
        (vm::Field::memory_dynamic_min.into(), number(bytes)),
        (vm::Field::memory_dynamic_max.into(), number(bytes)),
        (vm::Field::memory_static_max.into(), number(bytes)),
        (vm::Field::memory_target.into(), number(bytes)),
        (vm::Field::VCPUs_max.into(), Value::Int(1)),
        (vm::Field::VCPUs_at_startup.into(), Value::Int(1)),
        (vm::Field::actions_after_shutdown.into(), Value::text("destroy")),
        (vm::Field::actions_after_reboot.into(), Value::text("restart")),
        (vm::Field::actions_after_crash.into(), Value::text("restart")),
        (vm::Field::platform.into(), pairs([("acpi", "1"), ("apic", "true"), ("pae", "true")])),
        (vm::Field::domain_type.into(), Value::text("hvm")),
    ]
}
