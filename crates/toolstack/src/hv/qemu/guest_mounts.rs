//! File systems on a disk that the guest has mounted, as its agent reports them.
//!
//! The agent names a disk by its PCI address in the guest. QEMU knows the same address, with the bus
//! numbers that the guest has given to its bridges.

use std::time::Duration;

use model::id::VbdId;
use model::plan::RunState;
use serde_json::Value;
use tokio::time::timeout;

use super::agent::{AgentSession, talking, text};
use super::device_ids::Device;
use super::domain::Domain;
use crate::hv::HvError;

/// Longest wait for the whole answer. An unplug waits for it.
const MOUNTS_DEADLINE: Duration = Duration::from_secs(5);
/// Most mount points of a disk that are reported.
const MOUNTS_MAX: usize = 8;
/// Most disks of one file system, such as a volume group, that are looked at.
const DISKS_MAX: usize = 256;

/// PCI address as the guest numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GuestPciAddress {
    bus: u64,
    slot: u64,
    function: u64,
}

impl GuestPciAddress {
    fn of(value: &Value) -> Option<Self> {
        let number = |name: &str| value.get(name)?.as_u64();
        Some(Self { bus: number("bus")?, slot: number("slot")?, function: number("function")? })
    }
}

/// Returns the mount points of file systems on this disk. Empty if no agent listens or the guest
/// does not run.
pub(super) async fn mounts(domain: &Domain, vbd: VbdId) -> Result<Vec<String>, HvError> {
    let late = |_| HvError::Late { what: "the guest's agent".into(), after: MOUNTS_DEADLINE };
    timeout(MOUNTS_DEADLINE, reported(domain, vbd)).await.map_err(late)?
}

async fn reported(domain: &Domain, vbd: VbdId) -> Result<Vec<String>, HvError> {
    if domain.state().await? != RunState::Running || !domain.agent_listens().await? {
        return Ok(Vec::new());
    }
    let buses = domain.execute("query-pci", Value::Null).await?;
    let Some(disk) = address(&buses, &Device::Disk(vbd).id()) else { return Ok(Vec::new()) };
    talking(domain, async |session| mounted(session, disk).await).await
}

async fn mounted(
    agent_session: &mut AgentSession,
    disk: GuestPciAddress,
) -> Result<Vec<String>, HvError> {
    Ok(mount_points(&agent_session.ask("guest-get-fsinfo").await?, disk))
}

/// Returns the address of the device with this QEMU id, on the root bus or behind a bridge.
fn address(buses: &Value, id: &str) -> Option<GuestPciAddress> {
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let roots = items(buses).into_iter().flat_map(|bus| items(&bus["devices"]));
    let with_bridged = |device: Value| {
        let bridged = items(&device["pci_bridge"]["devices"]);
        std::iter::once(device).chain(bridged)
    };
    let device = roots.flat_map(with_bridged).find(|device| device["qdev_id"] == id)?;
    GuestPciAddress::of(&device)
}

/// Returns the mount points on the disk with this address. What the agent should not send is
/// ignored.
fn mount_points(file_systems: &Value, disk: GuestPciAddress) -> Vec<String> {
    let is_on_disk = |file_system: &&Value| {
        let disks = file_system.get("disk").and_then(Value::as_array).into_iter().flatten();
        let mut places = disks.take(DISKS_MAX).filter_map(|one| one.get("pci-controller"));
        // Domains other than the first have no disks of ours.
        places.any(|one| {
            one.get("domain") == Some(&0.into()) && GuestPciAddress::of(one) == Some(disk)
        })
    };
    let all = file_systems.as_array().into_iter().flatten().filter(is_on_disk);
    let mut points: Vec<_> = all.filter_map(|one| text(one.get("mountpoint"))).collect();
    points.sort_unstable();
    points.dedup();
    points.truncate(MOUNTS_MAX);
    points
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::UnixStream;

    use super::*;

    const DISK: GuestPciAddress = GuestPciAddress { bus: 1, slot: 3, function: 0 };

    fn at(bus: u64, slot: u64) -> Value {
        let place = json!({ "domain": 0, "bus": bus, "slot": slot, "function": 0 });
        json!({ "pci-controller": place, "bus-type": "virtio", "bus": 0, "target": 0, "unit": 0 })
    }

    #[test]
    fn a_disk_has_the_address_that_the_guest_gave_it() {
        let device = |bus: u64, slot: u64, id: &str| json!({ "bus": bus, "slot": slot, "function": 0, "qdev_id": id });
        let mut bridge = device(0, 6, "br0");
        bridge["pci_bridge"] = json!({ "bus": {}, "devices": [device(1, 3, "disk-b")] });
        let buses = json!([{ "bus": 0, "devices": [device(0, 14, "disk-a"), bridge] }]);
        assert_eq!(address(&buses, "disk-b"), Some(DISK));
        let root = GuestPciAddress { bus: 0, slot: 14, function: 0 };
        assert_eq!(address(&buses, "disk-a"), Some(root));
        assert_eq!(address(&buses, "disk-c"), None);
        assert_eq!(address(&json!({ "bus": [1] }), "disk-a"), None);
    }

    #[test]
    fn mount_points_are_those_of_the_disk() {
        let file_systems = json!([
            { "name": "vda1", "mountpoint": "/", "type": "ext4", "disk": [at(0, 14)] },
            { "name": "vdb", "mountpoint": "/data", "type": "ext4", "disk": [at(1, 3)] },
            { "name": "vdb", "mountpoint": "/again", "type": "ext4", "disk": [at(1, 3)] },
            { "name": "vdb", "mountpoint": "/data", "type": "ext4", "disk": [at(1, 3)] },
            { "name": "dm-0", "mountpoint": "/wide\n", "type": "xfs", "disk": [at(0, 14), at(1, 3)] },
            { "name": "tmp", "mountpoint": "/tmp", "type": "tmpfs", "disk": [] },
        ]);
        assert_eq!(mount_points(&file_systems, DISK), ["/again", "/data", "/wide"]);
        let many: Vec<_> =
            (0..99).map(|n| json!({ "mountpoint": format!("/{n}"), "disk": [at(1, 3)] })).collect();
        assert_eq!(mount_points(&many.into(), DISK).len(), MOUNTS_MAX);
    }

    #[test]
    fn what_is_not_a_report_names_nothing() {
        let mut elsewhere = at(1, 3);
        elsewhere["pci-controller"]["domain"] = json!(1);
        let mut unknown = at(1, 3);
        unknown["pci-controller"]["slot"] = json!(-1);
        for disk in [elsewhere, unknown, json!("/dev/vdb"), json!({ "pci-controller": 7 })] {
            let list = json!([{ "mountpoint": "/data", "disk": [disk] }]);
            assert_eq!(mount_points(&list, DISK), [""; 0], "{list}");
        }
        for list in
            [json!(null), json!({}), json!([1]), json!([{ "mountpoint": 1, "disk": [at(1, 3)] }])]
        {
            assert_eq!(mount_points(&list, DISK), [""; 0], "{list}");
        }
    }

    /// Answers the sync, then sends these bytes in place of an answer, and keeps the line open.
    async fn fake_agent(stream: UnixStream, bytes: Vec<u8>) {
        let mut lines = BufReader::new(stream);
        for turn in 0..2 {
            let mut line = String::new();
            lines.read_line(&mut line).await.unwrap();
            let command: Value = serde_json::from_str(&line).unwrap();
            let reply = match turn {
                0 => {
                    let reply = json!({ "return": command["arguments"]["id"] });
                    [b"\xff", reply.to_string().as_bytes(), b"\n"].concat()
                }
                _ => bytes.clone(),
            };
            // The session may have ended before it has read all.
            let _ = lines.write_all(&reply).await;
        }
        std::future::pending().await
    }

    async fn asks(bytes: Vec<u8>) -> Result<Vec<String>, HvError> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let session = async { mounted(&mut AgentSession::over(ours, 7).await?, DISK).await };
        tokio::select! {
            outcome = session => outcome,
            () = fake_agent(theirs, bytes) => unreachable!(),
        }
    }

    #[tokio::test]
    async fn an_agent_answers() {
        let list = json!([{ "mountpoint": "/data", "disk": [at(1, 3)] }]);
        let answer = format!("{}\n", json!({ "return": list }));
        assert_eq!(asks(answer.into_bytes()).await.unwrap(), ["/data"]);
        let refusal = json!({ "error": { "class": "CommandNotFound", "desc": "no\u{7} such" } });
        let error = asks(format!("{refusal}\n").into_bytes()).await.unwrap_err();
        assert_eq!(error.to_string(), "the guest's agent: guest-get-fsinfo: no such");
        for bytes in [&b"\xff\xfe{]\n"[..], b"[[[[[[[[\n", b"\n"] {
            asks(bytes.to_vec()).await.unwrap_err();
        }
        asks(vec![b'['; 2 << 20]).await.unwrap_err();
    }

    proptest! {
        #[test]
        fn no_report_panics_or_grows(text in r#"[\[\]{}",:0-9a-z-]{0,200}"#, slot in any::<i64>()) {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                assert!(mount_points(&value, DISK).len() <= MOUNTS_MAX);
            }
            let disk = json!({ "pci-controller": { "domain": 0, "bus": 1, "slot": slot, "function": 0 } });
            let list = json!([{ "mountpoint": text, "disk": [disk] }]);
            assert_eq!(mount_points(&list, DISK).len(), usize::from(slot == 3));
        }
    }
}
