//! QEMU's command line for a machine, built by a pure function.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use model::topology::PciAddress;

use super::Engine;

/// Seconds between QEMU's attempts to reconnect to a backend. QEMU accepts whole seconds only.
const RECONNECT_SECONDS: u32 = 1;

/// Complete specification of a machine for QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuSpec {
    /// Engine that runs its CPUs.
    pub engine: Engine,
    /// Guest memory in bytes, in whole MiB.
    pub memory_bytes: u64,
    /// Number of virtual CPUs.
    pub vcpus: u16,
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Kernel command line.
    pub append: String,
    /// Disks of the machine.
    pub disks: Vec<QemuDisk>,
}

/// vhost-user disk of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuDisk {
    /// QEMU's id of the device.
    pub id: String,
    /// Socket of its backend.
    pub socket: PathBuf,
    /// Number of queues.
    pub queues: u16,
    /// PCI address.
    pub address: PciAddress,
}

/// Returns the arguments without the program. QEMU inherits its control socket (QMP) as descriptor
/// 0 and the guest's console as descriptor 1.
pub fn arguments(spec: &QemuSpec) -> Vec<OsString> {
    let mut arg_builder = ArgBuilder::default();
    arg_builder.add("-nodefaults").add("-no-user-config").add("-no-reboot");
    arg_builder.pair("-display", "none");
    let memory = format!("memory-backend-memfd,id=ram,size={},share=on", spec.memory_bytes);
    // Shared memory: the backends map this descriptor.
    arg_builder.pair("-object", memory);
    arg_builder.pair("-machine", "q35,memory-backend=ram,vmport=off");
    arg_builder.engine(spec.engine, spec.memory_bytes);
    arg_builder.pair("-m", format!("{}M", spec.memory_bytes >> 20));
    arg_builder.pair("-smp", spec.vcpus.to_string());
    arg_builder.pair("-kernel", &spec.kernel);
    if let Some(initrd) = &spec.initrd {
        arg_builder.pair("-initrd", initrd);
    }
    if !spec.append.is_empty() {
        arg_builder.pair("-append", &spec.append);
    }
    arg_builder.pair("-chardev", "socket,id=qmp,fd=0").pair("-mon", "chardev=qmp,mode=control");
    arg_builder.pair("-chardev", "socket,id=console,fd=1").pair("-serial", "chardev:console");
    spec.disks.iter().for_each(|disk| add_disk(&mut arg_builder, disk));
    arg_builder.arguments
}

fn add_disk(arg_builder: &mut ArgBuilder, disk: &QemuDisk) {
    let QemuDisk { id, socket, queues, address } = disk;
    let mut chardev = OsString::from(format!("socket,id=char-{id},path="));
    chardev.push(doubled_commas(socket));
    chardev.push(format!(",reconnect={RECONNECT_SECONDS}"));
    arg_builder.pair("-chardev", chardev);
    // Function 0 announces further functions of the slot. Without them this is harmless.
    let multifunction = if address.function == 0 { ",multifunction=on" } else { "" };
    arg_builder.pair(
        "-device",
        format!(
            "vhost-user-blk-pci,id={id},chardev=char-{id},num-queues={queues},\
             bus=pcie.0,addr={address}{multifunction},disable-legacy=on"
        ),
    );
}

/// Doubles commas: a single comma ends a value in QEMU's options.
pub(crate) fn doubled_commas(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = path.as_os_str().as_bytes();
    let doubled = bytes.iter().flat_map(|b| vec![*b; if *b == b',' { 2 } else { 1 }]);
    OsString::from_vec(doubled.collect())
}

/// Builder of an argument list.
#[derive(Default)]
pub(crate) struct ArgBuilder {
    pub(crate) arguments: Vec<OsString>,
}

impl ArgBuilder {
    pub(crate) fn add(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub(crate) fn engine(&mut self, engine: Engine, memory_bytes: u64) -> &mut Self {
        engine.arguments(memory_bytes).iter().fold(self, |arg_builder, word| arg_builder.add(word))
    }

    pub(crate) fn pair(&mut self, option: &str, value: impl AsRef<OsStr>) -> &mut Self {
        self.add(option).add(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::topology::disk_address;

    fn spec() -> QemuSpec {
        QemuSpec {
            engine: Engine::TcgInTurns,
            memory_bytes: 256 << 20,
            vcpus: 2,
            kernel: "/k".into(),
            initrd: Some("/i".into()),
            append: "console=ttyS0 quiet".into(),
            disks: vec![],
        }
    }

    fn text(spec: &QemuSpec) -> String {
        arguments(spec).iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn memory_is_shared_and_as_large_as_asked() {
        let text = text(&spec());
        assert!(text.contains("memory-backend-memfd,id=ram,size=268435456,share=on"), "{text}");
        assert!(text.contains("-m 256M"), "{text}");
        assert!(text.contains("memory-backend=ram"), "{text}");
    }

    #[test]
    fn the_kernel_command_line_is_one_argument() {
        let arguments = arguments(&spec());
        let at = arguments.iter().position(|a| a == "-append").unwrap();
        assert_eq!(arguments[at + 1], "console=ttyS0 quiet");
        let bare = QemuSpec { initrd: None, append: String::new(), ..spec() };
        let text = text(&bare);
        assert!(!text.contains("-append") && !text.contains("-initrd"), "{text}");
    }

    #[test]
    fn accelerators_differ() {
        assert!(text(&spec()).contains("-accel tcg,thread=single,tb-size=64 -cpu max"));
        let together = text(&QemuSpec { engine: Engine::TcgTogether, ..spec() });
        assert!(together.contains("-accel tcg,thread=multi,tb-size=64 -cpu max"), "{together}");
        let kvm = text(&QemuSpec { engine: Engine::Kvm, ..spec() });
        assert!(kvm.contains("-accel kvm -cpu host"), "{kvm}");
    }

    #[test]
    fn each_disk_has_its_address_queues_and_reconnect() {
        let disk = |position: usize, socket: &str, queues| QemuDisk {
            id: format!("disk{position}"),
            socket: socket.into(),
            queues,
            address: disk_address(position).unwrap(),
        };
        let disks = vec![disk(0, "/r/a.sock", 1), disk(30, "/r/b,c.sock", 4)];
        let text = text(&QemuSpec { disks, ..spec() });
        for part in [
            "socket,id=char-disk0,path=/r/a.sock,reconnect=1",
            "vhost-user-blk-pci,id=disk0,chardev=char-disk0,num-queues=1,bus=pcie.0,addr=0x4.0,\
             multifunction=on,",
            "path=/r/b,,c.sock,reconnect=1",
            "chardev=char-disk30,num-queues=4,bus=pcie.0,addr=0xa.1,disable-legacy=on",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
