//! libvirt XML for machines with disks that Ringway serves.

use super::xml::Xml;
use super::{Guest, RECONNECT_SECONDS, RecipeDisk, RecipeDisks};
use crate::machine::Accel;
use crate::spec::{SpecError, refuse};

/// Number of free ports for disks that are plugged while the machine runs. A q35 machine can plug
/// them nowhere else.
const FREE_PORTS: usize = 4;

/// Characters of a socket path that libvirt 9.0 accepts but does not escape in its XML. The machine
/// could be defined but never started.
const SPOILT: [char; 3] = ['\'', '<', '&'];

/// Returns XML for an existing machine: shared memory, and the disks. These are two pieces for two
/// places, not one document.
///
/// # Errors
/// Field `socket`: the path has characters that libvirt does not escape.
pub fn snippet(recipe_disks: &RecipeDisks) -> Result<String, SpecError> {
    check(recipe_disks.all())?;
    let mut xml = Xml::default();
    xml.remark("below <domain>: the disks map the memory of the guest");
    memory(&mut xml);
    xml.remark("below <devices>");
    recipe_disks.all().iter().for_each(|recipe_disk| disk(&mut xml, recipe_disk));
    Ok(xml.finish())
}

/// Returns one disk for `virsh attach-device`.
///
/// # Errors
/// Field `socket`: the path has characters that libvirt does not escape.
pub fn device(recipe_disk: &RecipeDisk) -> Result<String, SpecError> {
    check(std::slice::from_ref(recipe_disk))?;
    let mut xml = Xml::default();
    disk(&mut xml, recipe_disk);
    Ok(xml.finish())
}

/// Returns a complete small machine for `virsh define`, with a console for `virsh console`.
///
/// # Errors
/// As [`Guest::validate`]; field `socket`: the path has characters that libvirt does not escape.
pub fn domain(guest: &Guest, recipe_disks: &RecipeDisks) -> Result<String, SpecError> {
    guest.validate()?;
    check(recipe_disks.all())?;
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
        xml.element("devices", &[], |xml| devices(xml, recipe_disks));
    });
    Ok(xml.finish())
}

fn check(fronts: &[RecipeDisk]) -> Result<(), SpecError> {
    match fronts.iter().find(|recipe_disk| recipe_disk.socket.contains(SPOILT)) {
        None => Ok(()),
        Some(RecipeDisk { socket, .. }) => {
            let problem = format!(
                "{socket:?} holds one of ' < & which libvirt does not escape when it reads its own \
                 XML back; use another path"
            );
            refuse("socket", problem)
        }
    }
}

fn memory(xml: &mut Xml) {
    xml.element("memoryBacking", &[], |xml| {
        xml.empty("source", &[("type", "memfd")]).empty("access", &[("mode", "shared")]);
    });
}

fn devices(xml: &mut Xml, recipe_disks: &RecipeDisks) {
    recipe_disks.all().iter().for_each(|recipe_disk| disk(xml, recipe_disk));
    // A port for each disk, and some free ones. Index 0 is the root that the ports belong to.
    for index in 1..=recipe_disks.all().len() + FREE_PORTS {
        let (index, model) = (index.to_string(), "pcie-root-port");
        xml.empty("controller", &[("type", "pci"), ("index", &index), ("model", model)]);
    }
    xml.empty("controller", &[("type", "usb"), ("model", "none")]);
    xml.element("console", &[("type", "pty")], |xml| {
        xml.empty("target", &[("type", "serial")]);
    });
    xml.empty("memballoon", &[("model", "none")]);
}

fn disk(xml: &mut Xml, recipe_disk: &RecipeDisk) {
    let queues = recipe_disk.queues.to_string();
    let timeout = RECONNECT_SECONDS.to_string();
    xml.element("disk", &[("type", "vhostuser"), ("device", "disk")], |xml| {
        // Without a number QEMU uses one queue a CPU, and does not start if the backend has
        // fewer.
        xml.empty("driver", &[("name", "qemu"), ("type", "raw"), ("queues", &queues)]);
        xml.element("source", &[("type", "unix"), ("path", &recipe_disk.socket)], |xml| {
            xml.empty("reconnect", &[("enabled", "yes"), ("timeout", &timeout)]);
        });
        xml.empty("target", &[("dev", &recipe_disk.target), ("bus", "virtio")]);
        if let Some(place) = recipe_disk.boot {
            xml.empty("boot", &[("order", &place.to_string())]);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{guest, wanted};
    use super::super::{Kernel, RecipeDiskRequest};
    use super::*;

    fn fronts() -> RecipeDisks {
        let second = RecipeDiskRequest {
            queues: 4,
            target: Some("vdc".into()),
            boot: Some(1),
            ..wanted("/b")
        };
        RecipeDisks::new(&[wanted("/run/a>b.sock"), second]).unwrap()
    }

    #[test]
    fn a_disk_has_all_that_a_restart_needs() {
        let text = device(&fronts().all()[1]).unwrap();
        let expected = "<disk type='vhostuser' device='disk'>
  <driver name='qemu' type='raw' queues='4'/>
  <source type='unix' path='/b'>
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
        let text = snippet(&fronts()).unwrap();
        assert!(text.contains("  <source type='memfd'/>\n  <access mode='shared'/>"), "{text}");
        assert_eq!(text.matches("<disk ").count(), 2);
        assert!(text.contains("path='/run/a&gt;b.sock'"), "{text}");
    }

    #[test]
    fn paths_that_libvirt_spoils_are_refused() {
        for path in ["/it's", "/a<b", "/a&b"] {
            let recipe_disks = RecipeDisks::new(&[wanted(path)]).unwrap();
            assert_eq!(snippet(&recipe_disks).unwrap_err().field, "socket");
            assert_eq!(device(&recipe_disks.all()[0]).unwrap_err().field, "socket");
            assert_eq!(domain(&guest(), &recipe_disks).unwrap_err().field, "socket");
        }
    }

    #[test]
    fn a_domain_follows_its_guest() {
        let text = domain(&guest(), &fronts()).unwrap();
        for part in ["<domain type='kvm'>", "<name>web1</name>", "<memory unit='MiB'>2048<"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(text.matches("pcie-root-port").count(), 2 + FREE_PORTS);
        assert!(!text.contains("<kernel>"), "{text}");
        let kernel = Kernel { image: "/k".into(), initrd: None, append: "a=<b>".into() };
        let direct = Guest { accel: Accel::Tcg, kernel: Some(kernel), ..guest() };
        let text = domain(&direct, &fronts()).unwrap();
        for part in ["<domain type='qemu'>", "<kernel>/k<", "<cmdline>a=&lt;b&gt;</cmdline>"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("<cpu") && !text.contains("<initrd>"), "{text}");
    }
}
