//! Addresses of a real guest as it assigns and removes them, on the test's own network.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use testkit::guest::{KERNEL_ARGS, boot_config};
use testkit::in_namespace::in_own_network;
use testkit::ringwayd::Ringwayd;

/// Script in the guest: it assigns an address and sends a ping.
const SCRIPT: &str = "ip addr add 10.77.0.7/24 dev eth0; ping -c 1 -W 1 10.77.0.1; sleep 1000";
/// Longest wait for the guest. Without KVM it boots in some seconds.
const BOOT_DEADLINE: Duration = Duration::from_secs(120);

/// Waits until a field of the VM matches.
fn until(daemon: &Ringwayd, field: &str, is: impl Fn(&str) -> bool) -> String {
    let end = Instant::now() + BOOT_DEADLINE;
    loop {
        let shown = ["vm-list", "name-label=m", &format!("params={field}"), "--minimal"];
        let text = daemon.xe_prints(&shown).unwrap();
        if is(&text) {
            return text;
        }
        assert!(Instant::now() < end, "{field}: {text}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_guest_is_known_by_the_addresses_that_it_has() {
    in_own_network(
        concat!(module_path!(), "::a_guest_is_known_by_the_addresses_that_it_has"),
        inside,
    )
    .unwrap();
}

fn inside() {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(up.success());
    let config = boot_config().unwrap();
    let path = config.path().display().to_string();
    let mut daemon = Ringwayd::start(&["--hypervisor", "qemu", "--config", &path]).unwrap();
    let vm = daemon
        .xe_prints(&["vm-install", "template=Ringway test guest", "new-name-label=m"])
        .unwrap();
    let net = daemon.xe_prints(&["network-create", "name-label=n"]).unwrap();
    let (of, on) = (format!("vm-uuid={vm}"), format!("network-uuid={net}"));
    daemon.xe_prints(&["vif-create", &of, &on, "device=2"]).unwrap();
    let args = format!("PV-args={KERNEL_ARGS} ringway.run={}", STANDARD.encode(SCRIPT));
    daemon.xe_prints(&["vm-param-set", &format!("uuid={vm}"), &args]).unwrap();
    daemon.xe_prints(&["vm-start", "vm=m"]).unwrap();
    // The agent may have been polled before the address was assigned. The observed address triggers
    // another poll.
    let reported = until(&daemon, "networks", |text| text.contains("2/ip: 10.77.0.7"));
    assert!(reported.contains("2/ipv4/0: 10.77.0.7"), "{reported}");
    // A restarted daemon continues to observe addresses.
    daemon.process.kill().unwrap();
    daemon.start_again().unwrap();
    until(&daemon, "networks", |text| text.contains("2/ip: 10.77.0.7"));
    daemon.xe_prints(&["vm-shutdown", "vm=m", "--force"]).unwrap();
    let left = until(&daemon, "power-state", |text| text == "halted");
    assert_eq!(left, "halted");
    let networks = daemon.xe_prints(&["vm-list", "name-label=m", "params=networks", "--minimal"]);
    assert!(!networks.unwrap().contains("10.77"));
}
