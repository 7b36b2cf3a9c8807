//! QEMU's command line for a domain, built by a pure function.
//!
//! QEMU inherits its control socket (QMP) as descriptor 0 and the guest's serial console as
//! descriptor 1. Both sockets listen before it starts, so no client waits for a socket file.

use std::ffi::OsString;
use std::path::Path;

use model::domain::pci::{AGENT_PORT, AHCI, PciSlot, RANDOM, bridges};
use model::domain::{Boot, BootFrom, DomainSpec};
use model::id::{VbdId, VmId};

use super::device_ids::{AGENT, Device};
use super::reset_trace;
use crate::qemu::Engine;
use crate::qemu::command::{ArgBuilder, doubled_commas};

/// Name of the agent's port in the guest.
const AGENT_PORT_NAME: &str = "org.qemu.guest_agent.0";

/// Returns the program and its arguments for a domain with stopped CPUs, empty drives, no disks and
/// no interfaces.
pub(super) fn command(
    program: &Path,
    vm: VmId,
    spec: &DomainSpec,
    engine: Engine,
    agent: &Path,
    trace: &Path,
) -> Vec<OsString> {
    let mut arg_builder = ArgBuilder::default();
    arg_builder.add(program).add("-nodefaults").add("-no-user-config").add("-S");
    arg_builder.pair("-name", format!("guest={vm},debug-threads=on")).pair("-uuid", vm.to_string());
    // A guest that escapes from its devices can neither start programs nor change its user.
    let denied = "obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
    arg_builder.pair("-sandbox", format!("on,{denied}"));
    arg_builder.pair("-display", "none");
    // Shared memory: the disks' backends map this descriptor.
    let memory = format!("memory-backend-memfd,id=ram,size={},share=on", spec.memory_bytes);
    arg_builder.pair("-object", memory).pair("-m", format!("{}M", spec.memory_bytes >> 20));
    arg_builder.pair("-machine", "pc,memory-backend=ram,vmport=off,usb=off");
    arg_builder.engine(engine, spec.memory_bytes);
    arg_builder.pair("-smp", spec.vcpus.to_string());
    for state in ["disable_s3", "disable_s4"] {
        arg_builder.pair("-global", format!("PIIX4_PM.{state}=1"));
    }
    // Pause at the end of a guest, so that the reason stays readable until it has been read.
    arg_builder.pair("-action", "shutdown=pause,panic=pause,reboot=shutdown");
    arg_builder.pair("-D", trace);
    for event in reset_trace::EVENTS {
        arg_builder.pair("-trace", format!("enable={event}"));
    }
    boot(&mut arg_builder, &spec.boot);
    devices(&mut arg_builder, agent);
    for (port, vbd) in spec.cds.iter().enumerate() {
        arg_builder.pair("-device", drive(port, *vbd, &spec.boot));
    }
    arg_builder.pair("-chardev", "socket,id=qmp,fd=0,server=on,wait=off");
    arg_builder.pair("-mon", "chardev=qmp,mode=control");
    arg_builder.pair("-chardev", "socket,id=console,fd=1,server=on,wait=off");
    arg_builder.pair("-serial", "chardev:console");
    arg_builder.arguments
}

fn boot(arg_builder: &mut ArgBuilder, boot: &Boot) {
    // Firmware boots only from devices with a boot index.
    arg_builder.pair("-boot", "strict=on");
    if let Boot::Kernel { kernel, ramdisk, args } = boot {
        arg_builder.pair("-kernel", kernel.path());
        if let Some(ramdisk) = ramdisk {
            arg_builder.pair("-initrd", ramdisk.path());
        }
        if !args.is_empty() {
            arg_builder.pair("-append", args);
        }
    }
}

/// Adds the devices that every domain has, whatever its disks.
fn devices(arg_builder: &mut ArgBuilder, agent: &Path) {
    for (number, (bus, pci_slot)) in bridges().enumerate() {
        // Chassis number by which the guest knows the bridge's slots. 0 is the root's.
        let chassis = number + 1;
        arg_builder
            .pair("-device", format!("pci-bridge,id={bus},chassis_nr={chassis},{}", at(pci_slot)));
    }
    arg_builder.pair("-device", format!("ahci,id=ahci,{}", at(AHCI)));
    arg_builder.pair("-object", "rng-builtin,id=random");
    arg_builder
        .pair("-device", format!("virtio-rng-pci,rng=random,disable-legacy=on,{}", at(RANDOM)));
    arg_builder.pair(
        "-device",
        format!("virtio-serial-pci,id=ports,disable-legacy=on,{}", at(AGENT_PORT)),
    );
    let mut chardev = OsString::from(format!("socket,id={AGENT},server=on,wait=off,path="));
    chardev.push(doubled_commas(agent));
    arg_builder.pair("-chardev", chardev);
    // QEMU reports the guest's opening of a port only if the port has an id.
    let port =
        format!("virtserialport,id={AGENT},bus=ports.0,chardev={AGENT},name={AGENT_PORT_NAME}");
    arg_builder.pair("-device", port).pair("-device", "pvpanic");
}

/// Returns a drive's argument, with its boot index if it is in the boot order.
fn drive(port: usize, vbd: VbdId, boot: &Boot) -> String {
    let order = match boot {
        Boot::Firmware(order) => order.iter().position(|from| *from == BootFrom::Cd(vbd)),
        Boot::Kernel { .. } => None,
    };
    let order = order.map(|order| format!(",bootindex={order}")).unwrap_or_default();
    format!("ide-cd,id={},bus=ahci.{port}{order}", Device::Drive(vbd).id())
}

fn at(pci_slot: PciSlot) -> String {
    format!("bus={},addr={:#x}", pci_slot.bus, pci_slot.slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uuid;

    fn vbd(last: u8) -> VbdId {
        let mut bytes = [0; 16];
        bytes[15] = last;
        VbdId(Uuid::from_random(bytes))
    }

    fn spec(boot: Boot) -> DomainSpec {
        DomainSpec { memory_bytes: 256 << 20, vcpus: 2, boot, cds: vec![vbd(1), vbd(2)] }
    }

    fn kernel() -> Boot {
        let (kernel, ramdisk) = ("/k,1".into(), Some("/i".into()));
        Boot::Kernel { kernel, ramdisk, args: "console=ttyS0 quiet".into() }
    }

    fn line(spec: &DomainSpec, engine: Engine) -> Vec<String> {
        let vm = VmId(Uuid::default());
        let words = command(
            Path::new("/qemu"),
            vm,
            spec,
            engine,
            Path::new("/run/a,b/agent.sock"),
            Path::new("/run/trace"),
        );
        words.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    fn value<'a>(line: &'a [String], option: &str) -> Vec<&'a str> {
        let pairs = line.windows(2).filter(|pair| pair[0] == option);
        pairs.map(|pair| pair[1].as_str()).collect()
    }

    #[test]
    fn a_domain_stands_until_it_is_let_run_and_its_end_is_kept() {
        let line = line(&spec(kernel()), Engine::TcgInTurns);
        assert_eq!(line[0], "/qemu");
        assert!(line.contains(&"-S".to_owned()));
        assert_eq!(value(&line, "-action"), ["shutdown=pause,panic=pause,reboot=shutdown"]);
        assert_eq!(value(&line, "-uuid"), ["00000000-0000-0000-0000-000000000000"]);
    }

    #[test]
    fn memory_is_shared_and_as_large_as_asked() {
        let line = line(&spec(kernel()), Engine::Kvm);
        let memory = "memory-backend-memfd,id=ram,size=268435456,share=on";
        assert!(value(&line, "-object").contains(&memory), "{line:?}");
        assert_eq!((value(&line, "-m"), value(&line, "-smp")), (vec!["256M"], vec!["2"]));
        assert_eq!(value(&line, "-machine"), ["pc,memory-backend=ram,vmport=off,usb=off"]);
        assert_eq!(value(&line, "-accel"), ["kvm"]);
    }

    #[test]
    fn a_kernel_is_named_as_it_is_and_its_words_are_one_argument() {
        let line = line(&spec(kernel()), Engine::TcgInTurns);
        assert_eq!(value(&line, "-kernel"), ["/k,1"]);
        assert_eq!(value(&line, "-initrd"), ["/i"]);
        assert_eq!(value(&line, "-append"), ["console=ttyS0 quiet"]);
    }

    #[test]
    fn firmware_has_its_order_and_no_kernel() {
        let order = vec![BootFrom::Disk(vbd(7)), BootFrom::Cd(vbd(2))];
        let line = line(&spec(Boot::Firmware(order)), Engine::TcgInTurns);
        assert!(value(&line, "-kernel").is_empty());
        assert_eq!(value(&line, "-boot"), ["strict=on"]);
        let devices = value(&line, "-device");
        let drives: Vec<_> = devices.iter().filter(|one| one.starts_with("ide-cd")).collect();
        let ids = [vbd(1), vbd(2)].map(|vbd| Device::Drive(vbd).id());
        assert_eq!(*drives[0], format!("ide-cd,id={},bus=ahci.0", ids[0]));
        assert_eq!(*drives[1], format!("ide-cd,id={},bus=ahci.1,bootindex=1", ids[1]));
    }

    #[test]
    fn every_fixed_device_has_its_place() {
        let line = line(&spec(kernel()), Engine::TcgInTurns);
        let devices = value(&line, "-device");
        for part in [
            "pci-bridge,id=br0,chassis_nr=1,bus=pci.0,addr=0x6",
            "pci-bridge,id=br7,chassis_nr=8,bus=pci.0,addr=0xd",
            "ahci,id=ahci,bus=pci.0,addr=0x4",
            "virtio-rng-pci,rng=random,disable-legacy=on,bus=pci.0,addr=0x5",
            "virtio-serial-pci,id=ports,disable-legacy=on,bus=pci.0,addr=0x3",
            "virtserialport,id=agent,bus=ports.0,chardev=agent,name=org.qemu.guest_agent.0",
            "pvpanic",
        ] {
            assert!(devices.contains(&part), "{part} is not in {devices:?}");
        }
        let agent = "socket,id=agent,server=on,wait=off,path=/run/a,,b/agent.sock";
        assert!(value(&line, "-chardev").contains(&agent), "{line:?}");
    }
}
