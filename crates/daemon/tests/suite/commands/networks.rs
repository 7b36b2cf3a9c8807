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
