//! A host NIC through which guests reach a peer at the other end of its cable.

use std::path::Path;

use testkit::in_namespace::in_own_network;
use xenapi::Value;

use super::nets::{hears, run};
use super::records::{interface, of, record, start, with};
use super::world::{PATIENCE, World};

/// Addresses of the peer and of the guest.
const FAR: &str = "10.98.0.1";
const NEAR: &str = "10.98.0.2";

#[test]
fn a_guest_reaches_what_is_behind_a_card() {
    in_own_network(concat!(module_path!(), "::a_guest_reaches_what_is_behind_a_card"), || {
        run("ip link set dev lo up");
        run("ip link add card0 type veth peer name far0");
        run(&format!("ip addr add {FAR}/24 dev far0"));
        run("ip link set dev far0 up");
        let mut world = World::new();
        let host = world.client.records("host").unwrap().remove(0).0;
        let by_name = [Value::text(""), Value::text("card0"), Value::Bool(true)];
        let pif = world.made("PIF.introduce", &with(&host, by_name));
        let net = world.record("PIF", &pif).text("network").to_owned();
        let machine = world.guest("a");
        let vif = world.made("VIF.create", &[interface(&machine.reference, &net)]);
        world.call("VM.start", &start(&machine.reference));
        let mut shell = world.shell(&machine);
        // No DHCP server assigns the guest an address.
        let take =
            format!("killall udhcpc; ip addr add {NEAR}/24 dev eth0; ip link set dev eth0 up");
        shell.run(&take, PATIENCE).unwrap();
        assert!(!hears(&mut shell, FAR, 3), "nobody has plugged it");
        world.call("PIF.plug", &of(&pif));
        assert!(hears(&mut shell, FAR, 20));
        run(&format!("busybox ping -c 1 -w 20 -I far0 {NEAR}"));
        world.killed();
        assert!(world.record("PIF", &pif).flag("currently_attached"));
        assert!(hears(&mut shell, FAR, 20));
        world.call("PIF.unplug", &of(&pif));
        assert!(!hears(&mut shell, FAR, 3));
        world.call("VM.hard_shutdown", &of(&machine.reference));
        run("ip link del card0");
        let error = world.client.run("PIF.plug", &of(&pif), PATIENCE).unwrap_err().to_string();
        assert!(error.contains("PIF_DEVICE_NOT_FOUND"), "{error}");
        world.call("PIF.forget", &of(&pif));
        world.call("VIF.destroy", &of(&vif));
        // The bridge has one network and is removed with it.
        let bridge = world.record("network", &net).text("bridge").to_owned();
        let there = || Path::new("/sys/class/net").join(&bridge).exists();
        let named = [
            ("name_label", Value::text("too")),
            ("other_config", record([])),
            ("bridge", Value::text(&*bridge)),
        ];
        let again = world.client.run("network.create", &[record(named)], PATIENCE).unwrap_err();
        assert!(again.to_string().contains("BRIDGE_NAME_EXISTS"), "{again}");
        assert!(there());
        world.call("network.destroy", &of(&net));
        assert!(!there());
        assert_eq!(world.daemon.leftovers(), Vec::<String>::new());
    })
    .unwrap();
}
