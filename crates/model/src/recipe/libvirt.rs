//! libvirt's XML for machines on disks of ours.

use super::xml::Xml;
use super::{Front, Fronts, Guest, RECONNECT_SECONDS};
use crate::machine::Accel;

/// Ports left free for disks that are plugged in while the machine runs: a q35 machine has no
/// other place for them.
const FREE_PORTS: usize = 4;

/// What goes into an existing machine: the memory that its backends can map, and its disks. Two
/// pieces for two places, so this is not one document.
pub fn snippet(fronts: &Fronts) -> String {
    let mut xml = Xml::default();
    xml.remark("below <domain>: the disks map the memory of the guest");
    memory(&mut xml);
    xml.remark("below <devices>");
    fronts.all().iter().for_each(|front| disk(&mut xml, front));
    xml.finish()
}

/// One disk alone, as `virsh attach-device` takes it.
pub fn device(front: &Front) -> String {
    let mut xml = Xml::default();
    disk(&mut xml, front);
    xml.finish()
}

/// A whole machine, small and complete: `virsh define` takes it and `virsh console` shows it.
pub fn domain(guest: &Guest, fronts: &Fronts) -> String {
    let kind = match guest.accel {
        Accel::Kvm => "kvm",
        Accel::Tcg => "qemu",
    };
    let mebibytes = (guest.memory_bytes >> 20).to_string();
    let mut xml = Xml::default();
    xml.element("domain", &[("type", kind)], |xml| {
        xml.text("name", &[], &guest.name);
        xml.text("memory", &[("unit", "MiB")], &mebibytes);
        memory(xml);
        xml.text("vcpu", &[], &guest.vcpus.to_string());
        xml.element("os", &[], |xml| {
            xml.text("type", &[("arch", "x86_64"), ("machine", "q35")], "hvm");
            if let Some(kernel) = &guest.kernel {
                xml.text("kernel", &[], &kernel.image);
                if let Some(initrd) = &kernel.initrd {
                    xml.text("initrd", &[], initrd);
                }
                xml.text("cmdline", &[], &kernel.append);
            }
        });
        xml.element("features", &[], |xml| {
            xml.empty("acpi", &[]);
        });
        if guest.accel == Accel::Kvm {
            xml.empty("cpu", &[("mode", "host-passthrough")]);
        }
        xml.element("devices", &[], |xml| devices(xml, fronts));
    });
    xml.finish()
}

fn memory(xml: &mut Xml) {
    xml.element("memoryBacking", &[], |xml| {
        xml.empty("source", &[("type", "memfd")]).empty("access", &[("mode", "shared")]);
    });
}

fn devices(xml: &mut Xml, fronts: &Fronts) {
    fronts.all().iter().for_each(|front| disk(xml, front));
    let port = [("type", "pci"), ("model", "pcie-root-port")];
    // One port a disk, and some more.
    for _ in 0..fronts.all().len() + FREE_PORTS {
        xml.empty("controller", &port);
    }
    xml.empty("controller", &[("type", "usb"), ("model", "none")]);
    xml.element("console", &[("type", "pty")], |xml| {
        xml.empty("target", &[("type", "serial")]);
    });
    xml.empty("memballoon", &[("model", "none")]);
}

fn disk(xml: &mut Xml, front: &Front) {
    let queues = front.queues.to_string();
    let timeout = RECONNECT_SECONDS.to_string();
    xml.element("disk", &[("type", "vhostuser"), ("device", "disk")], |xml| {
        // Without a number QEMU takes one queue a CPU, and refuses to start when the backend has
        // fewer.
        xml.empty("driver", &[("name", "qemu"), ("type", "raw"), ("queues", &queues)]);
        xml.element("source", &[("type", "unix"), ("path", &front.socket)], |xml| {
            xml.empty("reconnect", &[("enabled", "yes"), ("timeout", &timeout)]);
        });
        xml.empty("target", &[("dev", &front.target), ("bus", "virtio")]);
        if let Some(place) = front.boot {
            xml.empty("boot", &[("order", &place.to_string())]);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{guest, wanted};
    use super::super::{Kernel, Wanted};
    use super::*;

    fn fronts() -> Fronts {
        let second =
            Wanted { queues: 4, target: Some("vdc".into()), boot: Some(1), ..wanted("/b's") };
        Fronts::new(&[wanted("/run/a&b.sock"), second]).unwrap()
    }

    #[test]
    fn a_disk_has_all_that_a_restart_needs() {
        let text = device(&fronts().all()[1]);
        let expected = "<disk type='vhostuser' device='disk'>
  <driver name='qemu' type='raw' queues='4'/>
  <source type='unix' path='/b&apos;s'>
    <reconnect enabled='yes' timeout='1'/>
  </source>
  <target dev='vdc' bus='virtio'/>
  <boot order='1'/>
</disk>
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_snippet_has_memory_and_every_disk() {
        let text = snippet(&fronts());
        assert!(text.contains("  <source type='memfd'/>\n  <access mode='shared'/>"), "{text}");
        assert_eq!(text.matches("<disk ").count(), 2);
        assert!(text.contains("path='/run/a&amp;b.sock'"), "{text}");
    }

    #[test]
    fn a_domain_follows_its_guest() {
        let text = domain(&guest(), &fronts());
        for part in ["<domain type='kvm'>", "<name>web1</name>", "<memory unit='MiB'>2048<"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(text.matches("pcie-root-port").count(), 2 + FREE_PORTS);
        assert!(!text.contains("<kernel>"), "{text}");
        let kernel = Kernel { image: "/k".into(), initrd: None, append: "a=<b>".into() };
        let direct = Guest { accel: Accel::Tcg, kernel: Some(kernel), ..guest() };
        let text = domain(&direct, &fronts());
        for part in ["<domain type='qemu'>", "<kernel>/k<", "<cmdline>a=&lt;b&gt;</cmdline>"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("<cpu") && !text.contains("<initrd>"), "{text}");
    }
}
