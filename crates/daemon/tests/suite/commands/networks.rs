//! Networks and VIFs.

use super::{Typed, to};

#[test]
fn interfaces_are_plugged_moved_and_destroyed() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let [one, two] =
        ["one", "two"].map(|name| typed.prints(&["network-create", &to("name-label", name)]));
    let [on_one, on_two] = [to("network-uuid", &one), to("network-uuid", &two)];
    typed.does(&["vm-start", "vm=m"]);
    let vif = typed.prints(&["vif-create", &to("vm-uuid", &vm), &on_one, "device=0", "mac=random"]);
    let vif_is = to("uuid", &vif);
    let shown = typed.prints(&["vm-vif-list", "vm=m"]);
    let mac = typed.get("vif", &vif, "MAC");
    for there in [&*vif, &*mac, ": 0", ": one"] {
        assert!(shown.contains(there), "{there}: {shown}");
    }
    let attached = || typed.get("vif", &vif, "currently-attached");
    typed.does(&["vif-plug", &vif_is]);
    assert_eq!(attached(), "true");
    typed.does(&["vif-move", &vif_is, &on_two]);
    assert_eq!((typed.get("vif", &vif, "network-uuid"), attached()), (two.clone(), "true".into()));
    let refused = typed.fails(&["network-destroy", &to("uuid", &two)]);
    assert!(refused.contains(&vif), "{refused}");
    typed.does(&["vif-unplug", &vif_is]);
    assert_eq!(attached(), "false");
    typed.does(&["vif-destroy", &vif_is]);
    for net in [&one, &two] {
        typed.does(&["network-destroy", &to("uuid", net)]);
        assert_eq!(typed.list("network", &[&to("uuid", net)]), Vec::<String>::new());
    }
}

#[test]
fn cards_of_the_host_are_made_known_and_plugged() {
    let mut typed = Typed::new();
    // The host NICs must exist before the daemon starts.
    typed.daemon.stop().unwrap();
    typed.daemon.set_rules("cards = [\"eth0\", \"eth1\"]\n").unwrap();
    typed.daemon.start_again().unwrap();
    let of = to("host-uuid", &typed.only("host", &[]));
    let devices = || typed.list("pif", &["params=device"]);
    assert_eq!(devices(), Vec::<String>::new(), "nobody has looked");
    let pif = typed.prints(&["pif-introduce", &of, "device=eth1"]);
    assert_eq!(devices(), ["eth1"]);
    for device in ["device=eth1", "device=eth7"] {
        let refused = typed.fails(&["pif-introduce", &of, device]);
        assert!(refused.contains(device.trim_start_matches("device=")), "{refused}");
    }
    typed.does(&["pif-scan", &of]);
    assert_eq!(devices(), ["eth0", "eth1"]);
    let (is, attached) = (to("uuid", &pif), || typed.get("pif", &pif, "currently-attached"));
    assert_eq!(attached(), "false");
    typed.does(&["pif-plug", &is]);
    assert_eq!(attached(), "true");
    let refused = typed.fails(&["pif-forget", &is]);
    assert!(refused.contains("unplug it first"), "{refused}");
    typed.does(&["pif-unplug", &is]);
    assert_eq!(attached(), "false");
    typed.does(&["pif-forget", &is]);
    assert_eq!(devices(), ["eth0"]);
}

/// A refused value neither deletes the former one nor lifts the limit of a running guest.
#[test]
fn a_refused_value_leaves_the_former_one() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let net = typed.prints(&["network-create", "name-label=n"]);
    let vif = typed.prints(&[
        "vif-create",
        &to("vm-uuid", &vm),
        &to("network-uuid", &net),
        "device=0",
        "mac=random",
    ]);
    let (vif_is, vbd_is) = (to("uuid", &vif), to("uuid", &typed.only("vbd", &["type=Disk"])));
    let host_is = to("uuid", &typed.only("host", &[]));
    typed.does(&["vm-start", "vm=m"]);
    typed.does(&["vif-param-set", &vif_is, "qos_algorithm_type=ratelimit"]);
    for (class, is, map, key, good, bad) in [
        ("vif", &vif_is, "qos_algorithm_params", "kbps", "512", "0"),
        ("vif", &vif_is, "other-config", "queues", "2", "128"),
        ("vif", &vif_is, "other-config", "flood-limit", "100", "many"),
        ("vbd", &vbd_is, "qos_algorithm_params", "iops", "500", "0"),
        ("vbd", &vbd_is, "other-config", "queues", "4", "257"),
        ("vbd", &vbd_is, "other-config", "cache", "none", "writethrough"),
        ("host", &host_is, "other-config", "slice-weight-control", "500", "0"),
        ("host", &host_is, "other-config", "worker-pool-size", "8", "x"),
    ] {
        let set = format!("{class}-param-set");
        let value = |value: &str| format!("{map}:{key}={value}");
        typed.does(&[&set, is, &value(good)]);
        let refused = typed.fails(&[&set, is, &value(bad)]);
        assert!(refused.contains(key), "{refused}");
        let uuid = is.trim_start_matches("uuid=");
        let [uuid, name, key] = [to("uuid", uuid), to("param-name", map), to("param-key", key)];
        let stays = typed.prints(&[&format!("{class}-param-get"), &uuid, &name, &key]);
        assert_eq!(stays, good, "{class} {map}:{key}");
    }
    let misspelt = typed.fails(&["vif-param-set", &vif_is, "qos_algorithm_params:kpbs=100"]);
    assert!(misspelt.contains("kpbs") && misspelt.contains("kbps"), "{misspelt}");
}

/// The kernel has a device of this name, or another network has the bridge.
#[test]
fn a_bridge_that_is_none_or_taken_is_refused() {
    let typed = Typed::new();
    let refused = typed.fails(&["network-create", "name-label=n", "bridge=lo"]);
    assert!(refused.contains("bridge") && refused.contains("lo"), "{refused}");
    typed.prints(&["network-create", "name-label=n", "bridge=br7"]);
    let refused = typed.fails(&["network-create", "name-label=n2", "bridge=br7"]);
    assert!(refused.contains("Another network has this bridge"), "{refused}");
    assert_eq!(typed.list("network", &["name-label=n2"]), Vec::<String>::new());
}

/// The MTU of a network applies to its VIFs, and they show it.
#[test]
fn interfaces_show_the_mtu_that_is_in_force() {
    let typed = Typed::new();
    let vm = typed.machine("m");
    let net = |name: &str, mtu: &str| {
        typed.prints(&["network-create", &to("name-label", name), &to("MTU", mtu)])
    };
    let (jumbo, usual) = (net("jumbo", "9000"), net("usual", "1500"));
    let on = to("network-uuid", &jumbo);
    let create = ["vif-create", &to("vm-uuid", &vm), &on, "device=0", "mac=random"];
    let refused = typed.fails(&[&create[..], &["mtu=1500"]].concat());
    assert!(refused.contains("9000") && refused.contains("network-param-set"), "{refused}");
    let vif = typed.prints(&[&create[..], &["mtu=9000"]].concat());
    let mtu = || typed.get("vif", &vif, "MTU");
    assert_eq!(mtu(), "9000");
    let vif_is = to("uuid", &vif);
    typed.does(&["vif-move", &vif_is, &to("network-uuid", &usual)]);
    assert_eq!(mtu(), "1500");
    typed.does(&["network-param-set", &to("uuid", &usual), "MTU=4000"]);
    assert_eq!(mtu(), "4000", "it is not plugged");
    typed.does(&["vm-start", "vm=m"]);
    typed.does(&["network-param-set", &to("uuid", &usual), "MTU=2000"]);
    assert_eq!(mtu(), "4000", "it is plugged");
    typed.does(&["vm-shutdown", "vm=m", "--force"]);
    typed.does(&["vm-start", "vm=m"]);
    assert_eq!(mtu(), "2000");
}
