//! Hot plug and unplug of disks and interfaces.

use std::path::Path;
use std::time::Duration;

use model::domain::pci::{self, PciSlot};
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;

use super::backends;
use super::device_ids::Device;
use super::domain::Domain;
use crate::hv::{DiskPlug, HvError, NicPlug};
use crate::qemu::QemuError;
use crate::qemu::qmp::{COMMAND_DEADLINE, Event, Qmp};

/// Longest wait for a device. QEMU talks to the disk's datapath meanwhile, and answers no other
/// command.
const PLUG_DEADLINE: Duration = Duration::from_secs(30);
/// Interval after which the guest is asked again to release a device. A guest that was booting may
/// have missed the request.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Seconds between QEMU's attempts to reconnect to a datapath. QEMU accepts whole seconds only.
const RECONNECT_SECONDS: u32 = 1;

/// Plugs a disk.
pub(super) async fn plug_disk(domain: &Domain, disk: &DiskPlug) -> Result<(), HvError> {
    let device = Device::Disk(disk.vbd);
    let arguments = disk_arguments(disk, domain.record.vcpus)?;
    listens(&disk.socket, "plugging a disk")?;
    plug(domain, device, &[("chardev-add", chardev(device, &disk.socket))], arguments).await
}

/// Plugs a network interface.
pub(super) async fn plug_nic(domain: &Domain, nic: &NicPlug) -> Result<(), HvError> {
    let device = Device::Nic(nic.vif);
    let kvm = domain.execute("query-kvm", Value::Null).await?;
    let arguments = nic_arguments(nic, kvm.get("enabled") == Some(&Value::Bool(true)))?;
    listens(&nic.socket, "plugging an interface")?;
    let ends =
        [("chardev-add", chardev(device, &nic.socket)), ("netdev_add", netdev(device, nic.queues))];
    plug(domain, device, &ends, arguments).await
}

/// Checks that the socket exists. Otherwise QEMU would wait for it for ever and answer no command.
fn listens(socket: &Path, what: &str) -> Result<(), HvError> {
    if socket.exists() {
        return Ok(());
    }
    let why = format!("nothing listens at {}", socket.display());
    Err(HvError::Refused { what: what.into(), why })
}

/// Creates the backends of a device with the commands `ends`, then the device.
async fn plug(
    domain: &Domain,
    device: Device,
    ends: &[(&str, Value)],
    arguments: Value,
) -> Result<(), HvError> {
    let qmp = domain.qmp().await?;
    let mut added = add(&qmp, ends, &arguments).await;
    if let (Err(QemuError::Refused { .. }), Err(_)) = added {
        if domain.devices().await?.contains(&device) {
            return Ok(());
        }
        // A dropped call left these backends.
        backends::remove(&qmp, device).await;
        added = add(&qmp, ends, &arguments).await;
    }
    match added {
        // Backends that a dropped call created serve as well.
        (_, Ok(())) => Ok(()),
        (Err(error), Err(_)) => Err(error.into()),
        (Ok(()), Err(error)) => {
            backends::remove(&qmp, device).await;
            Err(error.into())
        }
    }
}

/// Executes the commands and returns the first failure of the backends, and the result of the
/// device.
async fn add(
    qmp: &Qmp,
    ends: &[(&str, Value)],
    arguments: &Value,
) -> (Result<(), QemuError>, Result<(), QemuError>) {
    let Some(((last, end), others)) = ends.split_last() else { return (Ok(()), Ok(())) };
    let mut made = Ok(());
    for (command, end) in others {
        let added = qmp.execute(command, end.clone(), COMMAND_DEADLINE).await.map(drop);
        made = made.and(added);
    }
    // QEMU executes them in order, so there is no need to wait in between.
    let (end, added) = tokio::join!(
        qmp.execute(last, end.clone(), PLUG_DEADLINE),
        qmp.execute("device_add", arguments.clone(), PLUG_DEADLINE),
    );
    (made.and(end.map(drop)), added.map(drop))
}

/// Unplugs a device. Returns when the guest has released it.
pub(super) async fn unplug(domain: &Domain, device: Device) -> Result<(), HvError> {
    let qmp = domain.qmp().await?;
    let mut events = qmp.events();
    let _awaiting = domain.awaiting(device);
    loop {
        match qmp.execute("device_del", json!({ "id": device.id() }), COMMAND_DEADLINE).await {
            // The device does not exist, or a removal is already pending. The device list tells
            // which.
            Ok(_) | Err(QemuError::Refused { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if !domain.devices().await?.contains(&device) {
            break;
        }
        tokio::select! {
            gone = timeout(ASK_AGAIN, deleted(&qmp, &mut events, device)) => match gone {
                Ok(outcome) => { outcome?; break }
                Err(_) => tracing::debug!(id = device.id(), "unplug requested again"),
            },
            _ = domain.wait_end() => {
                let why = "the guest has ended and cannot release the device".into();
                return Err(HvError::Refused { what: "unplugging".into(), why });
            }
        }
    }
    backends::remove(&qmp, device).await;
    Ok(())
}

/// Waits until the guest has released the device.
async fn deleted(qmp: &Qmp, events: &mut Receiver<Event>, device: Device) -> Result<(), QemuError> {
    let id = device.id();
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            () = qmp.closed() => return Err(QemuError::Closed),
        };
        // The next query of the device list covers lost events.
        let Ok(event) = event else { continue };
        let whose = event.data.get("device").and_then(Value::as_str);
        if event.name == "DEVICE_DELETED" && whose == Some(id.as_str()) {
            return Ok(());
        }
    }
}

fn chardev(device: Device, socket: &Path) -> Value {
    let addr = json!({ "type": "unix", "data": { "path": socket.to_string_lossy() } });
    let data = json!({ "addr": addr, "server": false, "reconnect": RECONNECT_SECONDS });
    json!({ "id": device.backend_id(), "backend": { "type": "socket", "data": data } })
}

fn disk_arguments(disk: &DiskPlug, vcpus: u16) -> Result<Value, HvError> {
    let device = Device::Disk(disk.vbd);
    let place = pci::disk(disk.userdevice).ok_or_else(|| no_place("disk", disk.userdevice))?;
    let queues = disk.queues.min(place.most_queues).min(vcpus).max(1);
    let mut arguments = placed("vhost-user-blk-pci", device, place.pci_slot, disk.boot_index);
    arguments.insert("chardev".into(), device.backend_id().into());
    arguments.insert("num-queues".into(), queues.into());
    arguments.extend(place.vectors.map(|vectors| ("vectors".to_owned(), vectors.into())));
    Ok(Value::Object(arguments))
}

fn netdev(device: Device, queues: u16) -> Value {
    let end = device.backend_id();
    json!({ "type": "vhost-user", "id": end, "chardev": end, "queues": queues })
}

/// Returns the device arguments of an interface. With `kvm` it uses MSI-X: QEMU can mask these
/// interrupts for a vhost-user interface only with KVM, and exits without it.
fn nic_arguments(nic: &NicPlug, kvm: bool) -> Result<Value, HvError> {
    let device = Device::Nic(nic.vif);
    let pci_slot = pci::vif(nic.device).ok_or_else(|| no_place("interface", nic.device))?;
    let mut arguments = placed("virtio-net-pci", device, pci_slot, nic.boot_index);
    arguments.insert("netdev".into(), device.backend_id().into());
    arguments.insert("mac".into(), nic.mac.as_str().into());
    arguments.insert("mq".into(), (nic.queues > 1).into());
    // One vector for each queue, one for configuration changes and one for the control queue.
    let vectors = if kvm { 2 * u32::from(nic.queues) + 2 } else { 0 };
    arguments.insert("vectors".into(), vectors.into());
    arguments.extend(nic.mtu.map(|mtu| ("host_mtu".to_owned(), mtu.into())));
    if nic.boot_index.is_none() {
        // The network boot ROM is not needed then.
        arguments.insert("romfile".into(), "".into());
    }
    Ok(Value::Object(arguments))
}

fn placed(
    driver: &str,
    device: Device,
    pci_slot: PciSlot,
    boot_index: Option<u16>,
) -> Map<String, Value> {
    let words = [
        ("driver", driver.to_owned()),
        ("id", device.id()),
        ("bus", pci_slot.bus.to_string()),
        ("addr", format!("{:#x}", pci_slot.slot)),
        ("disable-legacy", "on".to_owned()),
    ];
    let words = words.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    let index = boot_index.map(|index| ("bootindex".to_owned(), index.into()));
    words.chain(index).collect()
}

fn no_place(what: &str, number: u8) -> HvError {
    let why = format!("no {what} has number {number}");
    HvError::Refused { what: "plugging".into(), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{Uuid, VbdId, VifId};

    fn disk(userdevice: u8, queues: u16) -> DiskPlug {
        let vbd = VbdId(Uuid::default());
        DiskPlug { vbd, userdevice, socket: "/r/a.sock".into(), queues, boot_index: None }
    }

    fn shown(userdevice: u8, queues: u16) -> (Value, Value, Value, Value) {
        let all = disk_arguments(&disk(userdevice, queues), 4).unwrap();
        let part = |name: &str| all.get(name).cloned().unwrap_or_default();
        (part("bus"), part("addr"), part("num-queues"), part("vectors"))
    }

    #[test]
    fn a_disk_has_the_place_and_the_interrupts_of_its_number() {
        let null = Value::Null;
        assert_eq!(shown(0, 2), ("pci.0".into(), "0xe".into(), 2.into(), null.clone()));
        assert_eq!(shown(31, 64), ("br0".into(), "0x19".into(), 4.into(), null));
        assert_eq!(shown(32, 4), ("br0".into(), "0x1a".into(), 1.into(), 0.into()));
        assert_eq!(shown(254, 0), ("br7".into(), "0x1f".into(), 1.into(), 0.into()));
        assert!(disk_arguments(&disk(255, 1), 4).is_err());
    }

    #[test]
    fn a_disk_is_modern_and_its_datapath_is_found_again() {
        let arguments = disk_arguments(&disk(0, 1), 1).unwrap();
        assert_eq!(arguments["driver"], "vhost-user-blk-pci");
        assert_eq!(arguments["disable-legacy"], "on");
        assert_eq!(arguments.get("bootindex"), None);
        let chardev = chardev(Device::Disk(VbdId(Uuid::default())), Path::new("/r/a.sock"));
        assert_eq!(chardev["id"], arguments["chardev"]);
        assert_eq!(chardev["backend"]["data"]["reconnect"], 1);
        assert_eq!(chardev["backend"]["data"]["addr"]["data"]["path"], "/r/a.sock");
        let first = DiskPlug { boot_index: Some(0), ..disk(0, 1) };
        assert_eq!(disk_arguments(&first, 1).unwrap()["bootindex"], 0);
    }

    fn nic() -> NicPlug {
        let (vif, mac) = (VifId(Uuid::default()), "00:16:3e:01:02:03".to_owned());
        let (socket, mtu) = ("/r/n.sock".into(), Some(9000));
        NicPlug { vif, device: 6, socket, queues: 2, mac, mtu, boot_index: None }
    }

    #[test]
    fn an_interface_has_its_place_and_its_address() {
        let arguments = nic_arguments(&nic(), true).unwrap();
        assert_eq!((&arguments["bus"], &arguments["addr"]), (&"pci.0".into(), &"0x1b".into()));
        assert_eq!(arguments["mac"], "00:16:3e:01:02:03");
        assert_eq!((&arguments["romfile"], &arguments["host_mtu"]), (&"".into(), &9000.into()));
        let booted = NicPlug { boot_index: Some(1), mtu: None, ..nic() };
        let arguments = nic_arguments(&booted, true).unwrap();
        assert_eq!((arguments.get("romfile"), arguments.get("host_mtu")), (None, None));
        assert!(nic_arguments(&NicPlug { device: 7, ..nic() }, true).is_err());
    }

    #[test]
    fn an_interface_has_its_queues_and_a_switch_that_is_found_again() {
        let device = Device::Nic(nic().vif);
        let [one, several] = [1, 4].map(|queues| NicPlug { queues, ..nic() });
        let shown = |nic: &NicPlug, kvm| {
            let arguments = nic_arguments(nic, kvm).unwrap();
            (arguments["mq"].clone(), arguments["vectors"].clone())
        };
        assert_eq!(shown(&one, true), (false.into(), 4.into()));
        assert_eq!(shown(&several, true), (true.into(), 10.into()));
        assert_eq!(shown(&several, false), (true.into(), 0.into()));
        let netdev = netdev(device, 4);
        assert_eq!((&netdev["type"], &netdev["queues"]), (&"vhost-user".into(), &4.into()));
        let chardev = chardev(device, Path::new("/r/n.sock"));
        assert_eq!(netdev["chardev"], chardev["id"]);
        assert_eq!(chardev["backend"]["data"]["reconnect"], 1);
        assert_eq!(nic_arguments(&one, true).unwrap()["netdev"], netdev["id"]);
    }
}
