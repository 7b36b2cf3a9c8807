//! Template of the guests: a golden image, and a script.

use std::fs;

use anyhow::Result;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use testkit::guest::small_initramfs;
use testkit::ringwayd::Ringwayd;
use xenapi::Value;

/// Memory of a guest, in bytes.
pub(super) const MEMORY_BYTES: i64 = 96 << 20;
/// Memory for the writes of a guest, in bytes. A hundred times as much must be free.
const WRITE_CACHE_BYTES: u64 = 16 << 20;
/// Size of the overflow file of a guest that fills it, in bytes.
const OVERFLOW_BYTES: u64 = 16 << 20;
/// Size of the golden image, in bytes: more than memory and overflow file of a guest take.
const IMAGE_BYTES: usize = 64 << 20;
/// Script of a guest: it reads the whole image before it is ready, and then does nothing.
const IDLE: &str = "dd if=/dev/vda of=/dev/null bs=64k 2>/dev/null
    until [ -e /dev/vport*p1 ]; do sleep 0.1; done
    exec qemu-ga -m virtio-serial -p /dev/vport*p1 -t /run >/run/qemu-ga.log 2>&1";
/// Script of a guest that writes to the whole image as soon as it is ready.
const WRITES: &str = "until [ -e /dev/vport*p1 ]; do sleep 0.1; done
    tr '\\0' x </dev/zero | dd of=/dev/vda bs=64k oflag=direct 2>/dev/null &
    exec qemu-ga -m virtio-serial -p /dev/vport*p1 -t /run >/run/qemu-ga.log 2>&1";

/// Work of a guest once it has booted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Nothing.
    Idle,
    /// Each writes more than its memory and its overflow file take.
    Writes,
}

/// Creates the template of the guests, with the golden image as its disk.
pub(super) fn template(daemon: &Ringwayd, load: Load) -> Result<Value> {
    let source = daemon.dir().join("golden.raw");
    let words = (0..IMAGE_BYTES / 8).flat_map(|word| word.to_le_bytes());
    fs::write(&source, words.collect::<Vec<u8>>())?;
    let source = format!("device-config:source={}", source.display());
    let ram = format!("device-config:write-cache-ram={WRITE_CACHE_BYTES}");
    let overflow = format!("device-config:write-cache-overflow={OVERFLOW_BYTES}");
    let mut sr = vec!["sr-create", "type=golden", "name-label=golden", &source, &ram];
    let script = match load {
        Load::Idle => IDLE,
        Load::Writes => {
            sr.push(&overflow);
            WRITES
        }
    };
    let sr = daemon.xe_prints(&sr)?;
    let vdi = daemon.xe_prints(&["vdi-list", &format!("sr-uuid={sr}"), "--minimal"])?;
    let name = "new-name-label=desktop";
    let vm = daemon.xe_prints(&["vm-install", "template=Ringway test guest", name])?;
    let (vm, of) = (format!("uuid={vm}"), format!("vm-uuid={vm}"));
    let disks = daemon.xe_prints(&["vbd-list", &of, "type=Disk", "--minimal"])?;
    for disk in disks.split(',').filter(|disk| !disk.is_empty()) {
        daemon.xe_prints(&["vbd-destroy", &format!("uuid={disk}")])?;
    }
    let vdi = format!("vdi-uuid={vdi}");
    daemon.xe_prints(&["vbd-create", &of, &vdi, "device=0", "mode=RW"])?;
    let args = daemon.xe_prints(&["vm-param-get", &vm, "param-name=PV-args"])?;
    let script = BASE64_STANDARD.encode(script);
    let args = format!("PV-args={args} ringway.agent=script ringway.run={script}");
    let ramdisk = format!("PV-ramdisk={}", small_initramfs()?.display());
    daemon.xe_prints(&["vm-param-set", &vm, &args, &ramdisk, "is-a-template=true"])?;
    let mut client = daemon.client()?;
    let uuid = vm.trim_start_matches("uuid=");
    let template = client.call("VM.get_by_uuid", &[Value::text(uuid)])?;
    let limits = [MEMORY_BYTES; 4].map(Value::Int);
    let limits = std::iter::once(template.clone()).chain(limits).collect::<Vec<_>>();
    client.call("VM.set_memory_limits", &limits)?;
    Ok(template)
}
