//! Networks and interfaces.

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
