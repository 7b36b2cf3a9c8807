//! Bridges and TAP devices of this host. Needs root.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::Path;
use std::process::Command;

use toolstack::binaries::in_path;
use toolstack::net::{HostNet, Net};

/// Names that nobody else has, gone at the end also of a test that failed.
struct Names {
    bridge: String,
    tap: String,
}

impl Names {
    fn new() -> Self {
        let id = std::process::id();
        Self { bridge: format!("rwb{id}"), tap: format!("rwp{id}") }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for name in [&self.tap, &self.bridge] {
            // That it is not there is what should be.
            let _gone = Command::new("ip").args(["link", "del", "dev", name]).output();
        }
    }
}

fn there(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

fn shown(name: &str, what: &str) -> String {
    let file = Path::new("/sys/class/net").join(name).join(what);
    std::fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

fn net(instance: &str) -> HostNet {
    HostNet::new(in_path("ip").expect("ip is missing; install it with `make setup`"), instance)
}

#[tokio::test]
async fn devices_come_and_go_and_each_instance_has_its_own() {
    let names = Names::new();
    let (bridge, tap) = (names.bridge.as_str(), names.tap.as_str());
    let (ours, other) = (net(&format!("a{}", std::process::id())), net("b"));
    ours.remove_tap(tap).await.unwrap();
    ours.remove_bridge(bridge).await.unwrap();
    // Carried out twice, it is done once.
    for _ in 0..2 {
        ours.create_bridge(bridge, 1400).await.unwrap();
        ours.create_tap(tap, bridge, 1400).await.unwrap();
    }
    assert_eq!(ours.taps().await.unwrap(), [tap]);
    assert!(other.taps().await.unwrap().iter().all(|one| one != tap));
    assert_eq!((shown(bridge, "mtu"), shown(tap, "mtu")), ("1400".into(), "1400".into()));
    let master = std::fs::read_link(format!("/sys/class/net/{tap}/master")).unwrap();
    assert!(master.ends_with(bridge), "{master:?}");

    // A bridge that somebody else made is used, and neither changed nor removed.
    other.create_bridge(bridge, 1500).await.unwrap();
    other.remove_bridge(bridge).await.unwrap();
    assert_eq!(shown(bridge, "mtu"), "1400");
    let taken = ours.create_bridge("lo", 1500).await.unwrap_err().to_string();
    assert!(taken.contains("no bridge"), "{taken}");
    let taken = ours.create_tap(bridge, "lo", 1500).await.unwrap_err().to_string();
    assert!(taken.contains("no TAP device"), "{taken}");

    ours.remove_tap(tap).await.unwrap();
    ours.remove_bridge(bridge).await.unwrap();
    assert!(!there(tap) && !there(bridge));
    assert_eq!(ours.taps().await.unwrap(), Vec::<String>::new());
}
