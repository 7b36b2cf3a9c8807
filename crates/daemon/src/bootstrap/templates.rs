//! Default templates of the product.

use std::path::{Path, PathBuf};

use xenapi::table::{FieldIx, vbd, vm};
use xenapi::{ApiError, Value};

use super::{number, pairs, path};
use crate::calls::vbd::create::supported_algorithms;
use crate::db::{Object, Ref, Tx};
use crate::records::fields;

/// Memory of a VM from installation media, in bytes. Current installers need this much.
const MEDIA_BYTES: u64 = 1 << 30;
/// Least memory of any VM, in bytes.
const LEAST_BYTES: u64 = 128 << 20;
/// Memory of the test guest, in bytes.
const GUEST_BYTES: u64 = 256 << 20;
/// Disk of a VM from installation media: 8 GiB on the default SR.
const MEDIA_DISKS: &str = "<provision><disk device=\"0\" size=\"8589934592\" sr=\"\" \
                           bootable=\"true\" type=\"system\"/></provision>";
/// Directory where packages install the test guest.
const GUEST: &str = "/usr/share/ringway/guest";
/// Kernel file of the test guest.
const KERNEL: &str = "vmlinux";
const RAMDISK: &str = "initramfs.img";
/// Kernel arguments of the test guest. A busy host raises timer interrupts late, so the kernel must
/// not check them. The last ones skip work that only takes time in a translated guest.
const GUEST_ARGS: &str = "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off \
                          cryptomgr.notests tsc=reliable nokaslr \
                          initcall_blacklist=crypto_kdf108_init,init_kprobe_trace";

/// Device of the CD drive of a VM from installation media. XenServer's documents use this one.
const CD_DEVICE: &str = "3";

type Given = Vec<(FieldIx, Value)>;

/// Keys of `platform` of each default template. Clients read back what they could have set: there is
/// no secure boot, and one device model.
const PLATFORM: [(&str, &str); 5] = [
    ("acpi", "1"),
    ("apic", "true"),
    ("pae", "true"),
    ("secureboot", "false"),
    ("device-model", "qemu-upstream-compat"),
];
/// Key of `HVM_boot_params` with the only firmware.
const FIRMWARE: (&str, &str) = ("firmware", "bios");

pub(super) fn make(tx: &mut Tx<'_>, boot: &[PathBuf]) -> Result<(), ApiError> {
    let media = tx.create(&vm::CLASS, media())?;
    tx.create(&vbd::CLASS, empty_drive(&media))?;
    tx.create(&vm::CLASS, guest(&guest_directory(boot)))?;
    Ok(())
}

/// Adds keys that default templates of earlier versions lack.
pub(super) fn refresh(tx: &mut Tx<'_>) -> Result<(), ApiError> {
    let is_default =
        |one: &&Object| one.get(vm::Field::is_default_template.into()) == Some(&Value::Bool(true));
    let all: Vec<Ref> =
        tx.view().all(&vm::CLASS).filter(is_default).map(Object::reference).cloned().collect();
    for template in all {
        let keys = PLATFORM.map(|pair| (vm::Field::platform, pair));
        for (field, (key, value)) in
            keys.into_iter().chain([(vm::Field::HVM_boot_params, FIRMWARE)])
        {
            if !fields::pairs(&tx.view(), &template, field)?.contains_key(key) {
                tx.set_key(&template, field, key, Some(Value::text(value)))?;
            }
        }
    }
    Ok(())
}

/// Returns the first of these directories that contains the test guest.
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
        (vm::Field::HVM_boot_params.into(), pairs([("order", "cdn"), FIRMWARE])),
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

fn empty_drive(vm: &Ref) -> Given {
    vec![
        (vbd::Field::VM.into(), vm.value()),
        (vbd::Field::userdevice.into(), Value::text(CD_DEVICE)),
        (vbd::Field::r#type.into(), Value::text("CD")),
        (vbd::Field::mode.into(), Value::text("RO")),
        (vbd::Field::empty.into(), Value::Bool(true)),
        (vbd::Field::unpluggable.into(), Value::Bool(true)),
        (vbd::Field::qos_supported_algorithms.into(), supported_algorithms()),
    ]
}

fn guest(directory: &Path) -> Given {
    let what = "A small Linux in memory, to try things with; its shell is on the console";
    let mut fields = template("Ringway test guest", what, "ringway-test-guest", GUEST_BYTES);
    fields.extend([
        (vm::Field::PV_kernel.into(), path(&directory.join(KERNEL))),
        (vm::Field::PV_ramdisk.into(), path(&directory.join(RAMDISK))),
        (vm::Field::PV_args.into(), Value::text(GUEST_ARGS)),
        (vm::Field::HVM_boot_params.into(), pairs([FIRMWARE])),
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
        (vm::Field::platform.into(), pairs(PLATFORM)),
        (vm::Field::domain_type.into(), Value::text("hvm")),
    ]
}
